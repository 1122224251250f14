//! A bound on what arrays reach opens no way around a lock.

use transom::array::Remote;
use transom::{Error, Window};

fn main() {}

fn put_at<E: Remote<Element = u64>>(epoch: &E, rank: usize) -> Result<(), Error> {
    #[cfg(wrong)]
    epoch.target(rank)?.put(0, &[7])?; //~ E0061
    let _ = (epoch, rank);
    Ok(())
}

fn lock(window: &mut Window<u64>) -> Result<(), Error> {
    put_at(&window.lock_exclusive(0)?, 1)
}
