//! Slots: pieces of registered memory of one size, lent to operations whose data are copied through the library's
//! memory.

use super::Buffer;
use crate::VerbsError;
use crate::sys::{Access, Domain};
use crate::wr::{Piece, RemoteAddress};
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, Mutex, MutexGuard};
use transom_launch::lock;

/// Slots of one size. Locked to take and return a slot, not during copies or registration.
pub(crate) struct Slots {
    domain: Arc<Domain>,
    access: Access,
    /// Bytes per slot.
    bytes: usize,
    /// Slots registered at a time.
    each: usize,
    pool: Mutex<Pool>,
}

#[derive(Default)]
struct Pool {
    buffers: Vec<Arc<Buffer>>,
    free: Vec<(Arc<Buffer>, usize)>,
}

/// A slot on loan. It is free again when dropped, which must not happen before the adapter is done with it.
pub(crate) struct Slot {
    buffer: Option<Arc<Buffer>>,
    offset: usize,
    home: Arc<Slots>,
}

impl Slots {
    pub fn new(domain: &Arc<Domain>, access: Access, bytes: usize, each: usize) -> Arc<Self> {
        Arc::new(Slots { domain: domain.clone(), access, bytes, each, pool: Mutex::default() })
    }

    /// Bytes per slot.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A free slot, without registering more memory.
    pub fn take_free(self: &Arc<Self>) -> Option<Slot> {
        let (buffer, offset) = self.pool().free.pop()?;
        Some(Slot { buffer: Some(buffer), offset, home: self.clone() })
    }

    /// A free slot; registers more memory if there is none.
    pub fn take(self: &Arc<Self>) -> Result<Slot, VerbsError> {
        loop {
            if let Some(slot) = self.take_free() {
                return Ok(slot);
            }
            let buffer = Arc::new(Buffer::new(&self.domain, self.bytes * self.each, self.access)?);
            let mut pool = self.pool();
            pool.free.extend((0..self.each).rev().map(|slot| (buffer.clone(), slot * self.bytes)));
            pool.buffers.push(buffer);
        }
    }

    /// Returns whether no slot has been registered yet.
    pub fn is_empty(&self) -> bool {
        self.pool().buffers.is_empty()
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        lock(&self.pool)
    }
}

impl Slot {
    fn buffer(&self) -> &Buffer {
        self.buffer.as_ref().expect("present until dropped")
    }

    /// The first bytes of the slot, with the adapter's key.
    pub fn piece(&self, bytes: usize) -> Piece {
        assert!(bytes <= self.home.bytes, "the piece fits into the slot");
        self.buffer().piece(self.offset, bytes)
    }

    /// The first word of the slot, with the key for peers.
    pub fn place(&self) -> RemoteAddress {
        let buffer = self.buffer();
        RemoteAddress { address: buffer.address() + self.offset as u64, key: buffer.remote_key() }
    }

    /// The value of the first word, which peers change.
    pub fn count(&self) -> u64 {
        self.buffer().word(self.offset).load(Acquire)
    }

    pub fn write(&self, source: &[u8]) {
        assert!(source.len() <= self.home.bytes, "the bytes fit into the slot");
        self.buffer().write(self.offset, source);
    }

    /// Lets `fill` write the first bytes in place.
    pub fn fill(&self, bytes: usize, fill: impl FnOnce(&mut [u8])) {
        assert!(bytes <= self.home.bytes, "the bytes fit into the slot");
        let start = self.buffer().start(self.offset);
        // SAFETY: these bytes belong to the slot, whose holder owns them, and no request accesses them.
        fill(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), bytes) });
    }

    pub fn read(&self, into: &mut [u8]) {
        assert!(into.len() <= self.home.bytes, "the bytes fit into the slot");
        self.buffer().read(self.offset, into);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.home.pool().free.push((buffer, self.offset));
        }
    }
}
