//! Registered memory: slots for copied transfers, registrations of large transfers, keys of regions, and memory whose
//! release is deferred.

mod buffer;
mod deferred_free;
mod keys;
mod pinned;
mod registration_pool;
mod registration_table;
mod slots;

pub(super) use buffer::Buffer;
pub(super) use deferred_free::{Deferred, Detached};
pub(super) use keys::Keys;
pub(super) use pinned::Pinned;
pub(super) use registration_pool::{Lease, RegistrationPool};
pub(super) use registration_table::Entry;
pub(super) use slots::{Slot, Slots};

use super::VerbsError;
use super::counts::Registrations;
use super::sys::{Access, Domain, Registered};
use super::wr::Piece;
use registration_table::RegistrationTable;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use transom_launch::lock;
use transom_windows::{BoxBytes, BufferMemory, FabricError};

/// Chunk size for puts and gets through slots, in bytes.
const CHUNK: usize = 32 << 10;
/// Chunks registered at a time: 1 MiB, because the limit of locked memory may be low.
const CHUNKS: usize = 32;
/// Largest message in a slot, in bytes, and the number of such slots registered at a time: 264 KiB.
const MESSAGE: usize = (8 << 10) + 192;
const MESSAGES: usize = 32;
/// Largest put into a ring or pipe through a slot, in bytes, and the number of such slots registered at a time: 512
/// KiB.
const PUT: usize = 64 << 10;
const PUTS: usize = 8;
/// Slots for results of atomics registered at a time.
const CELLS: usize = 512;
/// Words on which peers count themselves registered at a time.
const COUNTS: usize = 512;
/// Bytes kept registered for reuse by buffers and reads.
const KEPT: usize = 16 << 20;
/// Smallest transfer that looks up a registration, in bytes. Below it a copy costs little more, and a put need not wait
/// for its bytes to arrive.
const LOOKED_UP: usize = CHUNK;

/// The registered memory of a rank.
pub(super) struct RegisteredMemory {
    domain: Arc<Domain>,
    /// Slots through which puts and gets are copied.
    pub chunks: Arc<Slots>,
    /// Slots for messages.
    messages: Arc<Slots>,
    /// Slots for puts into rings and pipes that exceed a message slot.
    puts: Arc<Slots>,
    /// Slots for results of atomics.
    pub cells: Arc<Slots>,
    /// Words on which peers that use a region of this rank count themselves.
    pub counts: Arc<Slots>,
    /// Pool for the program's buffers and for reads of medium size.
    pool: Arc<RegistrationPool<Pinned>>,
    /// Registrations of windows and of the program's buffers.
    table: Arc<RegistrationTable<Registered>>,
    /// Domains and tables of the further rails, with which buffers are registered too.
    further: Mutex<Vec<Further>>,
    /// Smallest transfer whose memory is registered for it, in bytes.
    register_from: usize,
    tally: Tally,
}

/// Domain and table of a further rail.
type Further = (Arc<Domain>, Arc<RegistrationTable<Registered>>);

/// Counters of transfers.
#[derive(Default)]
struct Tally {
    found: AtomicU64,
    passing: AtomicU64,
    refused: AtomicU64,
    copied: AtomicU64,
    /// The log has reported refused registrations.
    told: AtomicBool,
}

/// Memory that a program lends for a call, with its registration.
pub(super) struct Passing {
    pub address: u64,
    pub registered: Arc<Registered>,
}

impl RegisteredMemory {
    pub fn new(domain: &Arc<Domain>, register_from: usize) -> Self {
        RegisteredMemory {
            domain: domain.clone(),
            chunks: Slots::new(domain, Access::Local, CHUNK, CHUNKS),
            messages: Slots::new(domain, Access::Source, MESSAGE, MESSAGES),
            puts: Slots::new(domain, Access::Source, PUT, PUTS),
            cells: Slots::new(domain, Access::Local, 8, CELLS),
            counts: Slots::new(domain, Access::Words, 8, COUNTS),
            pool: RegistrationPool::new(KEPT),
            table: RegistrationTable::new(),
            further: Mutex::default(),
            register_from,
            tally: Tally::default(),
        }
    }

    /// The slots for a message of `bytes` bytes, or for a put of as many into a ring or pipe.
    pub fn slots_for(&self, bytes: usize) -> &Arc<Slots> {
        if bytes <= MESSAGE { &self.messages } else { &self.puts }
    }

    /// Enters a registration into the table; its memory must be the program's to use.
    pub fn know(&self, registered: &Arc<Registered>) -> Entry<Registered> {
        self.table.add(registered.address, registered.bytes() as u64, registered.clone())
    }

    /// The registration of memory lent for a call: an existing one, or for large memory a new one for the call. `None`
    /// if slots are to be used instead.
    ///
    /// # Safety
    /// The memory must stay valid until the result is dropped. Unless `access` is that of a source, the adapter may
    /// write to it.
    #[inline]
    pub unsafe fn lent(&self, start: NonNull<u8>, bytes: usize, access: Access) -> Option<Passing> {
        // SAFETY: caller's contract.
        if bytes < LOOKED_UP { None } else { unsafe { self.lent_large(start, bytes, access) } }
    }

    /// Like [`lent`](Self::lent).
    unsafe fn lent_large(&self, start: NonNull<u8>, bytes: usize, access: Access) -> Option<Passing> {
        let address = start.as_ptr().expose_provenance() as u64;
        if let Some(registered) = self.table.find(address, bytes as u64) {
            self.tally.found.fetch_add(1, Relaxed);
            return Some(Passing { address, registered });
        }
        if bytes < self.register_from {
            return None;
        }
        // SAFETY: caller's contract.
        let registered = unsafe { Registered::new(&self.domain, start, bytes, access) };
        let registered = registered.map_err(|error| self.refused(error)).ok()?;
        self.tally.passing.fetch_add(1, Relaxed);
        Some(Passing { address, registered: Arc::new(registered) })
    }

