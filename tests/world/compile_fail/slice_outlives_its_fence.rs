//! Elements lent in place belong to the window, and are returned before it synchronises.

use transom::{Error, Window};

fn main() {}

fn synchronised(window: &mut Window<u64>) -> Result<u64, Error> {
    // SAFETY: others touch their own parts only.
    let mine = unsafe { window.local().as_mut_slice(0, 4) }?;
    mine[0] = 1;
    window.fence()?; //~ E0502
    #[cfg(wrong)]
    let first = mine[0];
    #[cfg(not(wrong))]
    let first = window.local().get(0)?;
    Ok(first)
}

fn safely(window: &Window<u64>) -> Result<u64, Error> {
    #[cfg(wrong)]
    let mine = window.local().as_slice(0, 4)?; //~ E0133
    #[cfg(not(wrong))]
    let mine = window.local().read(0, 4)?;
    Ok(mine[0])
}
