//! The kind of number of an element type; ranks otherwise exchange only bytes.

use std::any::TypeId;

/// The kind of number of a call's elements. Ranks compare it, with the size, so that elements sent as `f64` are not
/// received as `u64`.
///
/// # Examples
/// ```
/// use transom_windows::Number;
/// assert_eq!([Number::of::<f64>(), Number::of::<usize>(), Number::of::<i8>()], [Number::Float, Number::Unsigned, Number::Signed]);
/// assert_eq!(Number::of::<[f64; 2]>(), Number::None);
/// assert_eq!((Number::Float.named(4), Number::None.named(4)), (Some("f32".into()), None));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Number {
    /// Not a number, or several numbers.
    None,
    /// `u8` to `u128`, `usize`.
    Unsigned,
    /// `i8` to `i128`, `isize`.
    Signed,
    /// `f32`, `f64`.
    Float,
}

impl Number {
    /// The kind of number of type `T`.
    #[inline]
    pub fn of<T: 'static>() -> Number {
        macro_rules! is {
            ($($number:ty),*) => { [$(TypeId::of::<$number>()),*].contains(&TypeId::of::<T>()) };
        }
        if is!(u8, u16, u32, u64, u128, usize) {
            Number::Unsigned
        } else if is!(i8, i16, i32, i64, i128, isize) {
            Number::Signed
        } else if is!(f32, f64) {
            Number::Float
        } else {
            Number::None
        }
    }

    /// The kind of number in the lowest two bits of `bits`, as a message carries it.
    pub fn of_bits(bits: u64) -> Number {
        [Number::None, Number::Unsigned, Number::Signed, Number::Float][(bits & 3) as usize]
    }

    /// The Rust name of this kind with `bytes` bytes; `None` for elements that are not numbers.
    pub fn named(self, bytes: u64) -> Option<String> {
        let letter = ["", "u", "i", "f"][self as usize];
        (self != Number::None).then(|| format!("{letter}{}", 8 * u128::from(bytes)))
    }
}
