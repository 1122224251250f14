//! While threads have the target of an epoch, the epoch itself cannot be used: its accumulates assume no
//! concurrent ones.

use transom::{Error, Op, Window};

fn main() {}

fn lock(window: &mut Window<u64>) -> Result<(), Error> {
    let mut epoch = window.lock_exclusive(0)?;
    let each = epoch.for_threads();
    #[cfg(wrong)]
    epoch.accumulate(0, Op::Sum, &[1, 1])?; //~ E0502
    each.target().accumulate(0, Op::Sum, &[1, 1])?;
    epoch.accumulate(0, Op::Sum, &[1, 1])?;
    epoch.unlock()
}
