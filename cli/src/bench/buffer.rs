//! Page-aligned private memory of a rank, identical on both sides of a comparison. The rank that allocates it touches
//! it first.

use bytemuck::{Pod, Zeroable};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

/// A page-aligned sequence of elements.
pub struct Buffer<T> {
    pages: Vec<Page>,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// A buffer of `len` elements, each computed from its index.
    pub fn new(len: usize, element: impl Fn(usize) -> T) -> Self {
        let pages = (len * size_of::<T>()).div_ceil(size_of::<Page>());
        let mut buffer = Buffer { pages: vec![Page::zeroed(); pages], len, elements: PhantomData };
        buffer.iter_mut().enumerate().for_each(|(at, place)| *place = element(at));
        buffer
    }
}

impl<T: Pod> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &bytemuck::cast_slice(&self.pages)[..self.len]
    }
}

impl<T: Pod> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.pages)[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_starts_at_page_and_holds_its_elements() {
        for len in [0, 1, 511, 512, 513, 5000] {
            let mut buffer = Buffer::new(len, |at| at as u64);
            assert_eq!(buffer.as_ptr() as usize % 4096, 0);
            assert!(buffer.iter().copied().eq(0..len as u64));
            buffer.fill(7);
            assert_eq!(buffer.to_vec(), vec![7; len]);
        }
    }
}
