//! Buffers of one collective at a rank. The `unsafe` code of collectives is kept here.

use bytemuck::Zeroable;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use transom_collective::{PlanBuffer, Span};
use transom_launch::lock;
use transom_shm_loopback::messages::{Bytes, Owner};

/// The buffers behind the plan's places. Its creator keeps or lends them for the lifetime of this value.
pub(super) struct CallBuffers {
    given: Bytes,
    data: Bytes,
    scratch: Bytes,
    /// Element size in bytes.
    pub element: usize,
}

/// One unit of scratch memory, aligned for any element type ([`ALIGNED`]).
#[derive(Clone, Copy, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Scratch memory that a rank reuses from one collective to the next: mapping new pages costs more than copying their
/// bytes.
#[derive(Default)]
pub(super) struct ScratchPool(Mutex<Vec<Line>>);

/// Most bytes that the pool retains.
const KEPT: usize = 32 << 20;

impl ScratchPool {
    /// Takes at least `bytes` bytes with unspecified contents. `None` if the system has no memory for them. Each
    /// collective in flight has memory of its own.
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

// SAFETY: the elements of a vector keep their address when the vector is moved; all byte values are valid, and the
// vector is not aliased.
unsafe impl Owner for Scratch {
    fn bytes(&mut self) -> (NonNull<u8>, usize, bool) {
        (NonNull::from(&mut *self.lines).cast(), self.lines.len() * size_of::<Line>(), true)
    }
}

/// Largest supported alignment of elements, in bytes.
pub(super) const ALIGNED: usize = align_of::<Line>();

impl CallBuffers {
    /// Creates the memory of a collective. `given` is only read, `data` may be written; they must not overlap.
    /// `scratch` comes from a [`ScratchPool`].
    pub fn new(given: Bytes, data: Bytes, element: usize, scratch: Bytes) -> CallBuffers {
        CallBuffers { given, data, scratch, element }
    }

    /// Address and length in bytes of the elements of `span`.
    ///
    /// # Panics
    /// If the span is out of bounds; plans name only existing elements.
    fn at(&self, span: Span) -> (NonNull<u8>, usize) {
        let buffer = match span.place {
            PlanBuffer::Given => &self.given,
            PlanBuffer::Data => &self.data,
            PlanBuffer::Scratch => &self.scratch,
        };
        let (start, size) = (buffer.start(), buffer.len());
        let (from, len) = (span.start * self.element, span.len * self.element);
        assert!(from <= size && len <= size - from, "{span:?} of {size} bytes");
        let start = start.expect("buffers of collectives are in this process's memory");
        // SAFETY: within the buffer, as checked above.
        (unsafe { start.add(from) }, len)
    }

    /// The elements of `span`, for sending.
    pub fn read(&self, span: Span) -> &[u8] {
        let (start, len) = self.at(span);
        // SAFETY: initialised bytes within a buffer that outlives `self`. A span that is being received into is not
        // sent in the same round; all other writes need `&mut self`.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// Lends the elements of `span` to the engine, for sending.
    ///
    /// # Safety
    /// `self` must outlive the handle, and the elements must not be written while the handle exists.
    pub unsafe fn lend(&self, span: Span) -> Bytes {
        let (start, len) = self.at(span);
        // SAFETY: caller's contract.
        unsafe { Bytes::lent(start, len, false) }
    }

    /// Lends the elements of `span` to the engine, for receiving.
    ///
    /// # Safety
    /// `self` must outlive the handle, and the elements must not be accessed while the handle exists.
    pub unsafe fn lend_mut(&mut self, span: Span) -> Bytes {
        assert!(span.place != PlanBuffer::Given, "the source buffer is read-only");
        let (start, len) = self.at(span);
        // SAFETY: caller's contract; the buffer is writable.
        unsafe { Bytes::lent(start, len, true) }
    }

    /// Copies elements. Neither span may be lent to the engine.
    pub fn copy(&mut self, from: Span, to: Span) {
        self.pair(to, from, |to, from| to.copy_from_slice(from));
    }

    /// Calls `act` with the elements of `into` to write and those of `with` to read. The spans must not overlap or be
    /// lent to the engine.
    pub fn pair<R>(&mut self, into: Span, with: Span, act: impl FnOnce(&mut [u8], &[u8]) -> R) -> R {
        assert!(into.place != PlanBuffer::Given, "the source buffer is read-only");
        let ((into, into_len), (with, with_len)) = (self.at(into), self.at(with));
        let (a, b) = (into.as_ptr() as usize, with.as_ptr() as usize);
        assert!(a + into_len <= b || b + with_len <= a || into_len.min(with_len) == 0, "elements of a fold overlap");
        // SAFETY: initialised bytes of buffers that outlive `self`. The two ranges do not overlap, and `&mut self`
        // excludes other accesses.
        let (into, with) = unsafe {
            (
                std::slice::from_raw_parts_mut(into.as_ptr(), into_len),
                std::slice::from_raw_parts(with.as_ptr(), with_len),
            )
        };
        act(into, with)
    }

    /// The buffer that holds the result.
    pub fn into_data(self) -> Bytes {
        self.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_scratch_is_reused_and_large_is_freed() {
        let pool = Arc::new(ScratchPool::default());
        let start = |bytes| pool.take(bytes).and_then(|bytes| bytes.start()).map(|start| start.addr());
        let first = start(200);
        assert_eq!(start(1), first);
        let (one, other) = (pool.take(10).unwrap(), pool.take(10).unwrap());
        assert!(one.start().map(|start| start.addr()) == first && other.start() != one.start());
        drop((one, other));
        assert_eq!(start(256), first, "larger scratch was not kept");
        assert_eq!((start(0), lock(&pool.0).len()), (start(0), 4));
        assert!(start(KEPT + 1).is_some());
        assert_eq!(lock(&pool.0).len(), 0, "scratch above the limit was kept");
        assert!(start(usize::MAX / 2).is_none());
    }
}
