//! Pieces of registered memory, all of one size, that operations borrow: what travels through memory of the library's own
//! is copied in and out of them.

use super::Buffer;
use crate::VerbsError;
use crate::sys::{Access, Domain};
use crate::wr::{Piece, Place};
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, Mutex, MutexGuard};
use transom_launch::lock;

/// Slots of one size. Locked to take one and to give it back, not while one is copied or memory is registered.
pub(crate) struct Slots {
    domain: Arc<Domain>,
    access: Access,
    /// Bytes of each.
    bytes: usize,
    /// How many are registered at a time.
    each: usize,
    pool: Mutex<Pool>,
}

#[derive(Default)]
struct Pool {
    buffers: Vec<Arc<Buffer>>,
    free: Vec<(Arc<Buffer>, usize)>,
}

/// One that somebody has. Free again when dropped: not before the adapter is done with it.
pub(crate) struct Slot {
    buffer: Option<Arc<Buffer>>,
    offset: usize,
    home: Arc<Slots>,
}

impl Slots {
    pub fn new(domain: &Arc<Domain>, access: Access, bytes: usize, each: usize) -> Arc<Self> {
        Arc::new(Slots { domain: domain.clone(), access, bytes, each, pool: Mutex::default() })
    }

    /// Bytes of a slot.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// One that is free, if there is one without more memory.
    pub fn take_free(self: &Arc<Self>) -> Option<Slot> {
        let (buffer, offset) = self.pool().free.pop()?;
        Some(Slot { buffer: Some(buffer), offset, home: self.clone() })
    }

    /// One that is free; of more memory if need be.
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

    /// Whether none has been taken yet.
    pub fn is_empty(&self) -> bool {
        self.pool().buffers.is_empty()
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        lock(&self.pool)
    }
}

impl Slot {
    fn buffer(&self) -> &Buffer {
        self.buffer.as_ref().expect("until dropped")
    }

    /// Its first bytes, as the adapter names them.
    pub fn piece(&self, bytes: usize) -> Piece {
        assert!(bytes <= self.home.bytes, "a piece of its slot");
        self.buffer().piece(self.offset, bytes)
    }

    /// Its first word, as peers name it.
    pub fn place(&self) -> Place {
        let buffer = self.buffer();
        Place { address: buffer.address() + self.offset as u64, key: buffer.remote_key() }
    }

    /// Its first word, as peers left it.
    pub fn count(&self) -> u64 {
        self.buffer().word(self.offset).load(Acquire)
    }

    pub fn write(&self, source: &[u8]) {
        assert!(source.len() <= self.home.bytes, "a piece of its slot");
        self.buffer().write(self.offset, source);
    }

    /// Has its first bytes written where they are.
    pub fn fill(&self, bytes: usize, fill: impl FnOnce(&mut [u8])) {
        assert!(bytes <= self.home.bytes, "a piece of its slot");
        let start = self.buffer().start(self.offset);
        // SAFETY: of this slot, which whoever has it has alone; nothing is under way there.
        fill(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), bytes) });
    }

    pub fn read(&self, into: &mut [u8]) {
        assert!(into.len() <= self.home.bytes, "a piece of its slot");
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
