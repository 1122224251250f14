//! A thread that may outlive the window gets neither an epoch nor a target; one of a scope may.

use std::thread;
use transom::{Error, World};

fn main() {}

fn epoch(world: &World) -> Result<(), Error> {
    let mut window: transom::Window<u64> = world.allocate(8)?;
    let epoch = window.lock_exclusive(0)?; //~ E0597
    #[cfg(wrong)]
    thread::spawn(move || epoch.put(0, &[1]));
    #[cfg(not(wrong))]
    thread::scope(|scope| scope.spawn(move || epoch.put(0, &[1])).join().unwrap())?;
    Ok(())
}

fn target(world: &World) -> Result<(), Error> {
    let mut window: transom::Window<u64> = world.allocate(8)?;
    let epoch = window.fence()?; //~ E0597
    let target = epoch.target(0)?; //~ E0597
    #[cfg(wrong)]
    thread::spawn(move || target.put(0, &[1]));
    #[cfg(not(wrong))]
    thread::scope(|scope| scope.spawn(move || target.put(0, &[1])).join().unwrap())?;
    Ok(())
}
