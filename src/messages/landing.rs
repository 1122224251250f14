//! Receive buffers, as the program passes them and gets them back.

use super::hold::{Parts, Share, lend_mut, lent_mut};
use bytemuck::Pod;
use transom_channel::RecvBuf;
use transom_shm_loopback::messages::Bytes;

/// Memory that one message is received into.
pub(crate) trait RecvInto: Parts {
    /// Type of the elements.
    type Element: Pod;
    /// Value that the program gets back.
    type Back;
    fn room(&mut self) -> &mut [Self::Element];
    /// Converts the buffer after a receive of at most `len` elements.
    fn came(self, len: usize) -> Self::Back;
}

impl<T: Pod> RecvInto for Vec<T> {
    type Element = T;
    type Back = Self;

    fn room(&mut self) -> &mut [T] {
        self
    }

    fn came(mut self, len: usize) -> Self {
        self.truncate(len);
        self
    }
}

impl<T: Pod> RecvInto for Share<T> {
    type Element = T;
    /// The program reads the persistent buffer instead.
    type Back = ();

    fn room(&mut self) -> &mut [T] {
        self.elements()
    }

    fn came(self, _: usize) {}
}

/// A vector for a short message, allocated when the length of the message is known.
pub(crate) struct Fresh<T>(pub Vec<T>);

impl<T: Pod> RecvBuf for Fresh<T> {
    #[inline]
    fn room(&mut self, length: usize) -> Option<&mut [u8]> {
        // A request reports lengths that are no multiple of the element size, and a lack of memory.
        let len = length.checked_div(size_of::<T>()).filter(|len| len * size_of::<T>() == length)?;
        self.0 = bytemuck::allocation::try_zeroed_vec(len).ok()?;
        Some(bytemuck::cast_slice_mut(&mut self.0))
    }
}

/// A slice that a scope lends.
pub(crate) struct Lent<'s, T>(&'s mut [T]);

impl<'s, T> Lent<'s, T> {
    /// # Safety
    /// The borrow must last until the engine has given back the bytes of `hold`.
    pub unsafe fn new(into: &'s mut [T]) -> Self {
        Lent(into)
    }
}

impl<T: Pod> Parts for Lent<'_, T> {
    fn hold(self) -> Bytes {
        // SAFETY: contract of the caller of `new`.
        unsafe { lend_mut(self.0) }
    }

    fn view(&self) -> &[u8] {
        bytemuck::cast_slice(self.0)
    }

    fn back(bytes: Bytes, received: usize) -> Option<Self> {
        // SAFETY: `hold` lent the slice, and the engine has given it back.
        let all = unsafe { lent_mut(&bytes) }?;
        Some(Lent(Lent(all).came(received.checked_div(size_of::<T>()).unwrap_or(0))))
    }
}

impl<'s, T: Pod> RecvInto for Lent<'s, T> {
    type Element = T;
    type Back = &'s mut [T];

    fn room(&mut self) -> &mut [T] {
        self.0
    }

    fn came(self, len: usize) -> &'s mut [T] {
        let all = self.0.len();
        &mut self.0[..len.min(all)]
    }
}
