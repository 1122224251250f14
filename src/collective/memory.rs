//! The memory of a rank in one collective: the rim.

use bytemuck::Zeroable;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use transom_collective::{Place, Span};
use transom_launch::lock;
use transom_shm_loopback::messages::{Bytes, Owner};

/// What the plan's places are. Who makes it keeps, or lends, the buffers as long as it lives.
pub(super) struct Memory {
    given: Bytes,
    data: Bytes,
    scratch: Bytes,
    /// Bytes of an element.
    pub element: usize,
}

/// As well aligned as any element.
#[derive(Clone, Copy, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Scratch memory that a rank keeps from one collective to the next, since new pages cost more than a copy of their bytes.
#[derive(Default)]
pub(super) struct ScratchPool(Mutex<Vec<Line>>);

/// Bytes that the pool keeps at most.
const KEPT: usize = 32 << 20;

impl ScratchPool {
    /// Takes at least `bytes` bytes, of any value. `None` if the system has no memory for them. Each collective in flight has memory of
    /// its own.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Option<Bytes> {
        let needed = bytes.div_ceil(ALIGNED);
        let kept = if needed > 0 { std::mem::take(&mut *lock(&self.0)) } else { Vec::new() };
        let lines = match kept.len() >= needed {
            true => kept,
            false => {
                drop(kept);
                bytemuck::allocation::try_zeroed_vec(needed).ok()?
            }
        };
        Some(Bytes::owned(Scratch { lines, pool: self.clone() }))
    }
}

struct Scratch {
    lines: Vec<Line>,
    pool: Arc<ScratchPool>,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.lines.is_empty() || self.lines.len() > KEPT / ALIGNED {
            return;
        }
        let mut kept = lock(&self.pool.0);
        if kept.len() < self.lines.len() {
            *kept = std::mem::take(&mut self.lines);
        }
    }
}

// SAFETY: a vector's elements stay where they are when it is moved; they are bytes, of any value, and nobody else has them.
unsafe impl Owner for Scratch {
    fn bytes(&mut self) -> (NonNull<u8>, usize, bool) {
        (NonNull::from(&mut *self.lines).cast(), self.lines.len() * size_of::<Line>(), true)
    }
}

/// The most that elements may be aligned to.
pub(super) const ALIGNED: usize = align_of::<Line>();

impl Memory {
    /// `given` is only read, `data` may be written; they do not overlap. `scratch` is from a [`ScratchPool`].
    pub fn new(given: Bytes, data: Bytes, element: usize, scratch: Bytes) -> Memory {
        Memory { given, data, scratch, element }
    }

    /// Where the elements begin, and how many bytes they are.
    ///
    /// # Panics
    /// If they are outside: a plan names what is there.
    fn at(&self, span: Span) -> (NonNull<u8>, usize) {
        let buffer = match span.place {
            Place::Given => &self.given,
            Place::Data => &self.data,
            Place::Scratch => &self.scratch,
        };
        let (start, size) = (buffer.start(), buffer.len());
        let (from, len) = (span.start * self.element, span.len * self.element);
        assert!(from <= size && len <= size - from, "{span:?} of {size} bytes");
        let start = start.expect("buffers of collectives are in this process's memory");
        // SAFETY: within the buffer, as was just checked.
        (unsafe { start.add(from) }, len)
    }

    /// Elements to be sent.
    pub fn read(&self, span: Span) -> &[u8] {
        let (start, len) = self.at(span);
        // SAFETY: initialised bytes within a buffer that is kept or lent for as long as this; what is being received into is
        // not sent in the same round, and else only `&mut self` writes.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// Elements to be sent, for the engine.
    ///
    /// # Safety
    /// This outlives the handle, and the elements are not written meanwhile.
    pub unsafe fn lend(&self, span: Span) -> Bytes {
        let (start, len) = self.at(span);
        // SAFETY: by the caller's word.
        unsafe { Bytes::lent(start, len, false) }
    }

    /// Elements to be received, for the engine.
    ///
    /// # Safety
    /// This outlives the handle, and the elements are not used meanwhile.
    pub unsafe fn lend_mut(&mut self, span: Span) -> Bytes {
        assert!(span.place != Place::Given, "what is given is only read");
        let (start, len) = self.at(span);
        // SAFETY: by the caller's word; of a buffer that may be written.
        unsafe { Bytes::lent(start, len, true) }
    }

    /// Copies elements. None of them is lent.
    pub fn copy(&mut self, from: Span, to: Span) {
        self.pair(to, from, |to, from| to.copy_from_slice(from));
    }

    /// Calls `act` with elements to write and elements to read, which do not overlap. None of them is lent.
    pub fn pair<R>(&mut self, into: Span, with: Span, act: impl FnOnce(&mut [u8], &[u8]) -> R) -> R {
        assert!(into.place != Place::Given, "what is given is only read");
        let ((into, into_len), (with, with_len)) = (self.at(into), self.at(with));
        let (a, b) = (into.as_ptr() as usize, with.as_ptr() as usize);
        assert!(a + into_len <= b || b + with_len <= a || into_len.min(with_len) == 0, "elements of a fold overlap");
        // SAFETY: initialised bytes of buffers that are kept or lent for as long as this, apart from each other; nobody else
        // uses them.
        let (into, with) = unsafe {
            (
                std::slice::from_raw_parts_mut(into.as_ptr(), into_len),
                std::slice::from_raw_parts(with.as_ptr(), with_len),
            )
        };
        act(into, with)
    }

    /// The buffer of the result.
    pub fn into_data(self) -> Bytes {
        self.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_is_kept_unless_it_is_large() {
        let pool = Arc::new(ScratchPool::default());
        let start = |bytes| pool.take(bytes).and_then(|bytes| bytes.start()).map(|start| start.addr());
        let first = start(200);
        assert_eq!(start(1), first);
        let (one, other) = (pool.take(10).unwrap(), pool.take(10).unwrap());
        assert!(one.start().map(|start| start.addr()) == first && other.start() != one.start());
        drop((one, other));
        assert_eq!(start(256), first, "the longer is kept");
        assert_eq!((start(0), lock(&pool.0).len()), (start(0), 4));
        assert!(start(KEPT + 1).is_some());
        assert_eq!(lock(&pool.0).len(), 0, "so much is not kept");
        assert!(start(usize::MAX / 2).is_none());
    }
}
