//! Elements that are put and got have the window's type.

use transom::{Error, Window};

fn main() {}

fn elements(window: &mut Window<u64>) -> Result<(), Error> {
    let epoch = window.lock_exclusive(0)?;
    epoch.put(0, &[1_u64, 2])?;
    #[cfg(wrong)]
    epoch.put(0, &[1_u32, 2])?; //~ E0308
    let mut whole = [0_u64; 4];
    epoch.get(0, &mut whole)?;
    let mut halves = [0.0_f64; 4];
    #[cfg(wrong)]
    epoch.get(0, &mut halves)?; //~ E0308
    Ok(())
}
