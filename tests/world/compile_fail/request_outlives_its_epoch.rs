//! A request is waited for before its epoch ends.

use transom::{Error, Request, Requests, Window};

fn main() {}

fn lock(window: &mut Window<u64>) -> Result<(), Error> {
    let epoch = window.lock_shared(0)?;
    let request = epoch.rget(0, 1)?;
    #[cfg(not(wrong))]
    let value = request.wait()?;
    epoch.unlock()?; //~ E0505
    #[cfg(wrong)]
    let value = request.wait()?;
    drop(value);
    Ok(())
}

fn lock_all(window: &mut Window<u64>) -> Result<(), Error> {
    let epoch = window.lock_all()?;
    let target = epoch.target(0)?;
    let mut requests: Requests<'_, u64> = [target.rput(0, vec![1])?].into_iter().collect();
    #[cfg(not(wrong))]
    requests.wait_any()?;
    drop(epoch); //~ E0505
    #[cfg(wrong)]
    requests.wait_any()?;
    Ok(())
}

fn fence(window: &mut Window<u64>) -> Result<(), Error> {
    let epoch = window.fence()?;
    let target = epoch.target(0)?;
    let mut request = target.rget(0, 1)?;
    #[cfg(not(wrong))]
    request.test()?;
    window.fence()?; //~ E0499
    #[cfg(wrong)]
    request.test()?;
    Ok(())
}

#[cfg(wrong)]
fn returned(window: &mut Window<u64>) -> Result<Request<'_, u64>, Error> {
    let epoch = window.lock_shared(0)?;
    epoch.rget(0, 1) //~ E0515
}
