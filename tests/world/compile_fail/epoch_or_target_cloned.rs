//! Neither an epoch nor a target can be cloned: a copy could outlive the end.

use transom::{Error, Window};

fn main() {}

fn cloned(window: &mut Window<u64>) -> Result<(), Error> {
    let epoch = window.lock_exclusive(0)?;
    #[cfg(wrong)]
    let copy = epoch.clone(); //~ E0599
    epoch.unlock()?;

    let epoch = window.lock_all()?;
    let target = epoch.target(0)?;
    #[cfg(wrong)]
    let copy = target.clone(); //~ E0599
    target.put(0, &[1])?;
    #[cfg(wrong)]
    let copy = epoch.clone(); //~ E0599
    epoch.unlock()?;

    let epoch = window.start(&[0])?;
    #[cfg(wrong)]
    let copy = epoch.clone(); //~ E0599
    epoch.complete()?;

    let epoch = window.fence()?;
    #[cfg(wrong)]
    let copy = epoch.clone(); //~ E0599
    epoch.target(0)?.put(0, &[1])?;
    #[cfg(wrong)]
    let copy = window.clone(); //~ E0599
    Ok(())
}
