//! User memory: memory that the program had before there was a window on it.

use crate::Buffer;
use bytemuck::Pod;
use std::any::Any;
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
/// // In `transom`: `let mut window = world.create(mine)?;`
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
    fn of<T>(elements: NonNull<[T]>) -> Self {
        UserMemory { start: elements.cast(), bytes: elements.len() * size_of::<T>() }
    }

    /// The first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// How many bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// What owns elements that a program lends a window ([`Window::on`](crate::Window::on)): a mapped file, say, or memory of
/// another library. Of a `Box<[T]>` make a `Vec<T>`, by `into_vec`, which costs nothing, nor does the way back.
///
/// # Safety
/// The elements stay where they are, initialised, however the owner is moved, until it is dropped or used by something else than
/// [`elements`](Self::elements), which gives the same each time; and so long nobody accesses them but who was given their address.
///
/// # Examples
/// ```
/// // In `transom`: `let mut window = world.create_on(Foreign::new(), 0)?;`
/// use std::ptr::NonNull;
/// use transom_windows::{Owner, Window};
///
/// /// Memory that another library allocated, and this one frees.
/// struct Foreign(NonNull<[u64]>);
/// # impl Foreign {
/// #     fn new() -> Self { Foreign(NonNull::from(Box::leak(vec![0; 8].into_boxed_slice()))) }
/// # }
/// # impl Drop for Foreign {
/// #     fn drop(&mut self) {
/// #         // SAFETY: a box was made a pointer, and is dropped once.
/// #         drop(unsafe { Box::from_raw(self.0.as_ptr()) })
/// #     }
/// # }
/// // SAFETY: nobody else has the address.
/// unsafe impl Send for Foreign {}
/// // SAFETY: it can only be lent.
/// unsafe impl Sync for Foreign {}
/// // SAFETY: they are on the heap, where nobody else knows of them.
/// unsafe impl Owner for Foreign {
///     type Element = u64;
///     fn elements(&mut self) -> NonNull<[u64]> {
///         self.0
///     }
/// }
///
/// let fabric = transom_shm_loopback::Loopback::alone()?;
/// let mut window = Window::on(&fabric, 0, Foreign::new(), 0)?;
/// window.lock_exclusive(0)?.put(3, &[5])?;
/// let mut back: Foreign = window.free_as()?;
/// // SAFETY: it is this program's alone again.
/// assert_eq!(unsafe { back.elements().as_ref() }[3], 5);
/// # Ok::<(), transom_windows::Error>(())
/// ```
pub unsafe trait Owner: Send + Sync + 'static {
    /// What the elements are.
    type Element: Pod;

    /// Where the elements are.
    fn elements(&mut self) -> NonNull<[Self::Element]>;
}

// SAFETY: the elements of a vector are on the heap, and its owner alone knows of them.
unsafe impl<T: Pod + Send + Sync> Owner for Vec<T> {
    type Element = T;

    fn elements(&mut self) -> NonNull<[T]> {
        NonNull::from(&mut self[..])
    }
}

// SAFETY: a buffer's memory stays where it is, by its own promise, and is its owner's alone.
unsafe impl<T: Pod + Send + Sync> Owner for Buffer<T> {
    type Element = T;

    fn elements(&mut self) -> NonNull<[T]> {
        NonNull::from(&mut self[..])
    }
}

/// Elements that others may access, until they are taken back.
pub(crate) struct UserBuffer<T>(ManuallyDrop<Lent<T>>);

/// Who has them.
pub(crate) enum Lent<T> {
    Vec(Vec<T>),
    /// An [`Owner`].
    Owner(Box<dyn Any + Send + Sync>),
}

impl<T: Pod> UserBuffer<T> {
    pub fn new(mut elements: Vec<T>) -> (Self, UserMemory) {
        let memory = UserMemory::of(NonNull::from(&mut elements[..]));
        (UserBuffer(ManuallyDrop::new(Lent::Vec(elements))), memory)
    }

    pub fn of(owner: impl Owner<Element = T>) -> (Self, UserMemory, usize) {
        let mut owner = Box::new(owner);
        let elements = owner.elements();
        (UserBuffer(ManuallyDrop::new(Lent::Owner(owner))), UserMemory::of(elements), elements.len())
    }

    /// To be called when nobody accesses them any more.
    pub fn take_back(self) -> Lent<T> {
        ManuallyDrop::into_inner(self.0)
    }
}
