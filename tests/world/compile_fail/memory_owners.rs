//! The owner of user memory guarantees its validity by an `unsafe` trait, and belongs to the window until that is
//! freed.

use std::ptr::NonNull;
use transom::{Buffer, Error, Owner, World};

fn main() {}

struct Mapped(NonNull<[u64]>);

// SAFETY: nobody else has the address.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

#[cfg(not(wrong))]
// SAFETY: the elements stay where they are, and nobody else has the address.
unsafe impl Owner for Mapped {
    type Element = u64;

    fn elements(&mut self) -> NonNull<[u64]> {
        self.0
    }
}

#[cfg(wrong)]
impl Owner for Mapped { //~ E0200
    type Element = u64;

    fn elements(&mut self) -> NonNull<[u64]> {
        self.0
    }
}

fn it_is_the_windows(world: &World, buffer: Buffer<u64>) -> Result<u64, Error> {
    #[cfg(not(wrong))]
    let first = buffer[0];
    let window = world.create_on(buffer, 0)?;
    #[cfg(wrong)]
    let first = buffer[0]; //~ E0382
    window.free_as::<Buffer<u64>>()?;
    Ok(first)
}

fn elements_that_move(world: &World) -> Result<(), Error> {
    #[cfg(wrong)]
    let elements = [0u64; 10];
    #[cfg(not(wrong))]
    let elements = vec![0u64; 10];
    world.create_on(elements, 0).map(drop) //~ E0277
}

fn borrowed_elements(world: &World) -> Result<(), Error> {
    let mut elements = vec![0u64; 10];
    #[cfg(wrong)]
    world.create_on(&mut elements[..], 0).map(drop)?; //~ E0277
    elements.fill(1);
    world.create(elements).map(drop)
}
