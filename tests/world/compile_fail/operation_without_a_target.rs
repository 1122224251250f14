//! An epoch on many ranks has no operations: the targets that it lends have them.

use transom::{Op, Window};

fn main() {}

//- array/reach.rs
fn fence(window: &mut Window<u64>) -> Result<(), transom::Error> {
    let epoch = window.fence()?;
    #[cfg(wrong)]
    epoch.put(0, &[1])?; //~ E0599
    #[cfg(wrong)]
    epoch.get_one(0)?; //~ E0599
    epoch.target(0)?.put(0, &[1])
}

fn all(window: &mut Window<u64>) -> Result<(), transom::Error> {
    let epoch = window.lock_all()?;
    #[cfg(wrong)]
    epoch.put(0, &[1])?; //~ E0599
    #[cfg(wrong)]
    epoch.get(0, &mut [1])?; //~ E0599
    #[cfg(wrong)]
    epoch.fetch_and_op(0, Op::Sum, 1)?; //~ E0599
    epoch.target(0)?.fetch_and_op(0, Op::Sum, 1)?;
    epoch.unlock()
}
