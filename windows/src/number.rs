//! What number an element is, of which ranks see bytes alone.

use std::any::TypeId;

/// What number the elements of a call are, as ranks compare it with their size: what one sends as `f64` another is not to take for
/// `u64`.
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
    /// No number, or several.
    None,
    /// `u8` to `u128`, `usize`.
    Unsigned,
    /// `i8` to `i128`, `isize`.
    Signed,
    /// `f32`, `f64`.
    Float,
}

impl Number {
    /// Of the elements of this type.
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

    /// The number of which `bits` has the lowest two, as a message brings it.
    pub fn of_bits(bits: u64) -> Number {
        [Number::None, Number::Unsigned, Number::Signed, Number::Float][(bits & 3) as usize]
    }

    /// As Rust names it, of so many bytes; none of what is no number.
    pub fn named(self, bytes: u64) -> Option<String> {
        let letter = ["", "u", "i", "f"][self as usize];
        (self != Number::None).then(|| format!("{letter}{}", 8 * u128::from(bytes)))
    }
}
