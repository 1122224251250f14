//! Memory of a world for what its collectives pack and unpack: kept from call to call, since new pages cost more than their bytes.

use crate::lock::lock;
use bytemuck::Pod;
use std::mem::{align_of, size_of};
use std::sync::Mutex;

/// Most bytes that are kept between calls.
const KEPT: usize = 32 << 20;

/// Memory that one call at a time uses. Another thread's call has its own meanwhile.
#[derive(Default)]
pub(super) struct Scratch(Mutex<Vec<u128>>);

impl Scratch {
    /// Calls `act` with two slices of so many elements, whatever is in them; none if there is no memory for them.
    pub fn with<T: Pod, R>(&self, lens: [usize; 2], act: impl FnOnce(&mut [T], &mut [T]) -> R) -> Option<R> {
        if size_of::<T>() == 0 || align_of::<T>() > align_of::<u128>() {
            let [mut first, mut second] = [fresh(lens[0])?, fresh(lens[1])?];
            return Some(act(&mut first, &mut second));
        }
        let words = |len: usize| Some(len.checked_mul(size_of::<T>())?.div_ceil(size_of::<u128>()));
        let (first, second) = (words(lens[0])?, words(lens[1])?);
        let needed = first.checked_add(second)?;
        let mut memory = std::mem::take(&mut *lock(&self.0));
        if memory.len() < needed {
            memory.try_reserve_exact(needed - memory.len()).ok()?;
            memory.resize(needed, 0);
        }
        let (one, two) = memory.split_at_mut(first);
        let result = act(of_elements(one, lens[0]), of_elements(two, lens[1]));
        if memory.len() * size_of::<u128>() <= KEPT {
            *lock(&self.0) = memory;
        }
        Some(result)
    }
}

/// The first elements of these words.
fn of_elements<T: Pod>(words: &mut [u128], len: usize) -> &mut [T] {
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(words);
    bytemuck::cast_slice_mut(&mut bytes[..len * size_of::<T>()])
}

fn fresh<T: Pod>(len: usize) -> Option<Box<[T]>> {
    bytemuck::allocation::try_zeroed_slice_box(len).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_is_kept_unless_it_is_large() {
        let scratch = Scratch::default();
        let start = |lens| {
            scratch.with(lens, |one: &mut [u32], two: &mut [u32]| {
                assert_eq!([one.len(), two.len()], lens);
                one.fill(1);
                two.fill(2);
                assert!(one.iter().all(|value| *value == 1));
                one.as_ptr().addr()
            })
        };
        let first = start([3, 5]);
        assert_eq!(start([1, 0]), first);
        assert_eq!(lock(&scratch.0).len(), 3);
        assert!(start([0, KEPT / 4 + 1]).is_some());
        assert_eq!(lock(&scratch.0).len(), 0, "so much is not kept");
        assert_eq!(start([usize::MAX / 2, 3]), None);
        assert_eq!(scratch.with([2, 2], |_: &mut [()], two: &mut [()]| two.len()), Some(2));
    }
}
