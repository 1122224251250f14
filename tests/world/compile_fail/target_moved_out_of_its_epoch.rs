//! The target of a lock epoch stays in it; it can be borrowed, not taken.

use transom::{Error, Window};

fn main() {}

fn taken(window: &mut Window<u64>) -> Result<(), Error> {
    let epoch = window.lock_exclusive(0)?;
    #[cfg(wrong)]
    let target = *epoch; //~ E0507
    #[cfg(not(wrong))]
    let target = &*epoch;
    target.put(0, &[1])
}
