//! Copies between private memory and memory that other ranks read and write at the same moment.
//!
//! Racing with another rank is the caller's program at fault, but must stay defined. On x86-64 every access is made by
//! assembly: the compiler knows nothing of it but which bytes it may change, and the processor defines what racing
//! accesses of any width give. `rep movsb` reaches the speed of memcpy from 1 KiB up, vector registers below.
//! Elsewhere, and for tools that must see every access, copies are relaxed atomics, a word at a time where aligned; there a
//! race between accesses of different widths is beyond what Rust's memory model defines today.

/// Copies `source` to shared memory. Elements of 1, 2, 4 or 8 aligned bytes, alone, are written in one piece.
///
/// # Safety
/// `shared` must be valid for writes of `source.len()` bytes, and all who access it must do so by atomics or by
/// these functions.
#[inline(always)]
pub(crate) unsafe fn to_shared(shared: *mut u8, source: &[u8]) {
    // SAFETY: in bounds by the caller's word; a slice and shared memory do not overlap.
    unsafe { move_bytes::<true>(shared, source.as_ptr(), source.len()) }
}

/// Copies shared memory to `into`.
///
/// # Safety
/// `shared` must be valid for reads of `into.len()` bytes; otherwise as [`to_shared`].
#[inline(always)]
pub(crate) unsafe fn from_shared(shared: *const u8, into: &mut [u8]) {
    // SAFETY: in bounds by the caller's word; a slice and shared memory do not overlap.
    unsafe { move_bytes::<false>(into.as_mut_ptr(), shared, into.len()) }
}

/// Copies `len` bytes, single elements in one piece; the destination is the shared side if `TO_SHARED`, else the source.
#[cfg(all(target_arch = "x86_64", not(miri), not(transom_portable_copy)))]
#[inline(always)]
unsafe fn move_bytes<const TO_SHARED: bool>(to: *mut u8, from: *const u8, len: usize) {
    use std::arch::asm;
    macro_rules! whole {
        ($int:ty, $class:ident, $width:literal, $modifier:literal) => {
            // SAFETY: both sides are valid for so many bytes. The private side is accessed by the compiler, so that it
            // may keep a value in a register; only the shared side is not.
            unsafe {
                if TO_SHARED {
                    let value = from.cast::<$int>().read_unaligned();
                    asm!(concat!("mov ", $width, " ptr [{to}], {value", $modifier, "}"), to = in(reg) to,
                         value = in($class) value, options(nostack, preserves_flags));
                } else {
                    let value: $int;
                    asm!(concat!("mov {value", $modifier, "}, ", $width, " ptr [{from}]"), from = in(reg) from,
                         value = out($class) value, options(nostack, preserves_flags, readonly));
                    to.cast::<$int>().write_unaligned(value);
                }
            }
        };
    }
    match len {
        8 => whole!(u64, reg, "qword", ""),
        4 => whole!(u32, reg, "dword", ":e"),
        2 => whole!(u16, reg, "word", ":x"),
        1 => whole!(u8, reg_byte, "byte", ""),
        // SAFETY: by the caller's word.
        _ => unsafe { bulk(to, from, len) },
    }
}

/// Copies `len` bytes.
#[cfg(all(target_arch = "x86_64", not(miri), not(transom_portable_copy)))]
#[inline]
unsafe fn bulk(to: *mut u8, from: *const u8, len: usize) {
    use std::arch::asm;
    const STRING_FROM: usize = 1024;
    if len >= STRING_FROM {
        // The first 64 bytes go by themselves, so that the rest can begin where a cache line of the destination does.
        // SAFETY: both sides are valid for `len` bytes, which are more than 64; the direction flag is clear by the ABI.
        unsafe {
            asm!(
                "movups {a}, [rsi]",
                "movups {b}, [rsi + 16]",
                "movups {c}, [rsi + 32]",
                "movups {d}, [rsi + 48]",
                "movups [rdi], {a}",
                "movups [rdi + 16], {b}",
                "movups [rdi + 32], {c}",
                "movups [rdi + 48], {d}",
                "mov {less}, rdi",
                "and {less}, 63",
                "sub {less}, 64",
                "sub rdi, {less}",
                "sub rsi, {less}",
                "add rcx, {less}",
                "rep movsb",
                inout("rdi") to => _,
                inout("rsi") from => _,
                inout("rcx") len => _,
                less = out(reg) _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack)
            );
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
unsafe fn move_bytes<const TO_SHARED: bool>(to: *mut u8, from: *const u8, len: usize) {
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
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
