//! Neither a view nor its target outlives the epoch; several locks of a window are one epoch.

use transom::{Error, Mode, Window};

fn main() {}

fn its_epoch(window: &mut Window<u8>) -> Result<(), Error> {
    let epoch = window.lock_shared(0)?;
    let view = epoch.view::<u64>(8)?;
    #[cfg(not(wrong))]
    view.put(0, &[1])?;
    epoch.unlock()?; //~ E0505
    #[cfg(wrong)]
    view.put(0, &[1])?;
    Ok(())
}

fn its_elements(window: &mut Window<u8>) -> Result<(), Error> {
    let epoch = window.lock_shared(0)?;
    #[cfg(wrong)]
    epoch.view::<bool>(0)?; //~ E0277
    epoch.view::<f32>(0)?.put(0, &[1.5])
}

fn one_epoch(window: &mut Window<u8>) -> Result<(), Error> {
    let epoch = window.lock_ranks(&[(0, Mode::Exclusive), (1, Mode::Shared)])?;
    #[cfg(not(wrong))]
    epoch.unlock()?;
    window.lock_exclusive(2)?.unlock()?; //~ E0499
    #[cfg(wrong)]
    epoch.unlock()?;
    Ok(())
}

fn an_attempt_is_an_epoch(window: &mut Window<u8>) -> Result<(), Error> {
    let epoch = window.try_lock(0, Mode::Shared)?;
    #[cfg(not(wrong))]
    drop(epoch);
    window.fence()?; //~ E0499
    #[cfg(wrong)]
    drop(epoch);
    Ok(())
}
