//! A buffer in flight belongs to the request, or is lent for as long as the scope; a tag carries the element type.

use transom::messages::{Error, Persistent, Tag};
use transom::World;

const HALO: Tag<f64> = Tag::new(1);

fn main() {}

fn owned(world: &World) -> Result<(), transom::Error> {
    let mut data = vec![1.0, 2.0];
    let sent = world.isend(1, HALO, data);
    #[cfg(wrong)]
    data.push(3.0); //~ E0382
    data = sent.wait()?;
    data.push(3.0);
    Ok(())
}

fn lent(world: &World, data: &mut [f64]) -> Result<f64, transom::Error> {
    world.scope(|scope| {
        let coming = scope.irecv(0, HALO, data);
        #[cfg(wrong)]
        let first = data[0]; //~ E0503
        #[cfg(not(wrong))]
        let first = coming.wait()?[0];
        Ok::<f64, transom::Error>(first)
    })
}

fn of_the_closure(world: &World) -> Result<(), Error> {
    #[cfg(not(wrong))]
    let own = [1.0];
    world.scope(|scope| {
        #[cfg(wrong)]
        let own = [1.0];
        drop(scope.isend(1, HALO, &own)); //~ E0597
        Ok(())
    })
}

fn another_type(world: &World) -> Result<(), Error> {
    #[cfg(wrong)]
    world.send(1, HALO, &[1_u32])?; //~ E0308
    world.send(1, HALO, &[1.0])
}

fn twice(world: &World) -> Result<Vec<f64>, Error> {
    let message = world.probe(0, HALO)?;
    let got = message.recv()?;
    #[cfg(wrong)]
    message.recv()?; //~ E0382
    Ok(got)
}

fn active(sending: &mut Persistent<f64>) -> Result<(), Error> {
    let active = sending.start()?;
    #[cfg(wrong)]
    sending.buffer()?.fill(2.0); //~ E0499
    active.wait()?;
    sending.buffer()?[0] = 2.0;
    Ok(())
}
