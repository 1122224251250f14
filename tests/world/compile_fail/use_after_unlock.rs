//! An epoch cannot be used after its end: each end takes it by value.

use transom::{Error, Window};

fn main() {}

fn lock(window: &mut Window<u64>) -> Result<(), Error> {
    let epoch = window.lock_exclusive(0)?;
    epoch.put(0, &[1])?;
    epoch.unlock()?;
    #[cfg(wrong)]
    epoch.put(0, &[2])?; //~ E0382
    Ok(())
}

fn lock_all(window: &mut Window<u64>) -> Result<(), Error> {
    let epoch = window.lock_all()?;
    epoch.target(0)?.put(0, &[1])?;
    epoch.unlock()?;
    #[cfg(wrong)]
    epoch.target(0)?.put(0, &[2])?; //~ E0382
    Ok(())
}

fn access(window: &mut Window<u64>) -> Result<(), Error> {
    let epoch = window.start(&[0])?;
    epoch.target(0)?.put(0, &[1])?;
    epoch.complete()?;
    #[cfg(wrong)]
    epoch.target(0)?.put(0, &[2])?; //~ E0382
    Ok(())
}
