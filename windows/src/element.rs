//! The element types of windows, arrays and messages.

use bytemuck::Pod;

/// An element type: plain data of which every bit pattern is a value, since other ranks write it and it is copied
/// bytewise.
///
/// Every [`bytemuck::Pod`] type is one. The trait adds nothing to `Pod`, but the compiler's error for other types tells
/// what to do.
///
/// # Examples
/// A type of the program's own; its manifest has `bytemuck = { version = "1", features = ["derive"] }`:
/// ```
/// use bytemuck::{Pod, Zeroable};
///
/// #[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
/// #[repr(C)]
/// struct Particle {
///     position: [f64; 3],
///     charge: f64,
/// }
///
/// let world = transom::init()?;
/// let mut window = world.allocate::<Particle>(10)?;
/// let particle = Particle { position: [0.5; 3], charge: -1.0 };
/// window.lock_exclusive(0)?.put_one(3, particle)?;
/// assert_eq!(window.local().get(3)?, particle);
/// # Ok::<(), transom::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not plain data, so it cannot be an element of a window, array or message",
    label = "not plain data",
    note = "for a struct of your own: `#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]` and `#[repr(C)]`, with fields of plain \
            data and no padding; in the manifest `bytemuck = {{ version = \"1\", features = [\"derive\"] }}`",
    note = "`bool`, `char`, references, `Option` and tuples are not plain data: use `u8`, `u32`, indices or `GlobalPtr`, and structs"
)]
pub trait Element: Pod {}

#[diagnostic::do_not_recommend]
impl<T: Pod> Element for T {}
