//! The buffer of a put in flight belongs to the request until the request returns it.

use transom::{Error, Op, Window};

fn main() {}

fn put(window: &mut Window<u64>) -> Result<(), Error> {
    let mut buffer = vec![1, 2, 3];
    let epoch = window.lock_shared(0)?;
    let request = epoch.rput(0, buffer)?;
    #[cfg(wrong)]
    buffer.push(4); //~ E0382
    buffer = request.wait()?;
    buffer.push(4);
    Ok(())
}

fn accumulate(window: &mut Window<u64>) -> Result<(), Error> {
    let operands = vec![1, 2, 3];
    let epoch = window.lock_shared(0)?;
    let request = epoch.raccumulate(0, Op::Sum, operands)?;
    #[cfg(wrong)]
    let first = operands[0]; //~ E0382
    #[cfg(not(wrong))]
    let first = request.wait()?[0];
    epoch.put(0, &[first])
}
