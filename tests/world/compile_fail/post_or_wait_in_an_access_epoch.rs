//! An access epoch borrows the window: post before it, wait after it. The rank reads its own part through the epoch.

use transom::{Error, Window};

fn main() {}

fn neighbours(window: &mut Window<u64>) -> Result<(), Error> {
    window.post(&[0])?;
    let epoch = window.start(&[0])?;
    #[cfg(wrong)]
    window.wait()?; //~ E0499
    #[cfg(wrong)]
    window.local().get(0)?; //~ E0502
    epoch.local().get(0)?;
    epoch.complete()?;
    window.wait()
}
