//! Private memory that begins at a cache line.

/// Grows on demand and never shrinks.
#[derive(Default)]
pub(super) struct Scratch(Vec<Line>);

#[derive(Clone)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Scratch {
    /// Returns two slices of `len` bytes. The second begins at a cache line if `len` is a multiple of 64.
    #[inline]
    pub fn two(&mut self, len: usize) -> (&mut [u8], &mut [u8]) {
        self.bytes(2 * len).split_at_mut(len)
    }

    /// Returns `len` bytes with unspecified contents.
    #[inline]
    pub fn bytes(&mut self, len: usize) -> &mut [u8] {
        let lines = len.div_ceil(64);
        if self.0.len() < lines {
            self.0.resize(lines, Line([0; 64]));
        }
        // SAFETY: the vector has at least `lines` lines, each of 64 initialised bytes without padding.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), len) }
    }
}
