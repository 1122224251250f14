//! Elements that a fabric's 64-bit atomics can work on, and the operations built on them.

use bytemuck::Pod;

/// What `fetch_and_op` does with an element and an operand.
///
/// # Examples
/// ```
/// use transom_windows::{Atomic, Op};
/// assert_eq!(i64::apply(Op::Min, 3, -5), -5);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Their sum; integers wrap.
    Sum,
    /// Their product; integers wrap.
    Prod,
    /// The lesser; of a number and a NaN, the number.
    Min,
    /// The greater; of a number and a NaN, the number.
    Max,
    /// The operand.
    Replace,
    /// The element, unchanged: an atomic read.
    NoOp,
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u64 {}
    impl Sealed for i64 {}
    impl Sealed for f64 {}
}

/// An element of 8 bytes on which a fabric's compare-and-swap and fetch-and-add work.
///
/// # Examples
/// ```
/// use transom_windows::Atomic;
/// assert_eq!(f64::from_word(1.5f64.to_word()), 1.5);
/// ```
pub trait Atomic: Pod + sealed::Sealed {
    /// Its bits as a word.
    fn to_word(self) -> u64;
    /// The element of a word's bits.
    fn from_word(word: u64) -> Self;
    /// The result of an operation.
    fn apply(op: Op, element: Self, operand: Self) -> Self;
    /// What to add to the word, if a fetch-and-add does the operation; others take compare-and-swaps.
    fn as_add(op: Op, operand: Self) -> Option<u64>;
}

macro_rules! integer {
    ($($int:ty),*) => {$(
        impl Atomic for $int {
            #[inline]
            fn to_word(self) -> u64 {
                self as u64
            }

            #[inline]
            fn from_word(word: u64) -> Self {
                word as $int
            }

            #[inline]
            fn apply(op: Op, element: Self, operand: Self) -> Self {
                match op {
                    Op::Sum => element.wrapping_add(operand),
                    Op::Prod => element.wrapping_mul(operand),
                    Op::Min => element.min(operand),
                    Op::Max => element.max(operand),
                    Op::Replace => operand,
                    Op::NoOp => element,
                }
            }

            #[inline]
            fn as_add(op: Op, operand: Self) -> Option<u64> {
                match op {
                    Op::Sum => Some(operand as u64),
                    Op::NoOp => Some(0),
                    _ => None,
                }
            }
        }
    )*};
}

integer!(u64, i64);

impl Atomic for f64 {
    #[inline]
    fn to_word(self) -> u64 {
        self.to_bits()
    }

    #[inline]
    fn from_word(word: u64) -> Self {
        f64::from_bits(word)
    }

    #[inline]
    fn apply(op: Op, element: Self, operand: Self) -> Self {
        match op {
            Op::Sum => element + operand,
            Op::Prod => element * operand,
            Op::Min => element.min(operand),
            Op::Max => element.max(operand),
            Op::Replace => operand,
            Op::NoOp => element,
        }
    }

    #[inline]
    fn as_add(op: Op, _: Self) -> Option<u64> {
        (op == Op::NoOp).then_some(0)
    }
}
