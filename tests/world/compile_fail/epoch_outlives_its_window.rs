//! Nothing that an epoch lends leaves the scope of its window, by return or by a longer life.

use transom::windows::{LockEpoch, Target};
use transom::{Error, Window, World, provider::Provider};

fn main() {}

#[cfg(wrong)]
fn returned<'w>(world: &World) -> Result<LockEpoch<'w, u64, Provider>, Error> {
    let mut window: Window<u64> = world.allocate(8)?;
    window.lock_exclusive(0) //~ E0515
}

#[cfg(not(wrong))]
fn returned(window: &mut Window<u64>) -> Result<LockEpoch<'_, u64, Provider>, Error> {
    window.lock_exclusive(0)
}

#[cfg(wrong)]
fn target_returned(window: &mut Window<u64>) -> Result<Target<'_, u64, Provider>, Error> {
    let epoch = window.lock_all()?;
    epoch.target(0) //~ E0515
}

fn kept(world: &World) -> Result<(), Error> {
    #[cfg(not(wrong))]
    let mut window: Window<u64> = world.allocate(8)?;
    let epoch;
    {
        #[cfg(wrong)]
        let mut window: Window<u64> = world.allocate(8)?;
        epoch = window.lock_exclusive(0)?; //~ E0597
    }
    epoch.put(0, &[1])
}
