//! Reduction operations and their element types.

use crate::messages::Error;
use bytemuck::{Pod, Zeroable};
use transom_collective::{Order, Rank};
use transom_windows::{Atomic, Number, Op};

/// An operation of a reduction: an [`Op`], [`MinLoc`] or [`MaxLoc`], a closure in [`Commutative`] or [`Ordered`], or
/// a user type.
///
/// The operation must be associative: `a o (b o c) = (a o b) o c`. Floating-point operations are associative up to
/// rounding. Results are bitwise identical at all ranks, and from run to run with the same number of ranks.
///
/// The operation may run inside any waiting call of this rank. It must not call the library, and must not wait for
/// anything that a thread inside the library may hold, such as a mutex or `stdout`. While the operation of a started
/// collective runs, the rank moves no messages.
///
/// # Examples
/// ```
/// use transom::collective::Reduction;
/// struct Gcd;
/// impl Reduction<u64> for Gcd {
///     const COMMUTES: bool = true;
///     fn apply(&self, left: u64, right: u64) -> u64 {
///         if right == 0 { left } else { self.apply(right, left % right) }
///     }
/// }
/// let results = transom::threads(3, |world| world.all_reduce_one([12, 18, 30][world.rank()], Gcd))?;
/// assert!(results.into_iter().all(|gcd| gcd.unwrap() == 6));
/// # Ok::<(), transom::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no operation on `{T}`",
    note = "a function of two elements is one within `Commutative(|a, b| ..)`, or `Ordered(|a, b| ..)` if their order matters"
)]
pub trait Reduction<T: Pod>: Send + Sync {
    /// True if `a o b = b o a`: then long reductions send fewer bytes.
    const COMMUTES: bool;

    /// `left o right`, where `left` comes from lower ranks than `right`.
    fn apply(&self, left: T, right: T) -> T;

    /// Combines each element with its operand. `order` tells whether the operands come from ranks after or before.
    fn fold(&self, elements: &mut [T], operands: &[T], order: Order) {
        let pairs = elements.iter_mut().zip(operands);
        match order {
            Order::After => pairs.for_each(|(element, &operand)| *element = self.apply(*element, operand)),
            Order::Before => pairs.for_each(|(element, &operand)| *element = self.apply(operand, *element)),
        }
    }

    /// Identifies the operation, to detect ranks that pass different ones. The library reserves 0 to 31.
    fn number(&self) -> u8 {
        32
    }

    /// Checks that the operation is defined for elements of type `T`.
    ///
    /// # Errors
    /// [`Error::Misuse`] if it is not.
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// Most elements that are combined one by one.
const FEW: usize = 8;

impl<T: Atomic> Reduction<T> for Op {
    const COMMUTES: bool = true;

    fn apply(&self, left: T, right: T) -> T {
        T::apply(*self, left, right)
    }

    #[inline]
    fn fold(&self, elements: &mut [T], operands: &[T], order: Order) {
        // The setup of the vectorised loop costs more than a few scalar operations.
        if elements.len() <= FEW {
            for (element, &operand) in elements.iter_mut().zip(operands) {
                *element = match order {
                    Order::After => T::apply(*self, *element, operand),
                    Order::Before => T::apply(*self, operand, *element),
                };
            }
            return;
        }
        match order {
            Order::After => T::apply_all(*self, elements, operands),
            Order::Before => T::apply_all_swapped(*self, elements, operands),
        }
    }

    fn number(&self) -> u8 {
        Op::ALL.iter().position(|op| op == self).map_or(31, |number| number as u8)
    }

    fn check(&self) -> Result<(), Error> {
        let type_name = std::any::type_name::<T>();
        match self {
            Op::Replace | Op::NoOp => {
                Err(Error::Misuse { why: format!("{self:?} does not reduce: name the rank, and broadcast") })
            }
            op if !T::supports(*op) => Err(Error::Misuse { why: format!("{op:?} is not defined for {type_name}") }),
            _ => Ok(()),
        }
    }
}

/// A commutative function of two elements, in any rank order.
///
/// # Examples
/// ```
/// use transom::collective::Commutative;
/// let results = transom::threads(4, |world| {
///     let mut longest = [world.rank() as f32, -1.0];
///     world.all_reduce(&mut longest, Commutative(|a: f32, b: f32| if a.abs() > b.abs() { a } else { b }))?;
///     Ok::<_, transom::Error>(longest)
/// })?;
/// assert!(results.into_iter().all(|longest| longest.unwrap() == [3.0, -1.0]));
/// # Ok::<(), transom::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Commutative<F>(pub F);

/// A function of two elements whose first argument comes from lower ranks, for operations that do not commute, such as
/// the product of matrices.
///
/// # Examples
/// ```
/// use transom::collective::Ordered;
/// // Digits, side by side: (number, a power of ten).
/// let digits = Ordered(|a: [u64; 2], b: [u64; 2]| [a[0] * b[1] + b[0], a[1] * b[1]]);
/// let results = transom::threads(3, move |world| world.all_reduce_one([world.rank() as u64 + 1, 10], digits))?;
/// assert!(results.into_iter().all(|number| number.unwrap()[0] == 123));
/// # Ok::<(), transom::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Ordered<F>(pub F);

impl<T: Pod, F: Fn(T, T) -> T + Send + Sync> Reduction<T> for Commutative<F> {
    const COMMUTES: bool = true;