    /// The registration on this rail of memory that another rail has registered: an existing one, or one for the
    /// operation.
    ///
    /// # Safety
    /// The contract of [`lent`](Self::lent) applies, whether the memory is lent or owned by the library.
    pub unsafe fn part(&self, address: u64, bytes: usize, access: Access) -> Option<Arc<Registered>> {
        if let Some(registered) = self.table.find(address, bytes as u64) {
            return Some(registered);
        }
        let start = NonNull::new(std::ptr::with_exposed_provenance_mut(address as usize))?;
        // SAFETY: caller's contract.
        let registered = unsafe { Registered::new(&self.domain, start, bytes, access) };
        registered.map(Arc::new).map_err(|error| self.refused(error)).ok()
    }

    /// Registers buffers with this further rail too from now on.
    pub fn also(&self, further: &RegisteredMemory) {
        let further = (further.domain.clone(), further.table.clone());
        lock(&self.further).push(further);
    }

    /// Registers owned bytes as the source of a write; returns them if slots are to be used instead.
    pub fn source(&self, bytes: BoxBytes) -> Result<Lent, BoxBytes> {
        if bytes.len() < self.register_from { Err(bytes) } else { self.pin(bytes, Access::Source) }
    }

    /// Prepares the destination of a read into owned bytes. The bytes come back if the read goes to other memory, from
    /// which they must be copied, or if no memory is available.
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

    /// Memory of the library for a read of `len` bytes, to be copied from; `None` if there is none of that length.
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

    /// A buffer for the program, registered as long as the program has it.
    pub fn buffer(&self, bytes: usize) -> Result<BufferMemory, FabricError> {
        if bytes < LOOKED_UP {
            return BufferMemory::plain(bytes);
        }
        let system = |error| FabricError::System {
            what: format!("registering a buffer of {bytes} bytes"),
            source: std::io::Error::other(error),
        };
        let mut lease = self.lease(bytes).map_err(system)?;
        let mut taken = lease.take();
        taken[..bytes].fill(0);
        Ok(BufferMemory::kept(taken, move |bytes| {
            lease.put_back(bytes);
            drop(lease);
        }))
    }

    fn lease(&self, bytes: usize) -> Result<Lease<Pinned>, VerbsError> {
        self.pool.lease(bytes, |size| {
            let none = |_| VerbsError::system("buffers", std::io::ErrorKind::OutOfMemory.into());
            let pinned = Pinned::new(&self.domain, BufferMemory::zeroed(size).map_err(none)?, Access::Buffer);
            let mut pinned = pinned.map_err(|(error, _)| error)?.listed_in(&self.table);
            for (domain, table) in &*lock(&self.further) {
                pinned.also(domain, table, Access::Buffer).unwrap_or_else(|error| self.refused(error));
            }
            Ok(pinned)
        })
    }

    /// The registration of a window or buffer that covers these bytes and is readable by peers.
    pub fn readable(&self, address: u64, bytes: usize) -> Option<Arc<Registered>> {
        let registered = self.table.find(address, bytes as u64).filter(|registered| registered.is_readable())?;
        self.found();
        Some(registered)
    }

    /// Counts a message whose memory was already registered.
    pub fn found(&self) {
        self.tally.found.fetch_add(1, Relaxed);
    }

    /// Counts a registration for a message.
    pub fn passed(&self) {
        self.tally.passing.fetch_add(1, Relaxed);
    }

    /// Counts a refused registration; the transfer uses slots.
    pub fn refused(&self, error: VerbsError) {
        self.tally.refused.fetch_add(1, Relaxed);
        if !self.tally.told.swap(true, Relaxed) {
            tracing::warn!(%error, "memory of large operations cannot be registered; they are copied through slots");
        }
    }

    /// Counts bytes copied to or from memory of the library.
    pub fn copied(&self, bytes: usize) {
        self.tally.copied.fetch_add(bytes as u64, Relaxed);
    }

    /// Number of bytes copied so far.
    pub fn bytes_copied(&self) -> u64 {
        self.tally.copied.load(Relaxed)
    }

    pub fn registrations(&self) -> Registrations {
        let leased = self.pool.counts();
        let [found, passing, refused] =
            [&self.tally.found, &self.tally.passing, &self.tally.refused].map(|count| count.load(Relaxed));
        Registrations { found, passing, refused, reused: leased.reused, made: leased.made }
    }
}

/// Memory of this rank that a request holds until it is complete; freed when dropped.
pub(super) enum Lent {
    Slot(Slot),
    Lease(Lease<Pinned>),
    /// The program's bytes.
    Pinned(Pinned),
}

impl Lent {
    /// The memory at `offset`, with the adapter's key.
    pub fn piece(&self, offset: usize, bytes: usize) -> Piece {
        match self {
            Lent::Slot(slot) => {
                assert_eq!(offset, 0, "a slot has a single piece");
                slot.piece(bytes)
            }
            Lent::Lease(lease) => lease.piece(offset, bytes),
            Lent::Pinned(pinned) => pinned.piece(offset, bytes),
        }
    }

    /// Copies bytes that the adapter has written.
    pub fn read(&self, into: &mut [u8]) {
        match self {
            Lent::Slot(slot) => slot.read(into),
            Lent::Lease(lease) => lease.read(into),
            Lent::Pinned(pinned) => pinned.read(into),
        }
    }
}
