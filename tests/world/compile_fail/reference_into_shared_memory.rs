//! A rank's own part is read and written by copies: others may write it at any time.

use transom::{Error, Window};

fn main() {}

fn own(window: &Window<u64>) -> Result<(), Error> {
    let local = window.local();
    #[cfg(wrong)]
    let first: &u64 = &local[0]; //~ E0608
    #[cfg(wrong)]
    let all: &[u64] = &local; //~ E0308
    let first: u64 = local.get(0)?;
    local.set(1, first)
}
