//! Ownership of message buffers as bytes: the unsafe rim of the messages.

use super::progress_engine::must_not_be_in_operation;
use bytemuck::Pod;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use transom_shm_loopback::messages::{Bytes, Lasting, Owner, WireCache};
use transom_windows::Buffer;

/// Buffers that a request can own until it has ended: `Vec<T>`, `Box<[T]>`, `Arc<[T]>`, `&'static [T]`, and
/// [`Buffer<T>`].
///
/// # Examples
/// ```
/// use transom::messages::Tag;
/// transom::threads(2, |world| -> Result<(), transom::Error> {
///     let data: std::sync::Arc<[u32]> = [1, 2, 3].into();
///     let sent = world.isend(1 - world.rank(), Tag::new(0), data.clone());
///     assert_eq!(world.recv(1 - world.rank(), Tag::<u32>::new(0))?.0, *data);
///     sent.wait()?;
///     Ok(())
/// })?.into_iter().collect::<Result<(), _>>()?;
/// # Ok::<(), transom::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "a request cannot own `{Self}` as a buffer of `{T}`",
    note = "pass a `Vec<T>`, `Box<[T]>`, `Arc<[T]>`, `&'static [T]` or `Buffer<T>`, or lend a slice within `world.scope(..)`"
)]
pub trait OwnedBuffer<T>: Parts + Send + 'static {}

impl<T: Pod + Send> OwnedBuffer<T> for Vec<T> {}
impl<T: Pod + Send> OwnedBuffer<T> for Box<[T]> {}
impl<T: Pod + Send + Sync> OwnedBuffer<T> for Arc<[T]> {}
impl<T: Pod + Send + Sync> OwnedBuffer<T> for &'static [T] {}
impl<T: Pod + Send> OwnedBuffer<T> for Buffer<T> {}

/// A buffer that can be taken apart into bytes that the engine owns, and restored from them.
pub trait Parts: Sized {
    /// Passes the buffer to the engine.
    fn hold(self) -> Bytes;
    /// Returns the bytes to send.
    fn view(&self) -> &[u8];
    /// Restores the buffer from the bytes of [`hold`](Self::hold), cut to `received` bytes. `None` if the bytes are of
    /// another type.
    fn back(bytes: Bytes, received: usize) -> Option<Self>;
}

/// A vector that the engine owns.
pub(crate) struct Vector<T>(Vec<T>);

// SAFETY: elements are plain data, nothing but their bytes.
unsafe impl<T: Pod> Send for Vector<T> {}

// SAFETY: moving a vector does not move its elements. Plain data may have any value, and the vector is not used while
// the engine owns it.
unsafe impl<T: Pod> Owner for Vector<T> {
    fn bytes(&mut self) -> (NonNull<u8>, usize, bool) {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.0);
        (NonNull::from(&mut *bytes).cast(), bytes.len(), true)
    }
}

/// Allocates zeroed elements for `bytes` bytes; `None` without memory.
pub(crate) fn vector<T: Pod>(bytes: usize) -> Option<Bytes> {
    let len = if size_of::<T>() == 0 { 0 } else { bytes.div_ceil(size_of::<T>()) };
    bytemuck::allocation::try_zeroed_slice_box(len).ok().map(|elements| Bytes::owned(Vector::<T>(elements.into_vec())))
}

fn elements<T>(bytes: usize) -> usize {
    bytes.checked_div(size_of::<T>()).unwrap_or(0)
}

impl<T: Pod> Parts for Vec<T> {
    fn hold(self) -> Bytes {
        Bytes::owned(Vector(self))
    }

    fn view(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }

    fn back(bytes: Bytes, received: usize) -> Option<Self> {
        let Vector(mut vector) = bytes.into_owner::<Vector<T>>()?;
        vector.truncate(elements::<T>(received));
        Some(vector)
    }
}

impl<T: Pod> Parts for Box<[T]> {
    fn hold(self) -> Bytes {
        self.into_vec().hold()
    }

    fn view(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }

    fn back(bytes: Bytes, received: usize) -> Option<Self> {
        Vec::back(bytes, received).map(Vec::into_boxed_slice)
    }
}

/// A shared buffer, which is only read.
struct Shared<T>(Arc<[T]>);

// SAFETY: this clone of the `Arc` keeps the elements in place; shared elements are immutable.
unsafe impl<T: Pod + Send + Sync> Owner for Shared<T> {
    fn bytes(&mut self) -> (NonNull<u8>, usize, bool) {
        let bytes: &[u8] = bytemuck::cast_slice(&self.0);
        (NonNull::from(bytes).cast(), bytes.len(), false)
    }
}

impl<T: Pod + Send + Sync> Parts for Arc<[T]> {
    fn hold(self) -> Bytes {
        Bytes::owned(Shared(self))
    }

