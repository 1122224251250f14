//! User memory: memory that the program had before there was a window on it.

use bytemuck::Pod;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// Bytes that stay where they are, allocated and initialised, until the program has them back: what a provider registers.
///
/// Only a window on memory of the program's own makes one, from elements that it takes and does not touch again
/// before every rank has said that it will not either ([`Window::free`](crate::Window::free)); if that is never said,
/// they are leaked. So a provider may hand their address out.
///
/// # Examples
/// ```
/// let fabric = transom_shm_loopback::Loopback::alone()?;
/// let mine = vec![1.5; 100];
/// let mut window = transom_windows::Window::new(&fabric, 0, transom_windows::Flavor::Create(mine), 0)?;
/// window.lock_exclusive(0)?.put(3, &[2.5])?;
/// assert_eq!(window.free()?[3], 2.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct UserMemory {
    start: NonNull<u8>,
    bytes: usize,
}

impl UserMemory {
    /// The first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// How many bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Elements that others may access, until they are taken back.
pub(crate) struct UserBuffer<T>(ManuallyDrop<Vec<T>>);

impl<T: Pod> UserBuffer<T> {
    pub fn new(mut elements: Vec<T>) -> (Self, UserMemory) {
        let bytes = bytemuck::cast_slice_mut::<T, u8>(&mut elements);
        let memory = UserMemory { bytes: bytes.len(), start: NonNull::from(bytes).cast() };
        (UserBuffer(ManuallyDrop::new(elements)), memory)
    }

    /// To be called when nobody accesses them any more.
    pub fn take_back(self) -> Vec<T> {
        ManuallyDrop::into_inner(self.0)
    }
}
