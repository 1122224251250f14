//! A fence ends the epoch of the last one.

use transom::{Error, Window};

fn main() {}

fn fences(window: &mut Window<u64>) -> Result<(), Error> {
    let first = window.fence()?;
    first.target(0)?.put(0, &[1])?;
    let second = window.fence()?; //~ E0499
    #[cfg(wrong)]
    first.target(0)?.put(0, &[2])?;
    second.target(0)?.put(0, &[2])
}
