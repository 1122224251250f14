//! The epochs of an array are those of its window: one at a time, and no access after the end.

use transom::{GlobalArray};

fn main() {}

fn two(array: &mut GlobalArray<u64>) -> Result<(), transom::Error> {
    let first = array.lock_shared(0)?;
    #[cfg(not(wrong))]
    first.unlock()?;
    let second = array.lock_all()?; //~ E0499
    second.unlock()?;
    #[cfg(wrong)]
    first.unlock()?;
    Ok(())
}

fn after(array: &mut GlobalArray<u64>) -> Result<(), transom::Error> {
    let epoch = array.lock_shared(0)?;
    epoch.put(0..2, &[1, 2])?;
    epoch.unlock()?;
    #[cfg(wrong)]
    epoch.get_one(0)?; //~ E0382
    Ok(())
}

fn fences(array: &mut GlobalArray<u64>) -> Result<(), transom::Error> {
    let fence = array.fence()?;
    #[cfg(not(wrong))]
    fence.put(0..2, &[1, 2])?;
    array.fence()?; //~ E0499
    #[cfg(wrong)]
    fence.put(0..2, &[1, 2])?;
    Ok(())
}

fn local(array: &mut GlobalArray<u64>) -> Result<u64, transom::Error> {
    let epoch = array.lock_all()?;
    #[cfg(wrong)]
    let local = array.local(); //~ E0502
    #[cfg(not(wrong))]
    let local = epoch.local();
    let first = local.get_one(0)?;
    epoch.unlock()?;
    Ok(first)
}
