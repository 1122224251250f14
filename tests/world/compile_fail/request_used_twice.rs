//! A request is in one set only, and is taken once.

use transom::{Error, Requests, World, wait_any};

fn main() {}

fn slice(world: &World) -> Result<(), Error> {
    let (mut one, mut two) = (world.ibarrier(), world.ibarrier());
    #[cfg(not(wrong))]
    wait_any(&mut [&mut one, &mut two]);
    #[cfg(wrong)]
    wait_any(&mut [&mut one, &mut one]); //~ E0499
    one.wait()?;
    two.wait()?;
    Ok(())
}

fn set(world: &World) {
    let request = world.ibarrier();
    let mut requests = Requests::new();
    requests.push(request);
    #[cfg(wrong)]
    requests.push(request); //~ E0382
}

/// The buffer of a get in a scope is the request's, also while a message and the get are waited for together.
fn scope(world: &World, window: &mut transom::Window<u64>) -> Result<(), Error> {
    let (epoch, mut row) = (window.lock_shared(0)?, [0; 4]);
    world.scope(|scope| {
        let (mut there, mut get) = (world.ibarrier(), scope.get(&epoch, 0, &mut row)?);
        wait_any(&mut [&mut there, &mut get]);
        #[cfg(wrong)]
        let first = row[0]; //~ E0503
        get.wait()?[0] += 1;
        there.wait()?;
        Ok::<(), Error>(())
    })?;
    row[0] += 1;
    Ok(())
}
