//! An array gives no access to elements of other owners without an epoch; its local part has no atomics.

use transom::{Distribution, GlobalArray, Op};

fn main() -> Result<(), transom::Error> {
    let world = transom::init().expect("a world of one");
    let mut array: GlobalArray<u64> = world.array([8], Distribution::Block)?;
    #[cfg(wrong)]
    array.put_one(0, 1)?; //~ E0599
    array.local().put_one(0, 1)?;
    //= open an epoch by `lock_exclusive`, `lock_shared`, `lock_ranks`, `lock_all` or `fence` of the `GlobalArray`
    #[cfg(wrong)]
    array.local().fetch_and_op(0, Op::Sum, 1)?; //~ E0277
    array.lock_shared(0)?.fetch_and_op(0, Op::Sum, 1)?;
    Ok(())
}
