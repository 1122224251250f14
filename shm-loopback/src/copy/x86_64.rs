//! Copies by assembly: the compiler knows nothing of the accesses but which bytes they may change.

/// Copies `len` bytes, single elements in one piece; the destination is the shared side if `TO_SHARED`, else the source.
#[inline(always)]
pub(super) unsafe fn move_bytes<const TO_SHARED: bool>(to: *mut u8, from: *const u8, len: usize) {
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

/// As [`move_bytes`], of 32 bytes.
#[inline(always)]
pub(super) unsafe fn move_32<const TO_SHARED: bool>(to: *mut u8, from: *const u8) {
    use std::arch::asm;
    use std::arch::x86_64::__m128i;
    // SAFETY: both sides are valid for so many bytes by the caller's word. As above, the private side is the compiler's.
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

/// Copies `len` bytes.
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
