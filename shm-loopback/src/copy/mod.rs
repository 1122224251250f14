//! Copies between private memory and memory that other ranks read and write concurrently.
//!
//! A race with another rank is an error of the program, but must remain defined behaviour. On x86-64 every access is
//! made by assembly: the compiler knows only which bytes it may change, and the processor defines the result of racing
//! accesses of any width. `rep movsb` reaches the speed of memcpy from 1 KiB up, vector registers below. Elsewhere, and
//! for tools that must see every access, copies are relaxed atomics, as wide as they are aligned. A race between
//! accesses of different widths is there beyond what Rust's memory model defines today.

#[cfg(any(test, not(target_arch = "x86_64"), miri, transom_portable_copy))]
mod portable;
#[cfg(all(target_arch = "x86_64", not(miri), not(transom_portable_copy)))]
mod x86_64;

#[cfg(any(not(target_arch = "x86_64"), miri, transom_portable_copy))]
pub(crate) use portable::prefetch;
#[cfg(any(not(target_arch = "x86_64"), miri, transom_portable_copy))]
use portable::{change_64, move_bytes};
#[cfg(all(target_arch = "x86_64", not(miri), not(transom_portable_copy)))]
pub(crate) use x86_64::prefetch;
#[cfg(all(target_arch = "x86_64", not(miri), not(transom_portable_copy)))]
use x86_64::{change_64, move_bytes};

use transom_windows::UpdateInPlace;

/// [`to_shared`] of exactly 32 bytes, by words: words that the caller composes or takes apart stay in general
/// registers.
///
/// # Safety
/// The same as for [`to_shared`].
#[inline(always)]
pub(crate) unsafe fn to_shared_32(shared: *mut u8, source: &[u8; 32]) {
    for (at, word) in source.as_chunks::<8>().0.iter().enumerate() {
        // SAFETY: caller's contract, as for `to_shared`.
        unsafe { move_bytes::<true>(shared.add(8 * at), word.as_ptr(), 8) }
    }
}

/// [`from_shared`] of exactly 32 bytes, like [`to_shared_32`].
///
/// # Safety
/// The same as for [`from_shared`].
#[inline(always)]
pub(crate) unsafe fn from_shared_32(shared: *const u8, into: &mut [u8; 32]) {
    for (at, word) in into.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        // SAFETY: caller's contract, as for `from_shared`.
        unsafe { move_bytes::<false>(word.as_mut_ptr(), shared.add(8 * at), 8) }
    }
}

/// Copies `source` to shared memory. Elements of 1, 2, 4 or 8 aligned bytes, alone, are written in one piece.
///
/// # Safety
/// `shared` must be valid for writes of `source.len()` bytes, and all accesses to it must be by atomics or by these
/// functions.
#[inline(always)]
pub(crate) unsafe fn to_shared(shared: *mut u8, source: &[u8]) {
    // SAFETY: in bounds: caller's contract. A slice and shared memory do not overlap.
    unsafe { move_bytes::<true>(shared, source.as_ptr(), source.len()) }
}

/// Copies shared memory to `into`.
///
/// # Safety
/// `shared` must be valid for reads of `into.len()` bytes; otherwise the same as for [`to_shared`].
#[inline(always)]
pub(crate) unsafe fn from_shared(shared: *const u8, into: &mut [u8]) {
    // SAFETY: in bounds: caller's contract. A slice and shared memory do not overlap.
    unsafe { move_bytes::<false>(into.as_mut_ptr(), shared, into.len()) }
}

/// Changes blocks of 64 bytes of shared memory in place, one after another, while no other rank changes them. `change`
/// gets each block with its number. Returns false, and does nothing, where copies are as fast.
///
/// # Safety
/// `shared` must be valid for reads and writes of `64 blocks` bytes; otherwise the same as for [`to_shared`].
#[inline(always)]
pub(crate) unsafe fn change_blocks(shared: *mut u8, blocks: usize, change: impl UpdateInPlace) -> bool {
    // SAFETY: caller's contract.
    unsafe { change_64(shared, blocks, change) }
}

#[cfg(test)]
mod tests {
    use super::portable;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use transom_windows::UpdateInPlace;

    /// Records the numbers of its blocks, and inverts each bit.
    #[derive(Default)]
    struct Numbers(Vec<usize>);

    impl UpdateInPlace for &mut Numbers {
        fn change(&mut self, number: usize, block: &mut [u64; 8]) {
            self.0.push(number);
            block.iter_mut().for_each(|word| *word = !*word);
        }
    }

    type Move = unsafe fn(*mut u8, *const u8, usize);

