//! Copies by assembly: the compiler knows only which bytes the accesses may change.

use transom_windows::UpdateInPlace;

/// Copies `len` bytes, single elements in one piece. The destination is the shared side if `TO_SHARED`, else the source
/// is.
#[inline(always)]
pub(super) unsafe fn move_bytes<const TO_SHARED: bool>(to: *mut u8, from: *const u8, len: usize) {
    use std::arch::asm;
    macro_rules! whole {
        ($int:ty, $class:ident, $width:literal, $modifier:literal) => {
            // SAFETY: both sides are valid for this many bytes. The compiler accesses the private side, so that it may
            // keep a value in a register; it does not access the shared side.
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
        // SAFETY: caller's contract.
        _ => unsafe { bulk(to, from, len) },
    }
}

/// [`move_bytes`] of 32 bytes.
#[inline(always)]
unsafe fn move_32<const TO_SHARED: bool>(to: *mut u8, from: *const u8) {
    use std::arch::asm;
    use std::arch::x86_64::__m128i;
    // SAFETY: both sides are valid for 32 bytes: caller's contract. As above, the compiler accesses the private side.
    unsafe {
        if TO_SHARED {
            let [a, b] = from.cast::<[__m128i; 2]>().read_unaligned();
            asm!("movups [{to}], {a}", "movups [{to} + 16], {b}", to = in(reg) to, a = in(xmm_reg) a, b = in(xmm_reg) b,
                 options(nostack, preserves_flags));
        } else {
            let (a, b): (__m128i, __m128i);
            asm!("movups {a}, [{from}]", "movups {b}, [{from} + 16]", from = in(reg) from, a = out(xmm_reg) a,
                 b = out(xmm_reg) b, options(nostack, preserves_flags, readonly));
            to.cast::<[__m128i; 2]>().write_unaligned([a, b]);
        }
    }
}

/// Prefetches the cache line of this address for reading or writing: a hint, valid for any address.
#[inline(always)]
pub(crate) fn prefetch<const TO_WRITE: bool>(shared: *const u8) {
    use std::arch::asm;
    // SAFETY: neither instruction faults or has a visible effect; a processor without the second ignores it.
    unsafe {
        if TO_WRITE {
            asm!("prefetchw [{at}]", at = in(reg) shared, options(nostack, preserves_flags, readonly));
        } else {
            asm!("prefetcht0 [{at}]", at = in(reg) shared, options(nostack, preserves_flags, readonly));
        }
    }
}

/// See [`change_blocks`](super::change_blocks).
#[inline(always)]
pub(super) unsafe fn change_64(shared: *mut u8, blocks: usize, change: impl UpdateInPlace) -> bool {
    // SAFETY: caller's contract; the processor has AVX2 where that is used.
    unsafe {
        match std::arch::is_x86_feature_detected!("avx2") {
            true => change_64_by_avx2(shared, blocks, change),
            false => change_64_by_sse2(shared, blocks, change),
        }
    }
    true
}

/// Compiled for AVX2, together with `change`.
#[target_feature(enable = "avx2")]
unsafe fn change_64_by_avx2(shared: *mut u8, blocks: usize, mut change: impl UpdateInPlace) {
    use std::arch::asm;
    use std::arch::x86_64::__m256i;
    use std::mem::transmute;
    for number in 0..blocks {
        // SAFETY: inside: caller's contract.
        let at = unsafe { shared.add(64 * number) };
        let (a, b): (__m256i, __m256i);
        // SAFETY: as above. The compiler accesses the local block.
        unsafe {
            asm!("vmovdqu {a}, [{at}]", "vmovdqu {b}, [{at} + 32]", at = in(reg) at, a = out(ymm_reg) a, b = out(ymm_reg) b,
                 options(nostack, preserves_flags, readonly));
        }
        // SAFETY: both are 64 bytes of plain data.
        let mut block = unsafe { transmute::<[__m256i; 2], [u64; 8]>([a, b]) };
        change.change(number, &mut block);
        // SAFETY: as above.
        let [a, b] = unsafe { transmute::<[u64; 8], [__m256i; 2]>(block) };
        // SAFETY: as above.
        unsafe {
            asm!("vmovdqu [{at}], {a}", "vmovdqu [{at} + 32], {b}", at = in(reg) at, a = in(ymm_reg) a, b = in(ymm_reg) b,
                 options(nostack, preserves_flags));
        }
    }
}

unsafe fn change_64_by_sse2(shared: *mut u8, blocks: usize, mut change: impl UpdateInPlace) {
    for number in 0..blocks {
        let mut block = [0u64; 8];
        // SAFETY: inside: caller's contract. A block is two halves.
        unsafe {
            let at = shared.add(64 * number);
            let halves = block.as_mut_ptr().cast::<u8>();
            move_32::<false>(halves, at);
            move_32::<false>(halves.add(32), at.add(32));
            change.change(number, &mut block);
            let halves = block.as_ptr().cast::<u8>();
            move_32::<true>(at, halves);
            move_32::<true>(at.add(32), halves.add(32));
        }
    }
}

/// Copies `len` bytes.
#[inline]
unsafe fn bulk(to: *mut u8, from: *const u8, len: usize) {
    use std::arch::asm;
    const STRING_FROM: usize = 1024;
    if len >= STRING_FROM {
        // The first 64 bytes are copied separately, so that the rest begins at a cache line of the destination.
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
