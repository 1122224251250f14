//! Registered memory: slots that operations travel through, what they need instead when they are large, the keys of regions,
//! and what is kept for others.

mod buffer;
mod keys;
mod known;
mod leases;
mod pinned;
mod remains;
mod slots;

pub(super) use buffer::Buffer;
pub(super) use keys::Keys;
pub(super) use known::Entry;
pub(super) use leases::{Lease, Leases};
pub(super) use pinned::Pinned;
pub(super) use remains::{Deferred, Remains};
pub(super) use slots::{Slot, Slots};

use super::VerbsError;
use super::counts::Registrations;
use super::sys::{Access, Domain, Registered};
use super::wr::Piece;
use known::Known;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use transom_launch::lock;
use transom_windows::{BoxBytes, FabricError, Memory as OfProgram};

/// Bytes of a piece in which puts and gets that do not fit their requests travel.
const CHUNK: usize = 32 << 10;
/// As many pieces are registered at a time: 1 MiB, since little memory may be locked.
const CHUNKS: usize = 32;
/// Bytes of a message at most, and how many such slots are registered at a time: 264 KiB.
const MESSAGE: usize = (8 << 10) + 192;
const MESSAGES: usize = 32;
/// Bytes of what is put into a ring or a pipe at most, and how many such slots are registered at a time: 512 KiB.
const PUT: usize = 64 << 10;
const PUTS: usize = 8;
/// Results of atomics.
const CELLS: usize = 512;
/// Regions whose words for that are registered at a time.
const COUNTS: usize = 512;
/// Bytes that are kept registered for further buffers and reads.
const KEPT: usize = 16 << 20;
/// From how many bytes on operations look whether their memory is registered. Below, a copy takes little more, and a put need
/// not wait until the bytes have arrived.
const LOOKED_UP: usize = CHUNK;

/// The registered memory of a rank.
pub(super) struct Memory {
    domain: Arc<Domain>,
    /// What puts and gets travel through.
    pub chunks: Arc<Slots>,
    /// What messages are copied to on their way.
    messages: Arc<Slots>,
    /// What is put into rings and pipes, where it is longer than a message.
    puts: Arc<Slots>,
    /// Where results of atomics come.
    pub cells: Arc<Slots>,
    /// On which those who reach a region of this rank count themselves.
    pub counts: Arc<Slots>,
    /// Buffers of the program's, and what reads of middle length come to.
    leases: Arc<Leases<Pinned>>,
    /// Its windows', and buffers of the program's.
    known: Arc<Known<Registered>>,
    /// Of the further rails, which buffers are registered with, too.
    further: Mutex<Vec<Further>>,
    /// From how many bytes on the memory of an operation is registered for it.
    register_from: usize,
    tally: Tally,
}

/// Of a further rail.
type Further = (Arc<Domain>, Arc<Known<Registered>>);

/// What became of operations.
#[derive(Default)]
struct Tally {
    found: AtomicU64,
    passing: AtomicU64,
    refused: AtomicU64,
    copied: AtomicU64,
    /// Whether the log says that registrations are refused.
    told: AtomicBool,
}

/// The memory that a program lends for a call, as the adapter knows it.
pub(super) struct Passing {
    pub address: u64,
    pub registered: Arc<Registered>,
}

impl Memory {
    pub fn new(domain: &Arc<Domain>, register_from: usize) -> Self {
        Memory {
            domain: domain.clone(),
            chunks: Slots::new(domain, Access::Local, CHUNK, CHUNKS),
            messages: Slots::new(domain, Access::Source, MESSAGE, MESSAGES),
            puts: Slots::new(domain, Access::Source, PUT, PUTS),
            cells: Slots::new(domain, Access::Local, 8, CELLS),
            counts: Slots::new(domain, Access::Words, 8, COUNTS),
            leases: Leases::new(KEPT),
            known: Known::new(),
            further: Mutex::default(),
            register_from,
            tally: Tally::default(),
        }
    }

    /// Where so many bytes of a message, or of what is put into a ring or a pipe, are copied to.
    pub fn slots_for(&self, bytes: usize) -> &Arc<Slots> {
        if bytes <= MESSAGE { &self.messages } else { &self.puts }
    }

