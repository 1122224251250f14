//! Where messages are received, as the program has it before and after.

use super::hold::{Parts, Share, lend_mut, lent_mut};
use bytemuck::Pod;
use transom_channel::Space;
use transom_shm_loopback::messages::Bytes;

/// Memory that one message is received into.
pub(crate) trait Landing: Parts {
    /// Of which it has some.
    type Element: Pod;
    /// What the program has of it afterwards.
    type Back;
    fn room(&mut self) -> &mut [Self::Element];
    /// So many elements have come at most.
    fn came(self, len: usize) -> Self::Back;
}

impl<T: Pod> Landing for Vec<T> {
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

impl<T: Pod> Landing for Share<T> {
    type Element = T;
    /// The program finds it in the buffer.
    type Back = ();

    fn room(&mut self) -> &mut [T] {
        self.elements()
    }

    fn came(self, _: usize) {}
}

/// As many elements as a short message has, made when it has come.
pub(crate) struct Fresh<T>(pub Vec<T>);

impl<T: Pod> Space for Fresh<T> {
    #[inline]
    fn room(&mut self, length: usize) -> Option<&mut [u8]> {
        // What are no whole elements, or for what there is no memory, is a request's to tell of.
        let len = length.checked_div(size_of::<T>()).filter(|len| len * size_of::<T>() == length)?;
        self.0 = bytemuck::allocation::try_zeroed_vec(len).ok()?;
        Some(bytemuck::cast_slice_mut(&mut self.0))
    }
}

/// Elements that a scope lends.
pub(crate) struct Lent<'s, T>(&'s mut [T]);

impl<'s, T> Lent<'s, T> {
    /// # Safety
    /// The borrow lasts until the engine has given back what it holds.
    pub unsafe fn new(into: &'s mut [T]) -> Self {
        Lent(into)
    }
}

impl<T: Pod> Parts for Lent<'_, T> {
    fn hold(self) -> Bytes {
        // SAFETY: by the word of who made this.
        unsafe { lend_mut(self.0) }
    }

    fn view(&self) -> &[u8] {
        bytemuck::cast_slice(self.0)
    }

    fn back(bytes: Bytes, received: usize) -> Option<Self> {
        // SAFETY: `hold` lent it; the engine has given it back.
        let all = unsafe { lent_mut(&bytes) }?;
        Some(Lent(Lent(all).came(received.checked_div(size_of::<T>()).unwrap_or(0))))
    }
}

impl<'s, T: Pod> Landing for Lent<'s, T> {
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