    fn apply(&self, left: T, right: T) -> T {
        (self.0)(left, right)
    }
}

impl<T: Pod, F: Fn(T, T) -> T + Send + Sync> Reduction<T> for Ordered<F> {
    const COMMUTES: bool = false;

    fn apply(&self, left: T, right: T) -> T {
        (self.0)(left, right)
    }

    fn number(&self) -> u8 {
        33
    }
}

/// A value and its location, for [`MinLoc`] and [`MaxLoc`].
///
/// # Examples
/// ```
/// use transom::collective::{MaxLoc, ValueLoc};
/// let results = transom::threads(3, |world| {
///     let error = [0.5, 0.25, 0.5][world.rank()];
///     world.all_reduce_one(ValueLoc::new(error, world.rank() as u64), MaxLoc)
/// })?;
/// for worst in results {
///     let worst = worst.unwrap();
///     assert_eq!((worst.value(), worst.place()), (0.5, 0)); // of equals the first
/// }
/// # Ok::<(), transom::Error>(())
/// ```
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, packed)]
pub struct ValueLoc<T> {
    value: T,
    place: u64,
}

impl<T: Pod> ValueLoc<T> {
    /// Pairs a value with its location.
    pub fn new(value: T, place: u64) -> Self {
        ValueLoc { value, place }
    }

    /// The value.
    pub fn value(&self) -> T {
        self.value
    }

    /// The location of the value.
    pub fn place(&self) -> u64 {
        self.place
    }
}

impl<T: Pod + std::fmt::Debug> std::fmt::Debug for ValueLoc<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} at {}", self.value(), self.place())
    }
}

/// Minimum and its location; the lowest location of equal values. A NaN loses against every number.
#[derive(Clone, Copy, Debug)]
pub struct MinLoc;

/// Maximum and its location; the lowest location of equal values. A NaN loses against every number.
#[derive(Clone, Copy, Debug)]
pub struct MaxLoc;

/// Operation numbers of these for elements that are not numbers; the next numbers are for each kind of number. The size
/// of `ValueLoc` alone does not identify the value's type.
pub(super) const MIN_PLACE: u8 = 12;
pub(super) const MAX_PLACE: u8 = 16;

/// The `better` value, or the one of lower location if neither is better. A number wins over a NaN.
fn place<T: Pod + PartialOrd>(a: ValueLoc<T>, b: ValueLoc<T>, better: fn(&T, &T) -> bool) -> ValueLoc<T> {
    let (x, y) = (a.value(), b.value());
    // Only a NaN differs from itself.
    #[allow(clippy::eq_op, reason = "a NaN")]
    let no_number = (x != x, y != y);
    match no_number {
        (true, false) => b,
        (false, true) => a,
        _ if better(&x, &y) => a,
        _ if better(&y, &x) => b,
        _ if a.place() <= b.place() => a,
        _ => b,
    }
}

impl<T: Pod + PartialOrd> Reduction<ValueLoc<T>> for MinLoc {
    const COMMUTES: bool = true;

    fn apply(&self, left: ValueLoc<T>, right: ValueLoc<T>) -> ValueLoc<T> {
        place(left, right, |a, b| a < b)
    }

    fn number(&self) -> u8 {
        MIN_PLACE + Number::of::<T>() as u8
    }
}

impl<T: Pod + PartialOrd> Reduction<ValueLoc<T>> for MaxLoc {
    const COMMUTES: bool = true;

    fn apply(&self, left: ValueLoc<T>, right: ValueLoc<T>) -> ValueLoc<T> {
        place(left, right, |a, b| a > b)
    }

    fn number(&self) -> u8 {
        MAX_PLACE + Number::of::<T>() as u8
    }
}

/// [`Reduction::fold`] on untyped bytes, and packing of blocks.
pub(super) trait Fold: Send + Sync {
    fn fold(&self, elements: &mut [u8], operands: &[u8], order: Order);

    /// Packs the block for rank `to` out of `given`, all elements that the program sends.
    fn pack(&self, _to: Rank, _given: &[u8], _packed: &mut [u8]) {
        unreachable!("a plan without sections packs nothing");
    }

    /// Unpacks the block from rank `from` into `into`, all elements that the program receives.
    fn unpack(&self, _from: Rank, _packed: &[u8], _into: &mut [u8]) {
        unreachable!("a plan without sections unpacks nothing");
    }
}

/// Operation `R` on elements of type `T`.
#[derive(Clone)]
pub(super) struct Typed<T, R>(pub R, pub std::marker::PhantomData<fn(T) -> T>);

impl<T: Pod, R: Reduction<T>> Fold for Typed<T, R> {
    #[inline]
    fn fold(&self, elements: &mut [u8], operands: &[u8], order: Order) {
        self.0.fold(bytemuck::cast_slice_mut(elements), bytemuck::cast_slice(operands), order);
    }
}

impl<F: Fold> Fold for &F {
    fn fold(&self, elements: &mut [u8], operands: &[u8], order: Order) {
        F::fold(self, elements, operands, order);
    }

    fn pack(&self, to: Rank, given: &[u8], packed: &mut [u8]) {
        F::pack(self, to, given, packed);
    }

    fn unpack(&self, from: Rank, packed: &[u8], into: &mut [u8]) {
        F::unpack(self, from, packed, into);
    }
}

/// The operation of a collective that combines nothing.
#[derive(Clone)]
pub(super) struct Nothing;

impl Fold for Nothing {
    fn fold(&self, _: &mut [u8], _: &[u8], _: Order) {
        unreachable!("a plan without an operation folds nothing");
    }
}
