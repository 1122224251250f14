//! A window has one open epoch at most: the first must end before the second opens.

use transom::{Error, Window};

fn main() {}

fn lock_and_lock(window: &mut Window<u64>) -> Result<(), Error> {
    let first = window.lock_exclusive(0)?;
    #[cfg(wrong)]
    let second = window.lock_shared(0)?; //~ E0499
    first.put(0, &[1])?;
    first.unlock()
}

fn lock_and_lock_all(window: &mut Window<u64>) -> Result<(), Error> {
    let first = window.lock_shared(0)?;
    #[cfg(not(wrong))]
    first.unlock()?;
    let all = window.lock_all()?; //~ E0499
    all.unlock()?;
    #[cfg(wrong)]
    first.unlock()?;
    Ok(())
}

fn lock_and_fence(window: &mut Window<u64>) -> Result<(), Error> {
    let lock = window.lock_shared(0)?;
    #[cfg(not(wrong))]
    lock.unlock()?;
    window.fence()?; //~ E0499
    #[cfg(wrong)]
    lock.unlock()?;
    Ok(())
}

fn fence_and_start(window: &mut Window<u64>) -> Result<(), Error> {
    let fence = window.fence()?;
    #[cfg(not(wrong))]
    fence.target(0)?.put(0, &[1])?;
    let access = window.start(&[0])?; //~ E0499
    #[cfg(wrong)]
    fence.target(0)?.put(0, &[1])?;
    access.complete()
}

// Its drop, which unlocks, counts as a use.
fn lock_and_start(window: &mut Window<u64>) -> Result<(), Error> {
    let lock = window.lock_shared(0)?;
    #[cfg(not(wrong))]
    drop(lock);
    window.start(&[0])?.complete() //~ E0499
}
