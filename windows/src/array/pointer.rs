//! Pointers to elements, as plain data.

use super::layout::Layout;
use crate::Error;
use crate::array_error::{ArrayError, MOST};
use bytemuck::{Pod, Zeroable};
use std::fmt;
use std::marker::PhantomData;

/// A pointer to an element of a [`GlobalArray`](super::GlobalArray) of `T`, at any owner. It is one word of plain data,
/// the same at every rank, so it can itself be an element, or a part of one. Zeroed memory is a null pointer.
///
/// [`Access::ptr`](super::Access::ptr) makes a pointer, and every call on one element accepts one. The call checks it:
/// a pointer that is null, of another array or beyond the end is an [`ArrayError::Pointer`]. (An array is identified by
/// the number of its window modulo 65,536; every team numbers its own windows.)
///
/// A pointer that ranks race to change should be stored as the `u64` of [`to_bits`](Self::to_bits), on which
/// `compare_and_swap` works.
///
/// # Examples
/// A list that all ranks push to:
/// ```
/// use transom::{Distribution, GlobalArray, GlobalPtr};
/// #[derive(Clone, Copy)]
/// #[repr(C)]
/// struct Node { value: u64, next: GlobalPtr<Node> }
/// // SAFETY: two words without padding, of which each may have any value.
/// unsafe impl bytemuck::Zeroable for Node {}
/// unsafe impl bytemuck::Pod for Node {}
///
/// transom::threads(4, |world| -> Result<(), transom::Error> {
///     let mut nodes: GlobalArray<Node> = world.array([4], Distribution::Block)?;
///     let mut head: GlobalArray<u64> = world.array([1], Distribution::Block)?;
///     let (nodes, head) = (nodes.lock_all()?, head.lock_all()?);
///
///     let node = nodes.ptr(world.rank())?;
///     let mut next = head.get_one(0)?;
///     loop {
///         nodes.put_one(node, Node { value: world.rank() as u64, next: GlobalPtr::from_bits(next) })?;
///         nodes.flush()?; // a rank that finds it sees all of it
///         match head.compare_and_swap(0, next, node.to_bits())? {
///             found if found == next => break,
///             found => next = found,
///         }
///     }
///     world.barrier()?;
///
///     let (mut sum, mut at) = (0, GlobalPtr::from_bits(head.get_one(0)?));
///     while !at.is_null() {
///         let node: Node = nodes.get_one(at)?;
///         (sum, at) = (sum + node.value, node.next);
///     }
///     assert_eq!(sum, 0 + 1 + 2 + 3);
///     Ok(())
/// })?.into_iter().collect::<Result<(), _>>()?;
/// # Ok::<(), transom::Error>(())
/// ```
#[repr(transparent)]
pub struct GlobalPtr<T> {
    /// Upper 16 bits: the number of the array. Lower 48 bits: the element's row-major position plus 1.
    bits: u64,
    element: PhantomData<fn() -> T>,
}

impl<T> GlobalPtr<T> {
    /// The null pointer.
    pub const NULL: Self = GlobalPtr { bits: 0, element: PhantomData };

    /// True for the null pointer.
    pub fn is_null(self) -> bool {
        self.bits == 0
    }

    /// The pointer's word; 0 for the null pointer.
    pub fn to_bits(self) -> u64 {
        self.bits
    }

    /// The pointer with this word. The pointer is checked when it is used.
    ///
    /// # Examples
    /// ```
    /// use transom::GlobalPtr;
    /// assert_eq!(GlobalPtr::<f64>::from_bits(0), GlobalPtr::NULL);
    /// ```
    pub fn from_bits(bits: u64) -> Self {
        GlobalPtr { bits, element: PhantomData }
    }

    /// A pointer to an existing element.
    pub(super) fn to<const D: usize>(array: u32, layout: &Layout<D>, index: [usize; D]) -> Self {
        Self::from_bits(u64::from(array) << 48 | (layout.number(index) as u64 + 1))
    }

    /// The index of the element, after all checks.
    pub(super) fn follow<const D: usize>(self, array: u32, layout: &Layout<D>) -> Result<[usize; D], Error> {
        let error = |why| Err(ArrayError::Pointer { array, pointer: self.bits, why }.into());
        if self.is_null() {
            return error("it is null");
        }
        if self.bits >> 48 != u64::from(array) & 0xffff {
            return error("it belongs to another array");
        }
        let number = (self.bits & MOST as u64).checked_sub(1);
        match number.and_then(|number| layout.numbered(number as usize)) {
            Some(index) => Ok(index),
            None => error("there is no such element"),
        }
    }
}

// SAFETY: one word, any value of which is valid; `T` is only named.
unsafe impl<T: 'static> Zeroable for GlobalPtr<T> {}
// SAFETY: as above.
unsafe impl<T: 'static> Pod for GlobalPtr<T> {}

// Implemented by hand, since a derive would require the same of `T`.

impl<T> Clone for GlobalPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for GlobalPtr<T> {}

impl<T> PartialEq for GlobalPtr<T> {
    fn eq(&self, other: &Self) -> bool {
        self.bits == other.bits
    }
}

impl<T> Eq for GlobalPtr<T> {}

impl<T> std::hash::Hash for GlobalPtr<T> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.bits.hash(state);
    }
}

impl<T> Default for GlobalPtr<T> {
    fn default() -> Self {
        Self::NULL
    }
}

impl<T> fmt::Debug for GlobalPtr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.bits >> 48, self.bits & MOST as u64) {
            (0, 0) => f.write_str("GlobalPtr(null)"),
            (array, 0) => write!(f, "GlobalPtr(array {array}, nothing)"),
            (array, place) => write!(f, "GlobalPtr(array {array}, element {})", place - 1),
        }
    }
}