    fn view(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }

    fn back(bytes: Bytes, _: usize) -> Option<Self> {
        bytes.into_owner::<Shared<T>>().map(|shared| shared.0)
    }
}

/// A buffer of static lifetime, which is only read. A type of its own, so that `back` rejects bytes of another owner.
struct Static<T: 'static>(&'static [T]);

// SAFETY: static elements do not move and are immutable.
unsafe impl<T: Pod + Send + Sync> Owner for Static<T> {
    fn bytes(&mut self) -> (NonNull<u8>, usize, bool) {
        let bytes: &[u8] = bytemuck::cast_slice(self.0);
        (NonNull::from(bytes).cast(), bytes.len(), false)
    }
}

impl<T: Pod + Send + Sync> Parts for &'static [T] {
    fn hold(self) -> Bytes {
        Bytes::owned(Static(self))
    }

    fn view(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }

    fn back(bytes: Bytes, _: usize) -> Option<Self> {
        bytes.into_owner::<Static<T>>().map(|held| held.0)
    }
}

/// A buffer that the engine owns.
struct Buffered<T>(Buffer<T>);

// SAFETY: elements are plain data, nothing but their bytes.
unsafe impl<T: Pod> Send for Buffered<T> {}

// SAFETY: moving a buffer does not move its elements. Plain data may have any value, and the buffer is not used while
// the engine owns it.
unsafe impl<T: Pod> Owner for Buffered<T> {
    fn bytes(&mut self) -> (NonNull<u8>, usize, bool) {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.0);
        (NonNull::from(&mut *bytes).cast(), bytes.len(), true)
    }
}

impl<T: Pod> Parts for Buffer<T> {
    fn hold(self) -> Bytes {
        Bytes::owned(Buffered(self))
    }

    fn view(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }

    fn back(bytes: Bytes, _: usize) -> Option<Self> {
        bytes.into_owner::<Buffered<T>>().map(|buffered| buffered.0)
    }
}

/// A persistent buffer. The engine may own some ranges of it while the program uses others.
pub(crate) struct Shares<T> {
    elements: NonNull<[T]>,
    place: Arc<WireCache>,
}

// SAFETY: elements are plain data, nothing but their bytes; the callers of the unsafe methods keep accesses apart.
unsafe impl<T: Pod> Send for Shares<T> {}
// SAFETY: shared references reach elements only through the unsafe methods, whose callers keep accesses apart.
unsafe impl<T: Pod> Sync for Shares<T> {}

impl<T> Drop for Shares<T> {
    fn drop(&mut self) {
        self.place.clear();
        // SAFETY: `new` leaked this box. No part exists any more, since each part keeps an `Arc` of this.
        drop(unsafe { Box::from_raw(self.elements.as_ptr()) });
    }
}

impl<T: Pod> Shares<T> {
    pub fn new(buffer: Vec<T>) -> Arc<Self> {
        let elements = NonNull::from(Box::leak(buffer.into_boxed_slice()));
        Arc::new(Shares { elements, place: Arc::default() })
    }

    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Returns all elements. Exclusive access implies that no part exists.
    pub fn all(&mut self) -> &mut [T] {
        // SAFETY: `new` leaked this box. No part exists, since each part keeps an `Arc` of this.
        unsafe { self.elements.as_mut() }
    }

    fn start(&self, range: &Range<usize>) -> NonNull<T> {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {}", self.len());
        // SAFETY: the range was checked to be inside the box.
        unsafe { self.elements.cast::<T>().add(range.start) }
    }

    /// # Safety
    /// Nothing writes to these elements while the borrow lasts.
    pub unsafe fn read(&self, range: Range<usize>) -> &[T] {
        // SAFETY: the range is inside the box (checked by `start`); the rest is the caller's contract.
        unsafe { std::slice::from_raw_parts(self.start(&range).as_ptr(), range.len()) }
    }

    /// # Safety
    /// Nothing else accesses these elements while the borrow lasts.
    #[expect(clippy::mut_from_ref, reason = "caller's contract")]
    pub unsafe fn write(&self, range: Range<usize>) -> &mut [T] {
        // SAFETY: the range is inside the box (checked by `start`); the rest is the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.start(&range).as_ptr(), range.len()) }
    }

    /// Makes a part of these elements for the engine, to be read or, if `writable`, also written.
    ///
    /// # Safety
    /// Until the part is dropped, nothing else writes to these elements, and nothing else reads them if they are
    /// `writable`.
    pub unsafe fn part(self: &Arc<Self>, range: Range<usize>, writable: bool) -> Share<T> {
        Share { of: self.clone(), range, writable }
    }
}

