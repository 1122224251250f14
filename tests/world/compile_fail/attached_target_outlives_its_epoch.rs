//! A target of attached memory outlives neither the epoch nor the value that reaches the memory.

use transom::{Address, Error, Window};

fn main() {}

fn its_memory(window: &mut Window<u64>, address: &Address) -> Result<(), Error> {
    let memory = window.reach(address)?;
    let epoch = window.lock_shared(0)?;
    let target = epoch.attached(&memory)?;
    #[cfg(wrong)]
    drop(memory); //~ E0505
    target.put(0, &[1])
}

fn its_epoch(window: &mut Window<u64>, address: &Address) -> Result<(), Error> {
    let memory = window.reach(address)?;
    let epoch = window.lock_shared(0)?;
    let target = epoch.attached(&memory)?;
    #[cfg(not(wrong))]
    target.put(0, &[1])?;
    epoch.unlock()?; //~ E0505
    #[cfg(wrong)]
    target.put(0, &[1])?;
    Ok(())
}

fn one_of_all(window: &mut Window<u64>, address: &Address) -> Result<(), Error> {
    let memory = window.reach(address)?;
    let epoch = window.lock_all()?;
    let (all, target);
    all = epoch.target(0)?;
    target = all.attached(&memory)?;
    #[cfg(not(wrong))]
    target.put(0, &[1])?;
    epoch.unlock()?; //~ E0505
    #[cfg(wrong)]
    target.put(0, &[1])?;
    Ok(())
}

fn detached(window: &mut Window<u64>, address: &Address) -> Result<(), Error> {
    let local = window.local().attached(address)?;
    #[cfg(not(wrong))]
    local.set(0, 1)?;
    window.detach(address)?; //~ E0502
    #[cfg(wrong)]
    local.set(0, 1)?;
    Ok(())
}
