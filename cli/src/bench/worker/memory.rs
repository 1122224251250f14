//! Windows as on both sides of a comparison: each rank zeroes its part before others access it.

use super::facts::Outcome;
use bytemuck::Pod;
use transom::{Flavor, Window, World};

/// Collective: a window of `len` elements at each rank.
pub fn window<T: Pod>(world: &World, len: usize) -> Outcome<Window<T>> {
    window_of(world, Flavor::Allocate { len }, 0)
}

/// Collective: a window of the given flavour, with signals.
pub fn window_of<T: Pod>(world: &World, flavor: Flavor<T>, signals: usize) -> Outcome<Window<T>> {
    let window: Window<T> = world.window(flavor, signals)?;
    let local = window.local();
    local.write(0, &vec![T::zeroed(); local.len()])?;
    world.barrier()?;
    Ok(window)
}
