//! Copies between private memory and memory that other ranks read and write at the same moment.
//!
//! Racing with another rank is the caller's program at fault, but must stay defined: every access to shared memory is
//! an atomic one, or made by assembly, which the compiler must take to be as good as relaxed atomic accesses of
//! bytes. On x86-64, `rep movsb` reaches the speed of memcpy from 1 KiB up, and vector registers below.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Copies `source` to shared memory. Elements of 1, 2, 4 or 8 aligned bytes, alone, are written in one piece.
///
/// # Safety
/// `shared` must be valid for writes of `source.len()` bytes, and all who access it must do so by atomics or by
/// these functions.
#[inline(always)]
pub(crate) unsafe fn to_shared(shared: *mut u8, source: &[u8]) {
    let from = source.as_ptr();
    macro_rules! whole {
        ($atomic:ty, $int:ty) => {
            // SAFETY: in bounds by the caller's word, aligned by the match's guard.
            unsafe { (*shared.cast::<$atomic>()).store(from.cast::<$int>().read_unaligned(), Relaxed) }
        };
    }
    match source.len() {
        8 if shared.cast::<u64>().is_aligned() => whole!(AtomicU64, u64),
        4 if shared.cast::<u32>().is_aligned() => whole!(AtomicU32, u32),
        2 if shared.cast::<u16>().is_aligned() => whole!(AtomicU16, u16),
        1 => whole!(AtomicU8, u8),
        // SAFETY: in bounds by the caller's word; a slice and shared memory do not overlap.
        len => unsafe { bulk::<true>(shared, from, len) },
    }
}

/// Copies shared memory to `into`.
///
/// # Safety
/// `shared` must be valid for reads of `into.len()` bytes; otherwise as [`to_shared`].
#[inline(always)]
pub(crate) unsafe fn from_shared(shared: *const u8, into: &mut [u8]) {
    let to = into.as_mut_ptr();
    macro_rules! whole {
        ($atomic:ty, $int:ty) => {
            // SAFETY: in bounds by the caller's word, aligned by the match's guard.
            unsafe { to.cast::<$int>().write_unaligned((*shared.cast::<$atomic>()).load(Relaxed)) }
        };
    }
    match into.len() {
        8 if shared.cast::<u64>().is_aligned() => whole!(AtomicU64, u64),
        4 if shared.cast::<u32>().is_aligned() => whole!(AtomicU32, u32),
        2 if shared.cast::<u16>().is_aligned() => whole!(AtomicU16, u16),
        1 => whole!(AtomicU8, u8),
        // SAFETY: in bounds by the caller's word; a slice and shared memory do not overlap.
        len => unsafe { bulk::<false>(to, shared, len) },
    }
}

/// Copies `len` bytes; the destination is the shared side if `TO_SHARED`, else the source.
#[cfg(all(target_arch = "x86_64", not(miri), not(transom_portable_copy)))]
#[inline]
unsafe fn bulk<const TO_SHARED: bool>(to: *mut u8, from: *const u8, len: usize) {
    use std::arch::asm;
    const STRING_FROM: usize = 1024;
    if len >= STRING_FROM {
        // SAFETY: both sides are valid for `len` bytes; the direction flag is clear by the ABI.
        unsafe {
            asm!("rep movsb", inout("rdi") to => _, inout("rsi") from => _, inout("rcx") len => _,
                 options(nostack, preserves_flags));
        }
        return;
    }
    // SAFETY: the three loops together touch exactly `len` bytes on each side.
    unsafe {
        asm!(
            "sub {n}, 64",
            "jb 3f",
            "2:",
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movups [{to}], {a}",
            "movups [{to} + 16], {b}",
            "movups [{to} + 32], {c}",
            "movups [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "sub {n}, 64",
            "jae 2b",
            "3:",
            "add {n}, 56",
            "js 5f",
            "4:",
            "mov {w}, [{from}]",
            "mov [{to}], {w}",
            "add {from}, 8",
            "add {to}, 8",
            "sub {n}, 8",
            "jns 4b",
            "5:",
            "add {n}, 8",
            "jz 7f",
            "6:",
            "mov {w:l}, byte ptr [{from}]",
            "mov byte ptr [{to}], {w:l}",
            "inc {from}",
            "inc {to}",
            "dec {n}",
            "jnz 6b",
            "7:",
            n = inout(reg) len => _,
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            w = out(reg_abcd) _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack)
        );
    }
}

/// The same by atomics: for other processors, and for tools that must see every access (Miri, ThreadSanitizer, which
/// is why the setting `transom_portable_copy` exists).
#[cfg(any(not(target_arch = "x86_64"), miri, transom_portable_copy))]
unsafe fn bulk<const TO_SHARED: bool>(to: *mut u8, from: *const u8, len: usize) {
    let shared = if TO_SHARED { to.addr() } else { from.addr() };
    let mut done = 0;
    while done < len {
        // SAFETY: `done` is below `len`, and a word is moved only where 8 bytes remain and the shared side is aligned.
        unsafe {
            let (to, from) = (to.add(done), from.add(done));
            if (shared + done).is_multiple_of(8) && len - done >= 8 {
                if TO_SHARED {
                    (*to.cast::<AtomicU64>()).store(from.cast::<u64>().read_unaligned(), Relaxed);
                } else {
                    to.cast::<u64>().write_unaligned((*from.cast::<AtomicU64>()).load(Relaxed));
                }
                done += 8;
            } else {
                if TO_SHARED {
                    (*to.cast::<AtomicU8>()).store(from.read(), Relaxed);
                } else {
                    to.write((*from.cast::<AtomicU8>()).load(Relaxed));
                }
                done += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_arrives_and_nothing_else_changes() {
        let source: Vec<u8> = (0..3000u32).map(|i| (i * 7 + 1) as u8).collect();
        for len in (0..200).chain([511, 1000, 1023, 1024, 1025, 2500]) {
            for (at, begin) in [(0, 0), (1, 0), (0, 3), (5, 2), (8, 4)] {
                let mut shared = vec![0xaa; 3000];
                let mut back = vec![0xbb; len];
                // SAFETY: `at + len` is below the vector's length, and nobody else sees it.
                unsafe {
                    to_shared(shared.as_mut_ptr().add(at), &source[begin..begin + len]);
                    from_shared(shared.as_ptr().add(at), &mut back);
                }
                assert_eq!(back, source[begin..begin + len], "{len} bytes at {at}");
                assert!(shared[..at].iter().chain(&shared[at + len..]).all(|&b| b == 0xaa), "{len} bytes at {at}");
            }
        }
    }
}
