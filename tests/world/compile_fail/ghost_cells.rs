//! A collective call exchanges ghost cells: not within an epoch, nor while a slice of the cells is in use.

use transom::array::Halo;
use transom::{Error, GlobalArray};

fn main() {}

fn within_an_epoch(halo: &mut Halo<f64, 2>, array: &mut GlobalArray<f64, 2>) -> Result<f64, Error> {
    let epoch = array.lock_all()?;
    #[cfg(not(wrong))]
    let first = epoch.get_one([0, 0])?;
    #[cfg(not(wrong))]
    epoch.unlock()?;
    halo.exchange(array)?; //~ E0499
    #[cfg(wrong)]
    let first = epoch.get_one([0, 0])?;
    Ok(first)
}

fn cells_of_before(halo: &mut Halo<f64, 2>, array: &mut GlobalArray<f64, 2>) -> Result<f64, Error> {
    let cells = halo.cells();
    #[cfg(not(wrong))]
    let first = cells[0];
    halo.exchange(array)?; //~ E0502
    #[cfg(wrong)]
    let first = cells[0];
    Ok(first)
}

fn of_other_elements(
    halo: &mut Halo<f64, 2>,
    array: &mut GlobalArray<f64, 2>,
    narrow: &mut GlobalArray<f32, 2>,
) -> Result<(), Error> {
    narrow.fence()?;
    #[cfg(wrong)]
    let array = narrow;
    halo.exchange(array) //~ E0308
}

fn of_one_width(array: &GlobalArray<f64, 2>) -> Result<Halo<f64, 2>, Error> {
    #[cfg(wrong)]
    let width = [1];
    #[cfg(not(wrong))]
    let width = [1, 1];
    array.halo(width) //~ E0308
}
