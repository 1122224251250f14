//! Elements are plain data, of which every bit pattern is a value: other ranks write them, and they are copied
//! bytewise.
//= `bool` is not plain data, so it cannot be an element of a window, array or message
//= `char` is not plain data
//= `Padded` is not plain data, so it cannot be an element
//= `#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]` and `#[repr(C)]`
//= features = ["derive"]
//- the following other types implement trait

use transom::messages::Tag;
use transom::{Error, World};

fn main() {}

#[derive(Clone, Copy)]
#[repr(C)]
struct Padded {
    small: u8,
    large: u64,
}

fn elements(world: &World) -> Result<(), Error> {
    world.allocate::<u64>(8)?;
    world.send(0, Tag::new(1), &[1.0])?;
    world.allocate::<[f32; 3]>(8)?;
    #[cfg(wrong)]
    world.allocate::<&u64>(8)?; //~ E0277
    #[cfg(wrong)]
    world.allocate::<bool>(8)?; //~ E0277
    #[cfg(wrong)]
    world.allocate::<char>(8)?; //~ E0277
    #[cfg(wrong)]
    world.allocate::<Padded>(8)?; //~ E0277
    #[cfg(wrong)]
    world.allocate::<(u8, u64)>(8)?; //~ E0277
    #[cfg(wrong)]
    world.allocate::<String>(8)?; //~ E0277
    #[cfg(wrong)]
    world.allocate::<Option<u32>>(8)?; //~ E0277
    #[cfg(wrong)]
    world.allocate::<*const u8>(8)?; //~ E0277
    #[cfg(wrong)]
    world.send(0, Tag::new(1), &[true])?; //~ E0277
    #[cfg(wrong)]
    world.broadcast(0, &mut ['a'])?; //~ E0277
    Ok(())
}
