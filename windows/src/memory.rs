//! Bytes of a rank that a provider may know, and whole pages of them.

use crate::FabricError;
use bytemuck::allocation::{BoxBytes, try_zeroed_slice_box};
use bytemuck::{Pod, Zeroable};
use std::ops::{Deref, DerefMut};

/// What a provider gives for a [`Buffer`](crate::Buffer): bytes from the beginning of a page on.
///
/// # Examples
/// ```
/// use transom_windows::Memory;
/// let (give_back, back) = std::sync::mpsc::channel();
/// let memory = Memory::kept(Memory::zeroed(100)?, move |bytes| give_back.send(bytes).unwrap());
/// assert_eq!(memory.len(), 4096);
/// drop(memory);
/// assert_eq!(back.recv().unwrap().len(), 4096);
/// # Ok::<(), transom_windows::FabricError>(())
/// ```
pub struct Memory {
    bytes: BoxBytes,
    /// Where they go when this is dropped.
    home: Option<Home>,
}

type Home = Box<dyn FnOnce(BoxBytes) + Send + Sync>;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

impl Memory {
    /// Memory that nobody but its owner knows.
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed).
    ///
    /// # Examples
    /// ```
    /// assert_eq!(transom_windows::Memory::plain(1)?[..], [0; 4096]);
    /// # Ok::<(), transom_windows::FabricError>(())
    /// ```
    pub fn plain(bytes: usize) -> Result<Self, FabricError> {
        Ok(Memory { bytes: Self::zeroed(bytes)?, home: None })
    }

    /// Memory that goes home when it is dropped.
    ///
    /// # Examples
    /// See [`Memory`].
    pub fn kept(bytes: BoxBytes, home: impl FnOnce(BoxBytes) + Send + Sync + 'static) -> Self {
        Memory { bytes, home: Some(Box::new(home)) }
    }

    /// At least so many zeroed bytes, of whole pages.
    ///
    /// # Errors
    /// [`FabricError::System`] if there is no memory.
    ///
    /// # Examples
    /// See [`Memory`].
    pub fn zeroed(bytes: usize) -> Result<BoxBytes, FabricError> {
        let pages = try_zeroed_slice_box::<Page>(bytes.div_ceil(size_of::<Page>()));
        pages.map(BoxBytes::from).map_err(|()| no_memory(bytes))
    }
}

impl Deref for Memory {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Memory {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home(std::mem::replace(&mut self.bytes, BoxBytes::from(Box::<[u8]>::default())));
        }
    }
}

#[cold]
fn no_memory(size: usize) -> FabricError {
    let what = format!("a buffer for operations, of {size} bytes");
    FabricError::System { what, source: std::io::ErrorKind::OutOfMemory.into() }
}
