//! A target is lent by its epoch: while it is in use, the epoch cannot end.

use transom::{Error, Window};

fn main() {}

fn lock(window: &mut Window<u64>) -> Result<(), Error> {
    let epoch = window.lock_exclusive(0)?;
    let target = &*epoch;
    #[cfg(not(wrong))]
    target.put(0, &[1])?;
    epoch.unlock()?; //~ E0505
    #[cfg(wrong)]
    target.put(0, &[1])?;
    Ok(())
}

fn lock_all(window: &mut Window<u64>) -> Result<(), Error> {
    let epoch = window.lock_all()?;
    let target = epoch.target(0)?;
    #[cfg(not(wrong))]
    target.put(0, &[1])?;
    epoch.unlock()?; //~ E0505
    #[cfg(wrong)]
    target.put(0, &[1])?;
    Ok(())
}

fn access(window: &mut Window<u64>) -> Result<(), Error> {
    let epoch = window.start(&[0])?;
    let target = epoch.target(0)?;
    #[cfg(not(wrong))]
    target.put(0, &[1])?;
    epoch.complete()?; //~ E0505
    #[cfg(wrong)]
    target.put(0, &[1])?;
    Ok(())
}

fn fence(window: &mut Window<u64>) -> Result<(), Error> {
    let epoch = window.fence()?;
    let target = epoch.target(0)?;
    #[cfg(not(wrong))]
    target.put(0, &[1])?;
    window.fence()?; //~ E0499
    #[cfg(wrong)]
    target.put(0, &[1])?;
    Ok(())
}
