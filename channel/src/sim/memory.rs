//! Simulated memory, whose bytes are described rather than stored: messages of megabytes cost nothing.

use crate::wire::WireMemory;
use std::cell::RefCell;
use std::rc::Rc;

/// Handle on simulated memory. A clone refers to the same memory.
#[derive(Debug, Clone)]
pub struct SimMemory {
    bytes: Rc<RefCell<Vec<Run>>>,
    length: usize,
    pub(super) is_slot: bool,
}

/// A run of bytes with one description.
#[derive(Debug, Clone)]
pub(super) struct Run {
    at: usize,
    length: usize,
    what: RunContent,
}

#[derive(Debug, Clone)]
enum RunContent {
    Zero,
    /// Bytes of message `seed`, from this offset on.
    Pattern(u64, usize),
    Bytes(Rc<[u8]>, usize),
}

impl RunContent {
    /// The same content from `by` bytes later on.
    #[inline]
    fn skip(&self, by: usize) -> RunContent {
        match self {
            RunContent::Zero => RunContent::Zero,
            RunContent::Pattern(seed, from) => RunContent::Pattern(*seed, from + by),
            RunContent::Bytes(bytes, from) => RunContent::Bytes(bytes.clone(), from + by),
        }
    }

    #[inline]
    fn follows(&self, before: &Run) -> bool {
        match (&before.what, self) {
            (RunContent::Zero, RunContent::Zero) => true,
            (RunContent::Pattern(a, from), RunContent::Pattern(b, to)) => a == b && from + before.length == *to,
            _ => false,
        }
    }

