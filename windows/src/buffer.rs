//! Memory for operations that a provider keeps ready: registered with the adapter, where there is one.

use crate::{Fabric, FabricError, Memory};
use bytemuck::Pod;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// Elements of this rank alone that puts and gets are best done from and to: over a network the adapter knows their memory as
/// long as they are there, so that large operations on them, or on parts of them, neither copy nor register. On one machine
/// other processes map those of 4 KiB and more: a window on one is as quick as a window that was allocated, and both ends of a
/// long message (64 KiB) copy without the kernel. What is dropped goes back to the provider, which may keep some for the next.
///
/// # Examples
/// ```
/// // In `transom`: `let mut buffer = world.buffer::<u64>(100_000)?;`
/// # let fabric = transom_shm_loopback::Loopback::alone()?;
/// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 100_000)?;
/// use transom_windows::Buffer;
/// let mut buffer = Buffer::<u64>::new(&fabric, 100_000)?; // once
/// let epoch = window.lock_shared(0)?;
/// for round in 0..3 {
///     buffer.fill(round);
///     epoch.put(0, &buffer)?;
///     epoch.flush()?;
///     epoch.get(0, &mut buffer[..50_000])?;
///     assert_eq!(buffer[49_999], round);
/// }
/// # Ok::<(), transom_windows::Error>(())
/// ```
pub struct Buffer<T> {
    memory: Memory,
    /// Of the elements; the memory may have more.
    bytes: usize,
    elements: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// So many zeroed elements. Not collective.
    ///
    /// # Errors
    /// [`FabricError::System`] if there is no memory, or none that may be registered.
    pub fn new<F: Fabric>(fabric: &F, len: usize) -> Result<Self, FabricError> {
        let bytes = len.saturating_mul(size_of::<T>());
        let memory = fabric.buffer(bytes)?;
        if memory.len() < bytes || !memory.as_ptr().addr().is_multiple_of(align_of::<T>()) {
            let why =
                format!("memory of {} bytes at {:p} is no buffer for {len} elements", memory.len(), memory.as_ptr());
            return Err(FabricError::Misuse { why });
        }
        Ok(Buffer { memory, bytes, elements: PhantomData })
    }
}

impl<T: Pod> Deref for Buffer<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&self.memory[..self.bytes])
    }
}

impl<T: Pod> DerefMut for Buffer<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.memory[..self.bytes])
    }
}

impl<T: Pod + std::fmt::Debug> std::fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
