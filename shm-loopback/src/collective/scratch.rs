//! Private memory that begins at a cache line.

/// Grows, and keeps what it has.
#[derive(Default)]
pub(super) struct Scratch(Vec<Line>);

#[derive(Clone)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Scratch {
    /// Twice so many bytes; the second begin at a cache line if these are whole lines.
    #[inline]
    pub fn two(&mut self, len: usize) -> (&mut [u8], &mut [u8]) {
        self.bytes(2 * len).split_at_mut(len)
    }

    /// So many bytes, whatever is in them.
    #[inline]
    pub fn bytes(&mut self, len: usize) -> &mut [u8] {
        let lines = len.div_ceil(64);
        if self.0.len() < lines {
            self.0.resize(lines, Line([0; 64]));
        }
        // SAFETY: so many lines are there, each of 64 initialised bytes without gaps.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), len) }
    }
}