    /// The implementation for this processor, and the portable one.
    const MOVES: [(&str, Move, Move); 2] = [
        ("here", super::move_bytes::<true>, super::move_bytes::<false>),
        ("portable", portable::move_bytes::<true>, portable::move_bytes::<false>),
    ];

    #[test]
    fn copies_change_exactly_their_range() {
        let source: Vec<u8> = (0..3000u32).map(|i| (i * 7 + 1) as u8).collect();
        for (name, to_shared, from_shared) in MOVES {
            for len in (0..200).step_by(if cfg!(miri) { 13 } else { 1 }).chain([511, 1000, 1023, 1024, 1025, 2500]) {
                for (at, begin) in [(0, 0), (1, 0), (0, 3), (5, 2), (8, 4)] {
                    let mut shared = vec![0xaa_u8; at + len + 70];
                    let mut back = vec![0xbb_u8; len];
                    // SAFETY: `at + len` is below the vector's length, and no other thread has it.
                    unsafe {
                        to_shared(shared.as_mut_ptr().add(at), source[begin..begin + len].as_ptr(), len);
                        from_shared(back.as_mut_ptr(), shared.as_ptr().add(at), len);
                    }
                    assert_eq!(back, source[begin..begin + len], "{name}: {len} bytes at {at}");
                    let others = shared[..at].iter().chain(&shared[at + len..]);
                    assert!(others.copied().all(|b| b == 0xaa), "{name}: {len} bytes at {at}");
                }
            }
        }
    }

    #[test]
    fn constant_32_byte_copies_are_exact() {
        let source: [u8; 32] = std::array::from_fn(|i| i as u8 + 1);
        for at in [0, 1, 7, 8, 40] {
            let (mut shared, mut back) = ([0xaa_u8; 80], [0; 32]);
            // SAFETY: within the array, and no other thread has it.
            unsafe {
                super::to_shared_32(shared.as_mut_ptr().add(at), &source);
                super::from_shared_32(shared.as_mut_ptr().add(at), &mut back);
            }
            assert_eq!((&shared[at..at + 32], back), (&source[..], source), "at {at}");
            assert_eq!(shared.iter().filter(|b| **b == 0xaa).count(), 48, "at {at}");
        }
    }

    #[test]
    fn blocks_are_updated_in_place() {
        for (at, blocks) in [(0, 0), (0, 1), (3, 1), (8, 5), (16, 7)] {
            let source: Vec<u8> = (0..600u32).map(|i| (i * 7 + 1) as u8).collect();
            let (mut shared, mut numbers) = (source.clone(), Numbers::default());
            // SAFETY: within the vector, and no other thread has it.
            let changed = unsafe { super::change_blocks(shared.as_mut_ptr().add(at), blocks, &mut numbers) };
            let inside = at..at + if changed { 64 * blocks } else { 0 };
            assert!(numbers.0.iter().copied().eq(0..inside.len() / 64));
            for (i, (now, was)) in shared.iter().zip(&source).enumerate() {
                assert_eq!(*now, if inside.contains(&i) { !was } else { *was }, "byte {i} of {blocks} blocks at {at}");
            }
        }
    }

    /// One thread writes elements of equal bytes while another reads: a read never mixes two elements.
    #[test]
    fn aligned_elements_are_never_torn() {
        #[repr(align(64))]
        struct Line([u8; 64]);
        for (name, to_shared, from_shared) in MOVES {
            for width in [1, 2, 4, 8] {
                for at in (0..16).step_by(width) {
                    let (mut line, over) = (Line([0; 64]), AtomicBool::new(false));
                    let shared = line.0.as_mut_ptr().expose_provenance() + at;
                    std::thread::scope(|scope| {
                        scope.spawn(|| {
                            for value in (0..if cfg!(miri) { 20 } else { 20_000u32 }).map(|i| i as u8) {
                                let element = [value; 8];
                                let shared = std::ptr::with_exposed_provenance_mut(shared);
                                // SAFETY: inside the line, which lives as long as the scope and is accessed by copies
                                // only.
                                unsafe { to_shared(shared, element.as_ptr(), width) };
                            }
                            over.store(true, Relaxed);
                        });
                        while !over.load(Relaxed) {
                            let mut element = [0; 8];
                            let shared = std::ptr::with_exposed_provenance(shared);
                            // SAFETY: as above.
                            unsafe { from_shared(element.as_mut_ptr(), shared, width) };
                            let whole = element[..width].iter().all(|byte| *byte == element[0]);
                            assert!(whole, "{name}: torn at {at}: {:?}", &element[..width]);
                        }
                    });
                }
            }
        }
    }
}
