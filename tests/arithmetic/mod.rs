//! A model of the accumulate operations, written independently of the library. The table of `tests/rma/operations.rs`
//! checks the model itself.

use transom::Op;

/// Operations that are defined on floats.
const ON_FLOATS: [Op; 6] = [Op::Sum, Op::Prod, Op::Min, Op::Max, Op::Replace, Op::NoOp];

pub trait Model: Copy {
    /// Operations that are defined on this element type.
    #[allow(dead_code, reason = "each test file uses what it needs")]
    const OPERATIONS: &'static [Op];
    #[allow(dead_code, reason = "each test file uses what it needs")]
    const IS_INTEGER: bool;

    /// The new value of an element.
    fn model(op: Op, element: Self, operand: Self) -> Self;
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Model for $type {
            const OPERATIONS: &'static [Op] = &Op::ALL;
            const IS_INTEGER: bool = true;

            fn model(op: Op, element: Self, operand: Self) -> Self {
                // Wide enough for each result, cut to the element's width.
                let (a, b) = (element as i128, operand as i128);
                let truth = |holds: bool| if holds { 1 } else { 0 };
                match op {
                    Op::Sum => (a + b) as $type,
                    Op::Prod => a.wrapping_mul(b) as $type,
                    Op::Min => if b < a { operand } else { element },
                    Op::Max => if b > a { operand } else { element },
                    Op::And => !(!element | !operand),
                    Op::Or => !(!element & !operand),
                    Op::Xor => (a & !b | b & !a) as $type,
                    Op::LogicalAnd => truth(!(a == 0 || b == 0)),
                    Op::LogicalOr => truth((a | b) != 0),
                    Op::LogicalXor => truth((a == 0) != (b == 0)),
                    Op::Replace => operand,
                    Op::NoOp => element,
                }
            }
        }
    )*};
}

macro_rules! floats {
    ($($type:ty)*) => {$(
        impl Model for $type {
            const OPERATIONS: &'static [Op] = &ON_FLOATS;
            const IS_INTEGER: bool = false;

            fn model(op: Op, element: Self, operand: Self) -> Self {
                match op {
                    Op::Sum => element + operand,
                    Op::Prod => element * operand,
                    // The number, if the other one is NaN.
                    Op::Min if element.is_nan() || operand < element => operand,
                    Op::Max if element.is_nan() || operand > element => operand,
                    Op::Min | Op::Max | Op::NoOp => element,
                    Op::Replace => operand,
                    _ => panic!("{op:?} is not defined for floats"),
                }
            }
        }
    )*};
}

integers!(u8 u16 u32 u64 i8 i16 i32 i64);
floats!(f32 f64);