    /// Has a registration known whose memory the program may use.
    pub fn know(&self, registered: &Arc<Registered>) -> Entry<Registered> {
        self.known.add(registered.address, registered.bytes() as u64, registered.clone())
    }

    /// The registration of memory that the program lends for a call: one that there is, else, if the memory is large, one for
    /// the call. None where slots do, or must.
    ///
    /// # Safety
    /// The program must lend it until what is returned is dropped, for the adapter to write to unless it is a source.
    #[inline]
    pub unsafe fn lent(&self, start: NonNull<u8>, bytes: usize, access: Access) -> Option<Passing> {
        // SAFETY: by the caller's word.
        if bytes < LOOKED_UP { None } else { unsafe { self.lent_large(start, bytes, access) } }
    }

    /// As [`lent`](Self::lent).
    unsafe fn lent_large(&self, start: NonNull<u8>, bytes: usize, access: Access) -> Option<Passing> {
        let address = start.as_ptr().expose_provenance() as u64;
        if let Some(registered) = self.known.find(address, bytes as u64) {
            self.tally.found.fetch_add(1, Relaxed);
            return Some(Passing { address, registered });
        }
        if bytes < self.register_from {
            return None;
        }
        // SAFETY: by the caller's word.
        let registered = unsafe { Registered::new(&self.domain, start, bytes, access) };
        let registered = registered.map_err(|error| self.refused(error)).ok()?;
        self.tally.passing.fetch_add(1, Relaxed);
        Some(Passing { address, registered: Arc::new(registered) })
    }

    /// The registration of a part of memory that another rail has registered: one that there is, else one for the operation.
    ///
    /// # Safety
    /// As of [`lent`](Self::lent), whether the program lends it or it is owned here.
    pub unsafe fn part(&self, address: u64, bytes: usize, access: Access) -> Option<Arc<Registered>> {
        if let Some(registered) = self.known.find(address, bytes as u64) {
            return Some(registered);
        }
        let start = NonNull::new(std::ptr::with_exposed_provenance_mut(address as usize))?;
        // SAFETY: by the caller's word.
        let registered = unsafe { Registered::new(&self.domain, start, bytes, access) };
        registered.map(Arc::new).map_err(|error| self.refused(error)).ok()
    }

    /// From now on buffers are registered with this further rail, too.
    pub fn also(&self, further: &Memory) {
        let further = (further.domain.clone(), further.known.clone());
        lock(&self.further).push(further);
    }

    /// What a write from owned bytes needs; they come back if slots do, or must.
    pub fn source(&self, bytes: BoxBytes) -> Result<Lent, BoxBytes> {
        if bytes.len() < self.register_from { Err(bytes) } else { self.pin(bytes, Access::Source) }
    }

    /// What a read into owned bytes needs: they come back if it is other memory, from which they are to be copied, or none.
    pub fn destination(&self, bytes: BoxBytes) -> Result<(Lent, Option<BoxBytes>), (Option<VerbsError>, BoxBytes)> {
        if bytes.len() > self.chunks.bytes() && bytes.len() >= self.register_from {
            return self.pin(bytes, Access::Local).map(|lent| (lent, None)).map_err(|bytes| (None, bytes));
        }
        match self.passage(bytes.len()) {
            Ok(Some(own)) => Ok((own, Some(bytes))),
            Ok(None) => Err((None, bytes)),
            Err(error) => Err((Some(error), bytes)),
        }
    }

    /// Memory of the library's own for a read of so many bytes, to be copied from; none if there is none of that length.
    pub fn passage(&self, len: usize) -> Result<Option<Lent>, VerbsError> {
        if len <= self.chunks.bytes() {
            return self.chunks.take().map(|slot| Some(Lent::Slot(slot)));
        }
        if len >= self.register_from {
            return Ok(None);
        }
        Ok(self.lease(len).map_err(|error| self.refused(error)).ok().map(Lent::Lease))
    }

