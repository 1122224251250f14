//! Memory of a rank's own, as both sides of a comparison have it: it begins at a page, and whoever makes it touches it.

use bytemuck::{Pod, Zeroable};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

/// Elements from the beginning of a page on.
pub struct Buffer<T> {
    pages: Vec<Page>,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// So many elements, each from its place.
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