/// A range of elements of a persistent buffer.
pub(crate) struct Share<T> {
    of: Arc<Shares<T>>,
    range: Range<usize>,
    writable: bool,
}

// SAFETY: the `Arc` keeps the box, whose elements do not move. The caller of `part` keeps accesses apart. Plain data
// may have any value.
unsafe impl<T: Pod> Owner for Share<T> {
    fn bytes(&mut self) -> (NonNull<u8>, usize, bool) {
        (self.of.start(&self.range).cast(), self.range.len() * size_of::<T>(), self.writable)
    }

    fn lasting(&self) -> Option<Lasting> {
        let Shares { elements, place } = &*self.of;
        Some(Lasting { start: elements.cast(), len: elements.len() * size_of::<T>(), place: place.clone() })
    }
}

impl<T: Pod> Share<T> {
    /// Returns the elements to receive into.
    pub fn elements(&mut self) -> &mut [T] {
        assert!(self.writable, "a read-only buffer is no target of a receive");
        // SAFETY: the part is writable, so the caller of `part` lets nothing else access these elements.
        unsafe { self.of.write(self.range.clone()) }
    }
}

impl<T: Pod> Parts for Share<T> {
    fn hold(self) -> Bytes {
        Bytes::owned(self)
    }

    fn view(&self) -> &[u8] {
        // SAFETY: the caller of `part` lets nothing else write to these elements.
        bytemuck::cast_slice(unsafe { self.of.read(self.range.clone()) })
    }

    fn back(bytes: Bytes, _: usize) -> Option<Self> {
        bytes.into_owner()
    }
}

/// Lends the elements of a message that is sent in place.
///
/// # Safety
/// The borrow must last until the engine has dropped the returned handle.
pub(crate) unsafe fn lend<T: Pod>(data: &[T]) -> Bytes {
    must_not_be_in_operation();
    let bytes: &[u8] = bytemuck::cast_slice(data);
    // SAFETY: a shared borrow is immutable, and lasts long enough: caller's contract.
    unsafe { Bytes::lent(NonNull::from(bytes).cast(), bytes.len(), false) }
}

/// Lends the elements that a message is received into.
///
/// # Safety
/// The contract of [`lend`].
pub(crate) unsafe fn lend_mut<T: Pod>(data: &mut [T]) -> Bytes {
    must_not_be_in_operation();
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(data);
    // SAFETY: an exclusive borrow is accessed by nothing else, and lasts long enough: caller's contract. Plain data may
    // have any value.
    unsafe { Bytes::lent(NonNull::from(&mut *bytes).cast(), bytes.len(), true) }
}

/// Restores the slice that [`lend`] lent.
///
/// # Safety
/// The slice was lent for `'s`, as elements of this type.
pub(crate) unsafe fn lent<'s, T: Pod>(bytes: &Bytes) -> Option<&'s [T]> {
    let len = elements::<T>(bytes.len());
    // SAFETY: caller's contract.
    bytes.start().map(|start| unsafe { std::slice::from_raw_parts(start.as_ptr().cast(), len) })
}

/// Restores the slice that [`lend_mut`] lent.
///
/// # Safety
/// The slice was lent for `'s`, as elements of this type; the engine has given it back, and it is restored only once.
pub(crate) unsafe fn lent_mut<'s, T: Pod>(bytes: &Bytes) -> Option<&'s mut [T]> {
    let len = elements::<T>(bytes.len());
    // SAFETY: caller's contract.
    bytes.start().map(|start| unsafe { std::slice::from_raw_parts_mut(start.as_ptr().cast(), len) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Generic code may combine the methods of any two types that implement [`OwnedBuffer`].
    fn as_another<T, A: OwnedBuffer<T>, U, B: OwnedBuffer<U>>(buffer: A) -> Option<B> {
        B::back(buffer.hold(), usize::MAX)
    }

    #[test]
    fn buffer_cast_of_unsuitable_owner_is_none() {
        const WORDS: &[u32] = &[7, 8];
        assert_eq!(as_another::<u32, _, u32, _>(WORDS), Some(WORDS));
        assert_eq!(
            as_another::<u8, _, u8, &'static [u8]>(vec![7_u8; 4096]),
            None,
            "memory of another layout would be freed wrongly"
        );
        assert_eq!(as_another::<u32, _, u8, &'static [u8]>(WORDS), None);
        assert_eq!(as_another::<u8, _, u32, &'static [u32]>(&[1_u8; 8][..]), None, "memory may be misaligned");
        assert_eq!(
            as_another::<u8, Arc<[u8]>, u8, Vec<u8>>([1, 2].into()),
            None,
            "shared memory may have other readers"
        );
        assert_eq!(as_another::<u8, _, u8, Box<[u8]>>(vec![1, 2]).as_deref(), Some(&[1, 2][..]));
    }
}
