//! A window has no operations: they need an epoch, also on this rank's own part, and cannot follow the epoch's end.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let world = transom::init()?;
    let mut window: transom::Window<u64> = world.allocate(8)?;
    #[cfg(wrong)]
    window.put(0, &[1])?; //~ E0599
    #[cfg(wrong)]
    window.get_one(0)?; //~ E0599
    #[cfg(wrong)]
    window.local().put(0, &[1])?; //~ E0599
    window.lock_exclusive(0)?.put(0, &[1])?;
    #[cfg(wrong)]
    window.fetch_and_op(0, transom::Op::Sum, 1)?; //~ E0599
    Ok(())
}