    fn pin(&self, bytes: BoxBytes, access: Access) -> Result<Lent, BoxBytes> {
        let pinned = Pinned::new(&self.domain, bytes, access).map_err(|(error, bytes)| {
            self.refused(error);
            bytes
        })?;
        self.tally.passing.fetch_add(1, Relaxed);
        Ok(Lent::Pinned(pinned))
    }

    /// Memory for the program, registered as long as it has it.
    pub fn buffer(&self, bytes: usize) -> Result<OfProgram, FabricError> {
        if bytes < LOOKED_UP {
            return OfProgram::plain(bytes);
        }
        let system = |error| FabricError::System {
            what: format!("a buffer of {bytes} bytes"),
            source: std::io::Error::other(error),
        };
        let mut lease = self.lease(bytes).map_err(system)?;
        let mut taken = lease.take();
        taken[..bytes].fill(0);
        Ok(OfProgram::kept(taken, move |bytes| {
            lease.put_back(bytes);
            drop(lease);
        }))
    }

    fn lease(&self, bytes: usize) -> Result<Lease<Pinned>, VerbsError> {
        self.leases.lease(bytes, |size| {
            let none = |_| VerbsError::system("buffers", std::io::ErrorKind::OutOfMemory.into());
            let pinned = Pinned::new(&self.domain, OfProgram::zeroed(size).map_err(none)?, Access::Buffer);
            let mut pinned = pinned.map_err(|(error, _)| error)?.known_by(&self.known);
            for (domain, known) in &*lock(&self.further) {
                pinned.also(domain, known, Access::Buffer).unwrap_or_else(|error| self.refused(error));
            }
            Ok(pinned)
        })
    }

    /// A registration of memory of a window or buffer that holds these bytes, which peers may read.
    pub fn readable(&self, address: u64, bytes: usize) -> Option<Arc<Registered>> {
        let registered = self.known.find(address, bytes as u64).filter(|registered| registered.is_readable())?;
        self.found();
        Some(registered)
    }

    /// Takes note that memory of a message was registered already.
    pub fn found(&self) {
        self.tally.found.fetch_add(1, Relaxed);
    }

    /// Takes note that memory was registered for a message.
    pub fn passed(&self) {
        self.tally.passing.fetch_add(1, Relaxed);
    }

    /// It goes on through slots.
    pub fn refused(&self, error: VerbsError) {
        self.tally.refused.fetch_add(1, Relaxed);
        if !self.tally.told.swap(true, Relaxed) {
            tracing::warn!(%error, "memory of large operations cannot be registered: they are copied");
        }
    }

    /// Takes note that so many bytes were copied to or from memory of the library's own.
    pub fn copied(&self, bytes: usize) {
        self.tally.copied.fetch_add(bytes as u64, Relaxed);
    }

    /// How many were.
    pub fn bytes_copied(&self) -> u64 {
        self.tally.copied.load(Relaxed)
    }

    pub fn registrations(&self) -> Registrations {
        let leased = self.leases.counts();
        let [found, passing, refused] =
            [&self.tally.found, &self.tally.passing, &self.tally.refused].map(|count| count.load(Relaxed));
        Registrations { found, passing, refused, reused: leased.reused, made: leased.made }
    }
}

/// What a request has of this rank's memory until it is complete; free when dropped.
pub(super) enum Lent {
    Slot(Slot),
    Lease(Lease<Pinned>),
    /// Of the program's.
    Pinned(Pinned),
}

impl Lent {
    /// The memory at `offset`, as the adapter names it.
    pub fn piece(&self, offset: usize, bytes: usize) -> Piece {
        match self {
            Lent::Slot(slot) => {
                assert_eq!(offset, 0, "a slot has one piece");
                slot.piece(bytes)
            }
            Lent::Lease(lease) => lease.piece(offset, bytes),
            Lent::Pinned(pinned) => pinned.piece(offset, bytes),
        }
    }

    /// Copies what the adapter brought.
    pub fn read(&self, into: &mut [u8]) {
        match self {
            Lent::Slot(slot) => slot.read(into),
            Lent::Lease(lease) => lease.read(into),
            Lent::Pinned(pinned) => pinned.read(into),
        }
    }
}
