//! The element types of accumulates, and their operations.

use bytemuck::Pod;

/// The operation of an accumulate on an element and an operand.
///
/// The bitwise and logical operations are not defined for floats; see [`Atomic::supports`].
///
/// # Examples
/// ```
/// use transom_windows::{Atomic, Op};
/// assert_eq!(i64::apply(Op::Min, 3, -5), -5);
/// assert_eq!(u8::apply(Op::Sum, 250, 10), 4);
/// assert_eq!(u16::apply(Op::LogicalAnd, 6, 9), 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// The sum; integers wrap.
    Sum,
    /// The product; integers wrap.
    Prod,
    /// The lesser; of a number and a NaN, the number.
    Min,
    /// The greater; of a number and a NaN, the number.
    Max,
    /// The bits set in both.
    And,
    /// The bits set in either.
    Or,
    /// The bits set in exactly one.
    Xor,
    /// 1 if neither is 0, else 0.
    LogicalAnd,
    /// 0 if both are 0, else 1.
    LogicalOr,
    /// 1 if exactly one of them is 0, else 0.
    LogicalXor,
    /// The operand.
    Replace,
    /// The element, unchanged: an atomic read.
    NoOp,
}

impl Op {
    /// All operations.
    ///
    /// # Examples
    /// ```
    /// use transom_windows::{Atomic, Op};
    /// assert_eq!(Op::ALL.iter().filter(|&&op| f32::supports(op)).count(), 6);
    /// ```
    pub const ALL: [Op; 12] = [
        Op::Sum,
        Op::Prod,
        Op::Min,
        Op::Max,
        Op::And,
        Op::Or,
        Op::Xor,
        Op::LogicalAnd,
        Op::LogicalOr,
        Op::LogicalXor,
        Op::Replace,
        Op::NoOp,
    ];
}

/// An element type of accumulates: an integer or a float of 1, 2, 4 or 8 bytes. `bool` is not one, since not every byte
/// is a valid `bool`: use `u8` and the logical operations.
///
/// # Examples
/// ```
/// use transom_windows::{Atomic, Op};
/// fn largest<T: Atomic>(values: &[T], least: T) -> T {
///     values.iter().fold(least, |so_far, &value| T::apply(Op::Max, so_far, value))
/// }
/// assert_eq!(largest(&[1.5f32, 9.0, -3.0], 0.0), 9.0);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no atomic operations",
    label = "not an integer or float of 1, 2, 4 or 8 bytes",
    note = "`fetch_and_op`, `compare_and_swap` and `accumulate` take u8 to u64, i8 to i64, usize, isize, f32 and f64",
    note = "in a reduction: elements as a slice, `all_reduce(&mut [1.0, 2.0], Op::Sum)`, or a function, `Commutative(|a, b| ..)`",
    note = "to change another element, lock its owner exclusively, get it and put it; or make it the value of a `GlobalMutex`"
)]
pub trait Atomic: Pod + sealed::Sealed {
    /// True for an integer, for which every operation is defined.
    const INTEGER: bool;

    /// The result of an operation; the element unchanged if the operation is not defined for it.
    fn apply(op: Op, element: Self, operand: Self) -> Self;

    /// [`apply`](Self::apply) to each of several elements, with its operand.
    fn apply_all(op: Op, elements: &mut [Self], operands: &[Self]) {
        each::<_, false>(op, elements, operands);
    }

    /// [`apply_all`](Self::apply_all) with the operand in the place of the element, and vice versa.
    fn apply_all_swapped(op: Op, elements: &mut [Self], operands: &[Self]) {
        each::<_, true>(op, elements, operands);
    }

    /// Returns whether the operation is defined for this element type.
    #[inline]
    fn supports(op: Op) -> bool {
        use Op::*;
        Self::INTEGER || !matches!(op, And | Or | Xor | LogicalAnd | LogicalOr | LogicalXor)
    }
}

/// Expands an expression once per operation, with the operation as a constant.
macro_rules! by_constant {
    ($op:expr, |$constant:ident| $body:expr) => {
        by_constant!(@ $op, $constant, $body,
            [Sum Prod Min Max And Or Xor LogicalAnd LogicalOr LogicalXor Replace NoOp])
    };
    (@ $op:expr, $constant:ident, $body:expr, [$($of:ident)*]) => {
        match $op {
            $(Op::$of => {
                const $constant: Op = Op::$of;
                $body
            })*
        }
    };
}
pub(crate) use by_constant;

/// Uses the processor's vector instructions.
fn each<T: Atomic, const SWAPPED: bool>(op: Op, elements: &mut [T], operands: &[T]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        #[target_feature(enable = "avx2")]
        fn wide<T: Atomic, const SWAPPED: bool>(op: Op, elements: &mut [T], operands: &[T]) {
            loops::<T, SWAPPED>(op, elements, operands);
        }
        // SAFETY: the processor has AVX2, as just asked.
        return unsafe { wide::<T, SWAPPED>(op, elements, operands) };
    }
    loops::<T, SWAPPED>(op, elements, operands);
}

/// A loop per operation, which the compiler vectorises with the instructions that its caller may use.
#[inline(always)]
fn loops<T: Atomic, const SWAPPED: bool>(op: Op, elements: &mut [T], operands: &[T]) {
    by_constant!(op, |OP| for (element, &operand) in elements.iter_mut().zip(operands) {
        *element = if SWAPPED { T::apply(OP, operand, *element) } else { T::apply(OP, *element, operand) };
    })
}

mod sealed {
    pub trait Sealed {}
}

/// Implements [`Atomic`]: whether the types are integers, the types, and the result of an operation.
macro_rules! atomic {
    ($integer:literal, [$($type:ty),*], |$op:ident, $element:ident, $operand:ident| $result:expr) => {$(
        impl sealed::Sealed for $type {}

        impl Atomic for $type {
            const INTEGER: bool = $integer;

            #[inline]
            fn apply($op: Op, $element: Self, $operand: Self) -> Self {
                $result
            }
        }
    )*};
}

atomic!(true, [u8, u16, u32, u64, usize, i8, i16, i32, i64, isize], |op, element, operand| match op {
    Op::Sum => element.wrapping_add(operand),
    Op::Prod => element.wrapping_mul(operand),
    Op::Min => element.min(operand),
    Op::Max => element.max(operand),
    Op::And => element & operand,
    Op::Or => element | operand,
    Op::Xor => element ^ operand,
    Op::LogicalAnd => (element != 0 && operand != 0).into(),
    Op::LogicalOr => (element != 0 || operand != 0).into(),
    Op::LogicalXor => ((element != 0) != (operand != 0)).into(),
    Op::Replace => operand,
    Op::NoOp => element,
});

atomic!(false, [f32, f64], |op, element, operand| match op {
    Op::Sum => element + operand,
    Op::Prod => element * operand,
    Op::Min => element.min(operand),
    Op::Max => element.max(operand),
    Op::Replace => operand,
    Op::NoOp | Op::And | Op::Or | Op::Xor | Op::LogicalAnd | Op::LogicalOr | Op::LogicalXor => element,
});
