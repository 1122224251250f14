//! Pointers to elements that are plain data.

use super::layout::Layout;
use crate::Error;
use crate::array_error::{ArrayError, MOST};
use bytemuck::{Pod, Zeroable};
use std::fmt;
use std::marker::PhantomData;

/// A pointer to an element of a [`GlobalArray`](super::GlobalArray) of `T`, whoever owns it: one word of plain data, the
/// same at every rank, so that it can itself be an element, or a part of one. Zeroed memory is a null pointer.
///
/// [`Access::ptr`](super::Access::ptr) makes one, and every call on one element takes one. It is checked when it is used,
/// whatever wrote it: a pointer that is null, of another array or beyond the end is an [`ArrayError::Pointer`]. (Arrays
/// are told apart by the number of their window, modulo 65,536; windows of another team are numbered anew.)
///
/// Where ranks race to change a pointer, let it be a `u64`, which [`to_bits`](Self::to_bits) makes of it:
/// `compare_and_swap` works on these.
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
///         nodes.flush()?; // whoever finds it finds it whole
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
    /// The number of the array in the upper 16 bits, the place of the element in row-major order and 1 in the others.
    bits: u64,
    element: PhantomData<fn() -> T>,
}

impl<T> GlobalPtr<T> {
    /// The pointer to nothing.
    pub const NULL: Self = GlobalPtr { bits: 0, element: PhantomData };

    /// Whether it points to nothing.
    pub fn is_null(self) -> bool {
        self.bits == 0
    }

    /// The word that it is; 0 if it is null.
    pub fn to_bits(self) -> u64 {
        self.bits
    }

    /// The pointer of a word, which is checked when the pointer is used.
    ///
    /// # Examples
    /// ```
    /// use transom::GlobalPtr;
    /// assert_eq!(GlobalPtr::<f64>::from_bits(0), GlobalPtr::NULL);
    /// ```
    pub fn from_bits(bits: u64) -> Self {
        GlobalPtr { bits, element: PhantomData }
    }

    /// To an element that is there.
    pub(super) fn to<const D: usize>(array: u32, layout: &Layout<D>, index: [usize; D]) -> Self {
        Self::from_bits(u64::from(array) << 48 | (layout.number(index) as u64 + 1))
    }

    /// The index of the element.
    pub(super) fn follow<const D: usize>(self, array: u32, layout: &Layout<D>) -> Result<[usize; D], Error> {
        let error = |why| Err(ArrayError::Pointer { array, pointer: self.bits, why }.into());
        if self.is_null() {
            return error("it is null");
        }
        if self.bits >> 48 != u64::from(array) & 0xffff {
            return error("it is of another array");
        }
        let number = (self.bits & MOST as u64).checked_sub(1);
        match number.and_then(|number| layout.numbered(number as usize)) {
            Some(index) => Ok(index),
            None => error("there is no such element"),
        }
    }
}

// SAFETY: one word, which may have any value; a type that is only named.
unsafe impl<T: 'static> Zeroable for GlobalPtr<T> {}
// SAFETY: as above.
unsafe impl<T: 'static> Pod for GlobalPtr<T> {}

// By hand, for a derive would ask the same of `T`.

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
