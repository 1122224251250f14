//! Copies by relaxed atomics: for other processors, and for tools that must see every access (Miri, ThreadSanitizer).

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Copies `len` bytes. The destination is the shared side if `TO_SHARED`, else the source is. Each access of the shared
/// side is as wide as its address is aligned, up to 8 bytes, so that an aligned element is moved in one piece.
pub(super) unsafe fn move_bytes<const TO_SHARED: bool>(to: *mut u8, from: *const u8, len: usize) {
    let shared = if TO_SHARED { to.addr() } else { from.addr() };
    let mut done = 0;
    while done < len {
        macro_rules! whole {
            ($int:ty, $atomic:ty) => {{
                // SAFETY: this many bytes remain on both sides, and the shared side is aligned to them.
                unsafe {
                    let (to, from) = (to.add(done), from.add(done));
                    if TO_SHARED {
                        (*to.cast::<$atomic>()).store(from.cast::<$int>().read_unaligned(), Relaxed);
                    } else {
                        to.cast::<$int>().write_unaligned((*from.cast::<$atomic>()).load(Relaxed));
                    }
                }
                done += size_of::<$int>();
            }};
        }
        let fits = |width: usize| (shared + done).is_multiple_of(width) && len - done >= width;
        match () {
            () if fits(8) => whole!(u64, AtomicU64),
            () if fits(4) => whole!(u32, AtomicU32),
            () if fits(2) => whole!(u16, AtomicU16),
            () => whole!(u8, AtomicU8),
        }
    }
}

/// Prefetches a cache line where the processor has an instruction for it; does nothing here.
#[cfg(any(not(target_arch = "x86_64"), miri, transom_portable_copy))]
#[inline(always)]
pub(crate) fn prefetch<const TO_WRITE: bool>(_: *const u8) {}

/// See [`change_blocks`](super::change_blocks): copies are as fast here.
#[cfg(any(not(target_arch = "x86_64"), miri, transom_portable_copy))]
pub(super) unsafe fn change_64(_: *mut u8, _: usize, _: impl transom_windows::UpdateInPlace) -> bool {
    false
}
