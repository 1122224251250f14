//! The type of an access determines how an array's elements are reached: by an epoch, or by the local part without
//! atomics.

use transom::GlobalArray;
use transom::array::{Access, Reach, Remote};

fn main() {}

fn reached(_: &impl Reach<Element = u64>) {}

fn counted(_: &Access<'_, impl Remote<Element = u64>, 1>) {}

fn both(array: &mut GlobalArray<u64>) -> Result<(), transom::Error> {
    //= has no atomic operations
    #[cfg(wrong)]
    counted(&array.local()); //~ E0277
    let access = array.lock_all()?;
    counted(&access);
    //= a global array's elements cannot be reached through `Access
    #[cfg(wrong)]
    reached(&access); //~ E0277
    reached(access.epoch());
    Ok(())
}
