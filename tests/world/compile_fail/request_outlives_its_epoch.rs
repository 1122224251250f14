//! A request is waited for before its epoch ends.

use transom::windows::Request;
use transom::{Error, Pending, Requests, Window, wait_all};

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
    let mut requests: Requests<'_, Vec<u64>> = [target.rput(0, vec![1])?].into_iter().collect();
    while requests.wait_any().is_some() {}
    #[cfg(not(wrong))]
    drop(requests);
    drop(epoch); //~ E0505
    Ok(())
}

fn fence(window: &mut Window<u64>) -> Result<(), Error> {
    let epoch = window.fence()?;
    let target = epoch.target(0)?;
    let mut request = target.rget(0, 1)?;
    request.test();
    #[cfg(not(wrong))]
    drop(request);
    window.fence()?; //~ E0499
    Ok(())
}

fn mixed(world: &transom::World, window: &mut Window<u64>) -> Result<(), Error> {
    let mut there = world.ibarrier();
    let epoch = window.lock_shared(0)?;
    let mut word = epoch.rget(0, 1)?;
    let mut both: [&mut dyn Pending; 2] = [&mut there, &mut word];
    wait_all(&mut both)?;
    #[cfg(not(wrong))]
    word.wait()?;
    epoch.unlock()?; //~ E0505
    Ok(())
}

#[cfg(wrong)]
fn returned(window: &mut Window<u64>) -> Result<Request<'_, Vec<u64>>, Error> {
    let epoch = window.lock_shared(0)?;
    epoch.rget(0, 1) //~ E0515
}
