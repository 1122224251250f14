//! A window is not freed while an epoch is open on it, or its memory is lent.

use transom::{Error, Window};

fn main() {}

fn lock(mut window: Window<u64>) -> Result<(), Error> {
    let epoch = window.lock_exclusive(0)?;
    #[cfg(wrong)]
    window.free()?; //~ E0505
    epoch.put(0, &[1])
}

fn fence(mut window: Window<u64>) -> Result<(), Error> {
    let epoch = window.fence()?;
    let target = epoch.target(0)?;
    #[cfg(not(wrong))]
    target.put(0, &[1])?;
    window.free()?; //~ E0505
    #[cfg(wrong)]
    target.put(0, &[1])?;
    Ok(())
}

fn local(window: Window<u64>) -> Result<(), Error> {
    let local = window.local();
    #[cfg(wrong)]
    window.free()?; //~ E0505
    local.set(0, 1)
}

fn twice(window: Window<u64>) -> Result<(), Error> {
    window.free()?;
    #[cfg(wrong)]
    window.free()?; //~ E0382
    Ok(())
}
