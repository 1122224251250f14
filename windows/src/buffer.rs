//! Buffers for operations, kept ready by the provider: registered with the adapter, where there is one.

use crate::{BufferMemory, Fabric, FabricError};
use bytemuck::Pod;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// A local buffer of elements from and to which puts and gets are fastest. Over a network its memory stays registered
/// with the adapter, so large operations on it, or on parts of it, neither copy nor register. On one machine other
/// processes map buffers of 4 KiB and more: a window on a buffer is as fast as an allocated window, and both ends of a
/// long message (64 KiB) copy without the kernel. A dropped buffer goes back to the provider, which may keep it for the
/// next.
///
/// # Examples
/// ```
/// // In `transom`: `let mut buffer = world.buffer::<u64>(100_000)?;`
/// # let fabric = transom_shm_loopback::Loopback::alone()?;
/// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 100_000)?;
/// use transom_windows::Buffer;
/// let mut buffer = Buffer::<u64>::new(&fabric, 100_000)?; // made once
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
    memory: BufferMemory,
    /// Bytes of the elements; the memory may be longer.
    bytes: usize,
    elements: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// Creates a buffer of `len` zeroed elements. Not collective.
    ///
    /// # Errors
    /// [`FabricError::System`] if no memory is available, or none that may be registered.
    pub fn new<F: Fabric>(fabric: &F, len: usize) -> Result<Self, FabricError> {
        let bytes = len.saturating_mul(size_of::<T>());
        let memory = fabric.buffer(bytes)?;
        if memory.len() < bytes || !memory.as_ptr().addr().is_multiple_of(align_of::<T>()) {
            let why = format!(
                "memory of {} bytes at {:p} is too short or misaligned for {len} elements",
                memory.len(),
                memory.as_ptr()
            );
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
