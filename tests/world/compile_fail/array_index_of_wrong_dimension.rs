//! Elements and patches of an array are named by as many numbers as the array has dimensions; pointers know their
//! elements.

use transom::{Distribution, GlobalArray, GlobalPtr};

fn main() -> Result<(), transom::Error> {
    let world = transom::init().expect("a world of one");
    let mut line: GlobalArray<u64> = world.array([8], Distribution::Block)?;
    let mut plane: GlobalArray<f64, 2> = world.array([8, 8], Distribution::BlockCyclic([4, 4]))?;
    #[cfg(wrong)]
    let volume: GlobalArray<f64, 3> = world.array([8, 8], Distribution::Block)?; //~ E0308
    let (line, plane) = (line.lock_all()?, plane.lock_all()?);
    line.get_one(1)?;
    line.put(1..2, &[1])?;
    plane.get_one([1, 1])?;
    plane.put([1..2, 1..2], &[1.0])?;
    //= `usize` does not name an element of a global array of `f64` in 2 dimension(s)
    //= pass `[usize; 2]`
    #[cfg(wrong)]
    plane.get_one(1usize)?; //~ E0277
    //= pass a range `a..b` of `usize` for each dimension, as `[Range<usize>; 2]`
    #[cfg(wrong)]
    plane.put(1..2usize, &[1.0])?; //~ E0277
    #[cfg(wrong)]
    line.get_one([1, 1])?; //~ E0277
    let pointer: GlobalPtr<u64> = line.ptr(1)?;
    line.get_one(pointer)?;
    #[cfg(wrong)]
    plane.get_one(pointer)?; //~ E0277
    Ok(())
}
