//! User memory: memory that the program owned before a window was made on it.

use crate::Buffer;
use bytemuck::Pod;
use std::any::Any;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// Allocated and initialised bytes with a fixed address, valid until the program gets them back. A provider registers
/// them.
///
/// Only a window on user memory makes one, from elements that it takes over. It does not access the elements itself
/// again until every rank has agreed not to ([`Window::free`](crate::Window::free)); if that never happens, they are
/// leaked. So a provider may give out their address.
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

    /// The number of bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// An owner of elements that a program lends to a window ([`Window::on`](crate::Window::on)), such as a mapped file, or
/// memory of another library. A `Box<[T]>` becomes a `Vec<T>` by `into_vec`, which costs nothing either way.
///
/// # Safety
/// The elements stay where they are, initialised, even if the owner is moved, until it is dropped or used otherwise
/// than through [`elements`](Self::elements), which returns the same each time. During that time the elements are
/// accessed only through the address that `elements` returned.
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
/// // SAFETY: no other code has the address.
/// unsafe impl Send for Foreign {}
/// // SAFETY: a shared reference gives no access.
/// unsafe impl Sync for Foreign {}
/// // SAFETY: the elements are on the heap, and no other code has their address.
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
/// // SAFETY: only this program accesses the memory again.
/// assert_eq!(unsafe { back.elements().as_ref() }[3], 5);
/// # Ok::<(), transom_windows::Error>(())
/// ```
pub unsafe trait Owner: Send + Sync + 'static {
    /// The type of the elements.
    type Element: Pod;

    /// The address of the elements.
    fn elements(&mut self) -> NonNull<[Self::Element]>;
}

// SAFETY: the elements of a vector are on the heap, and only its owner has their address.
unsafe impl<T: Pod + Send + Sync> Owner for Vec<T> {
    type Element = T;

    fn elements(&mut self) -> NonNull<[T]> {
        NonNull::from(&mut self[..])
    }
}

// SAFETY: a buffer's memory has a fixed address, and only its owner accesses it.
unsafe impl<T: Pod + Send + Sync> Owner for Buffer<T> {
    type Element = T;

    fn elements(&mut self) -> NonNull<[T]> {
        NonNull::from(&mut self[..])
    }
}

/// Elements that other ranks may access until they are taken back.
pub(crate) struct UserBuffer<T>(ManuallyDrop<Lent<T>>);

/// The owner of lent elements.
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

    /// Returns the elements. No rank may access them any more.
    pub fn take_back(self) -> Lent<T> {
        ManuallyDrop::into_inner(self.0)
    }
}