    #[inline]
    fn byte(&self, at: usize) -> u8 {
        match self {
            RunContent::Zero => 0,
            RunContent::Pattern(seed, from) => {
                ((seed ^ (from + at) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
            }
            RunContent::Bytes(bytes, from) => bytes[from + at],
        }
    }
}

impl SimMemory {
    /// Memory filled with zeros.
    #[inline]
    pub fn zero(length: usize) -> SimMemory {
        SimMemory::of(length, RunContent::Zero)
    }

    /// Memory filled with the bytes of message `seed`.
    #[inline]
    pub fn pattern(seed: u64, length: usize) -> SimMemory {
        SimMemory::of(length, RunContent::Pattern(seed, 0))
    }

    /// Memory with a copy of these bytes.
    #[inline]
    pub fn bytes(bytes: &[u8]) -> SimMemory {
        SimMemory::of(bytes.len(), RunContent::Bytes(bytes.into(), 0))
    }

    #[inline]
    fn of(length: usize, what: RunContent) -> SimMemory {
        let runs = if length == 0 { Vec::new() } else { vec![Run { at: 0, length, what }] };
        SimMemory { bytes: Rc::new(RefCell::new(runs)), length, is_slot: false }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns true if the length is 0.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Seed of the message that the first `length` bytes begin; `None` if they match no single message.
    #[inline]
    pub fn whose(&self, length: usize) -> Option<u64> {
        match self.slice(0, length)[..] {
            [Run { what: RunContent::Pattern(seed, 0), .. }] => Some(seed),
            _ => None,
        }
    }

    /// Overwrites all bytes, as a program may do with memory that belongs to it again.
    #[inline]
    pub fn spoil(&self) {
        self.write(0, &[Run { at: 0, length: self.length, what: RunContent::Zero }]);
    }

    /// Flips one bit.
    #[inline]
    pub(super) fn flip(&self, bit: usize) {
        let mut byte = [0];
        self.read(bit / 8, &mut byte);
        self.write(bit / 8, &said(&[byte[0] ^ 1 << (bit % 8)], 0));
    }

    #[inline]
    pub(super) fn is(&self, other: &SimMemory) -> bool {
        Rc::ptr_eq(&self.bytes, &other.bytes)
    }

    /// The runs of a range, with offsets relative to it.
    #[inline]
    pub(super) fn slice(&self, at: usize, length: usize) -> Vec<Run> {
        assert!(at + length <= self.length, "{length} bytes from {at} on are not in memory of {}", self.length);
        let runs = self.bytes.borrow();
        let first = runs.partition_point(|run| run.at + run.length <= at);
        let mut slice: Vec<Run> = Vec::new();
        for run in runs[first..].iter().take_while(|run| run.at < at + length) {
            let from = run.at.max(at);
            let to = (run.at + run.length).min(at + length);
            let what = run.what.skip(from - run.at);
            match slice.last_mut() {
                Some(before) if what.follows(before) => before.length += to - from,
                _ => slice.push(Run { at: from - at, length: to - from, what }),
            }
        }
        slice
    }

    /// Writes runs returned by [`slice`](Self::slice).
    #[inline]
    pub(super) fn write(&self, at: usize, slice: &[Run]) {
        let length: usize = slice.iter().map(|run| run.length).sum();
        assert!(at + length <= self.length, "{length} bytes from {at} on are not in memory of {}", self.length);
        if length == 0 {
            return;
        }
        let mut runs = self.bytes.borrow_mut();
        let first = runs.partition_point(|run| run.at + run.length <= at);
        let last = runs.partition_point(|run| run.at < at + length);
        let mut new: Vec<Run> = Vec::with_capacity(slice.len() + 2);
        let mut push = |run: Run| match new.last_mut() {
            Some(before) if run.what.follows(before) => before.length += run.length,
            _ => new.push(run),
        };
        let before = &runs[first];
        if before.at < at {
            push(Run { length: at - before.at, ..before.clone() });
        }
        slice.iter().for_each(|run| push(Run { at: at + run.at, ..run.clone() }));
        let after = &runs[last - 1];
        let end = after.at + after.length;
        if end > at + length {
            let by = at + length - after.at;
            push(Run { at: at + length, length: end - at - length, what: after.what.skip(by) });
        }
        // Merge the run before with the start of the written runs where they are contiguous.
        if first > 0 && new[0].what.follows(&runs[first - 1]) {
            let head = new.remove(0);
            runs[first - 1].length += head.length;
        }
        runs.splice(first..last, new);
    }
}

impl WireMemory for SimMemory {
    #[inline]
    fn read(&self, at: usize, into: &mut [u8]) {
        for run in self.slice(at, into.len()) {
            (0..run.length).for_each(|i| into[run.at + i] = run.what.byte(i));
        }
    }

    #[inline]
    fn copy(&self, at: usize, length: usize, to: &Self, to_at: usize) {
        to.write(to_at, &self.slice(at, length));
    }

    #[inline]
    fn word(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        self.read(at, &mut word);
        u64::from_le_bytes(word)
    }
}

/// One run of `bytes` at offset `at`.
#[inline]
pub(super) fn said(bytes: &[u8], at: usize) -> Vec<Run> {
    if bytes.is_empty() {
        return Vec::new();
    }
    vec![Run { at, length: bytes.len(), what: RunContent::Bytes(bytes.into(), 0) }]
}

/// Concatenates two slices.
#[inline]
pub(super) fn chain(mut first: Vec<Run>, second: Vec<Run>) -> Vec<Run> {
    let at = length(&first);
    first.extend(second.into_iter().map(|run| Run { at: run.at + at, ..run }));
    first
}

/// Splits a slice in two.
#[inline]
pub(super) fn cut(slice: &[Run], at: usize) -> (Vec<Run>, Vec<Run>) {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for run in slice {
        let here = at.saturating_sub(run.at).min(run.length);
        if here > 0 {
            first.push(Run { length: here, ..run.clone() });
        }
        if here < run.length {
            let from = (run.at + here) - at;
            second.push(Run { at: from, length: run.length - here, what: run.what.skip(here) });
        }
    }
    (first, second)
}

#[inline]
pub(super) fn length(slice: &[Run]) -> usize {
    slice.iter().map(|run| run.length).sum()
}
