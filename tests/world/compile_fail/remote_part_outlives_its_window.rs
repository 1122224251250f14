//! Another rank's part, reached by loads and stores, belongs to the window.

use transom::{Error, Window, World};

fn main() {}

fn kept(world: &World) -> Result<(), Error> {
    #[cfg(not(wrong))]
    let window: Window<u64> = world.allocate_shared(8)?;
    let part;
    {
        #[cfg(wrong)]
        let window: Window<u64> = world.allocate_shared(8)?;
        part = window.local().of(0)?; //~ E0597
    }
    part.set(0, 1)
}

fn dropped(window: Window<u64>) -> Result<(), Error> {
    let part = window.local().of(0)?;
    #[cfg(wrong)]
    drop(window); //~ E0505
    part.set(0, 1)
}

fn synchronised(window: &mut Window<u64>) -> Result<(), Error> {
    let part = window.local().of(0)?;
    #[cfg(not(wrong))]
    part.set(0, 1)?;
    window.fence()?; //~ E0502
    #[cfg(wrong)]
    part.set(0, 1)?;
    Ok(())
}
