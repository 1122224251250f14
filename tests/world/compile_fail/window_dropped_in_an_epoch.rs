//! A window cannot be dropped while an epoch is open on it.

use transom::{Error, Window};

fn main() {}

fn lock(mut window: Window<u64>) -> Result<(), Error> {
    let epoch = window.lock_exclusive(0)?;
    #[cfg(wrong)]
    drop(window); //~ E0505
    epoch.put(0, &[1])
}

fn access(mut window: Window<u64>) -> Result<(), Error> {
    let epoch = window.start(&[0])?;
    #[cfg(not(wrong))]
    epoch.complete()?;
    drop(window); //~ E0505
    #[cfg(wrong)]
    epoch.complete()?;
    Ok(())
}

fn fence(mut window: Window<u64>) -> Result<(), Error> {
    let epoch = window.fence()?;
    let target = epoch.target(0)?;
    #[cfg(wrong)]
    drop(window); //~ E0505
    target.put(0, &[1])
}

fn replaced(mut window: Window<u64>, other: Window<u64>) -> Result<(), Error> {
    let epoch = window.lock_all()?;
    #[cfg(not(wrong))]
    epoch.unlock()?;
    window = other; //~ E0506
    #[cfg(wrong)]
    epoch.unlock()?;
    window.fence().map(drop)
}
