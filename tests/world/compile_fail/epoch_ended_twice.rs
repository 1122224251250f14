//! A guard is moved once: it cannot end twice, nor end after it was moved or dropped.

use transom::{Error, Window};

fn main() {}

fn twice(window: &mut Window<u64>) -> Result<(), Error> {
    let epoch = window.lock_exclusive(0)?;
    epoch.unlock()?;
    #[cfg(wrong)]
    epoch.unlock()?; //~ E0382
    Ok(())
}

fn given_away(window: &mut Window<u64>) -> Result<(), Error> {
    let epoch = window.lock_all()?;
    let mine = epoch;
    #[cfg(wrong)]
    epoch.unlock()?; //~ E0382
    #[cfg(not(wrong))]
    mine.unlock()?;
    Ok(())
}

fn dropped(window: &mut Window<u64>) -> Result<(), Error> {
    let epoch = window.start(&[0])?;
    drop(epoch);
    #[cfg(wrong)]
    epoch.complete()?; //~ E0382
    Ok(())
}

fn in_a_loop(window: &mut Window<u64>) -> Result<(), Error> {
    #[cfg(wrong)]
    let epoch = window.lock_exclusive(0)?;
    for _ in 0..2 {
        #[cfg(not(wrong))]
        let epoch = window.lock_exclusive(0)?;
        epoch.unlock()?; //~ E0382
    }
    Ok(())
}
