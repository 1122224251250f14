//! An `Op` reduces words; composite elements take a slice, or a function.

use transom::collective::Commutative;
use transom::{Error, Op, World};

fn main() {}

fn sums(world: &World) -> Result<(), Error> {
    world.all_reduce(&mut [1.0, 2.0], Op::Sum)?;
    world.all_reduce_one([1.0, 2.0], Commutative(|a: [f64; 2], b: [f64; 2]| [a[0] + b[0], a[1] + b[1]]))?;
    //= in a reduction: elements as a slice, `all_reduce(&mut [1.0, 2.0], Op::Sum)`, or a function, `Commutative(|a, b| ..)`
    #[cfg(wrong)]
    world.all_reduce_one([1.0, 2.0], Op::Sum)?; //~ E0277
    Ok(())
}
