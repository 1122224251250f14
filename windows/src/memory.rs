//! Memory of a rank that its provider may register, in whole pages.

use crate::FabricError;
use bytemuck::allocation::{BoxBytes, try_zeroed_slice_box};
use bytemuck::{Pod, Zeroable};
use std::ops::{Deref, DerefMut};

/// The memory that a provider returns for a [`Buffer`](crate::Buffer): bytes that begin on a page.
///
/// # Examples
/// ```
/// use transom_windows::BufferMemory;
/// let (give_back, back) = std::sync::mpsc::channel();
/// let memory = BufferMemory::kept(BufferMemory::zeroed(100)?, move |bytes| give_back.send(bytes).unwrap());
/// assert_eq!(memory.len(), 4096);
/// drop(memory);
/// assert_eq!(back.recv().unwrap().len(), 4096);
/// # Ok::<(), transom_windows::FabricError>(())
/// ```
pub struct BufferMemory(Box<dyn Bytes>);

/// An owner of the bytes.
trait Bytes: DerefMut<Target = [u8]> + Send + Sync {}

impl<B: DerefMut<Target = [u8]> + Send + Sync> Bytes for B {}

/// Bytes that are passed to `home` when they are dropped.
struct LoanedBytes<H: FnOnce(BoxBytes)> {
    bytes: BoxBytes,
    home: Option<H>,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

impl BufferMemory {
    /// Memory that the provider does not register.
    ///
    /// # Errors
    /// The errors of [`zeroed`](Self::zeroed).
    ///
    /// # Examples
    /// ```
    /// assert_eq!(transom_windows::BufferMemory::plain(1)?[..], [0; 4096]);
    /// # Ok::<(), transom_windows::FabricError>(())
    /// ```
    pub fn plain(bytes: usize) -> Result<Self, FabricError> {
        Ok(BufferMemory(Box::new(Self::zeroed(bytes)?)))
    }

    /// Memory that is passed to `home` when it is dropped.
    ///
    /// # Examples
    /// See [`BufferMemory`].
    pub fn kept(bytes: BoxBytes, home: impl FnOnce(BoxBytes) + Send + Sync + 'static) -> Self {
        BufferMemory(Box::new(LoanedBytes { bytes, home: Some(home) }))
    }

    /// Memory of any owner, which is dropped with this; it must begin on a page.
    ///
    /// # Safety
    /// `bytes` dereferences to the same memory each time, until it is dropped.
    ///
    /// # Examples
    /// ```
    /// use transom_windows::BufferMemory;
    /// // SAFETY: boxed bytes stay where they are.
    /// let memory = unsafe { BufferMemory::of(BufferMemory::zeroed(100)?) };
    /// assert_eq!(memory[99], 0);
    /// # Ok::<(), transom_windows::FabricError>(())
    /// ```
    pub unsafe fn of(bytes: impl DerefMut<Target = [u8]> + Send + Sync + 'static) -> Self {
        BufferMemory(Box::new(bytes))
    }

    /// Allocates at least `bytes` zeroed bytes, in whole pages.
    ///
    /// # Errors
    /// [`FabricError::System`] if no memory is available.
    ///
    /// # Examples
    /// See [`BufferMemory`].
    pub fn zeroed(bytes: usize) -> Result<BoxBytes, FabricError> {
        let pages = try_zeroed_slice_box::<Page>(bytes.div_ceil(size_of::<Page>()));
        pages.map(BoxBytes::from).map_err(|()| no_memory(bytes))
    }
}

impl Deref for BufferMemory {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for BufferMemory {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl<H: FnOnce(BoxBytes)> Deref for LoanedBytes<H> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<H: FnOnce(BoxBytes)> DerefMut for LoanedBytes<H> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl<H: FnOnce(BoxBytes)> Drop for LoanedBytes<H> {
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
