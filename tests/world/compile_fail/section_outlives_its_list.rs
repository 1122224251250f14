//! An indexed section borrows its list.

use transom::{Error, Section, Window};

fn main() {}

fn gather(window: &mut Window<u64>) -> Result<(), Error> {
    let mut offsets = vec![4, 2];
    let section = Section::Indexed { offsets: &offsets, block: 1 };
    #[cfg(wrong)]
    offsets.push(0); //~ E0502
    window.lock_shared(0)?.get_section(&section, &mut [0; 2])?;
    offsets.push(0);
    Ok(())
}
