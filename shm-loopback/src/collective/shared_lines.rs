//! Memory that holds the lines of a board: words and bytes that all ranks share, and an event count.

use crate::control::Control;
use crate::copy;
use crate::event_count;
use crate::memory::View;
use crate::progress::Progress;
use crate::words;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use transom_locks::{Awaited, Rank};
use transom_windows::{FabricError, Wait};

/// A trait, so that the model checker runs the rounds that ship.
pub(super) trait SharedLines {
    type Word: Word;
    /// Returns the words of the line that contains byte `at`.
    fn line(&self, at: usize) -> &[Self::Word; 8];
    /// Returns the word at byte `at`.
    #[inline(always)]
    fn word(&self, at: usize) -> &Self::Word {
        &self.line(at)[at / 8 % 8]
    }
    fn fence(&self, order: Ordering);
    /// Writes bytes that no other thread accesses meanwhile.
    fn write(&self, at: usize, bytes: &[u8]);
    /// Reads bytes that no thread writes meanwhile.
    fn read(&self, at: usize, into: &mut [u8]);
    /// Hints that the line will be read or written soon.
    fn prefetch<const TO_WRITE: bool>(&self, line: usize);
    /// Wakes all waiting ranks. The caller has changed a word before.
    fn notify(&self);
    /// Returns whether ranks share cores.
    fn is_oversubscribed(&self) -> bool;
    /// Fails if an awaited rank has died or left.
    fn check_peers(&self, me: Rank, awaited: Awaited) -> Result<(), FabricError>;
    /// Blocks until `look` returns a value or `check` fails. `look` loads words sequentially consistently.
    fn wait<R>(
        &self,
        wait: Wait<'_>,
        look: impl FnMut() -> Result<Option<R>, FabricError>,
        check: impl FnMut() -> Result<(), FabricError>,
    ) -> Result<R, FabricError>;
}

pub(super) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    /// Sets the word to `value` if it is 0, sequentially consistently.
    fn claim(&self, value: u64);
}

impl Word for AtomicU64 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    fn claim(&self, value: u64) {
        let _ = self.compare_exchange(0, value, Ordering::SeqCst, Ordering::SeqCst);
    }
}

/// Memory shared by the ranks.
pub(super) struct Shared {
    pub view: View,
    /// The view as lines. `view` keeps it mapped.
    lines: NonNull<[[AtomicU64; 8]]>,
    control: Arc<Control>,
    progress: Arc<Progress>,
    /// Callback that a long wait calls every 100 ms.
    pub at_long_waits: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

// SAFETY: the view is `Send` and `Sync`, and keeps the lines mapped.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub fn new(view: View, control: Arc<Control>, progress: Arc<Progress>) -> Self {
        Shared { lines: NonNull::from(view.lines()), view, control, progress, at_long_waits: OnceLock::new() }
    }
}

impl SharedLines for Shared {
    type Word = AtomicU64;

    #[inline(always)]
    fn line(&self, at: usize) -> &[AtomicU64; 8] {
        // SAFETY: `view` keeps the lines mapped and in place.
        let lines = unsafe { self.lines.as_ref() };
        &lines[at / 64]
    }

    #[inline(always)]
    fn fence(&self, order: Ordering) {
        std::sync::atomic::fence(order);
    }

    #[inline(always)]
    fn write(&self, at: usize, bytes: &[u8]) {
        if let Ok(word) = bytes.try_into()
            && at.is_multiple_of(8)
        {
            return self.word(at).store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
        let to = self.view.address(at, bytes.len());
        // SAFETY: the range is inside the view, which is accessed by atomics and `copy` only.
        unsafe { copy::to_shared(to.expect("within its cell"), bytes) };
    }

    #[inline(always)]
    fn read(&self, at: usize, into: &mut [u8]) {
        if let Ok(word) = <&mut [u8; 8]>::try_from(&mut *into)
            && at.is_multiple_of(8)
        {
            *word = self.word(at).load(Ordering::Relaxed).to_ne_bytes();
            return;
        }
        let from = self.view.address(at, into.len());
        // SAFETY: the range is inside the view, which is accessed by atomics and `copy` only.
        unsafe { copy::from_shared(from.expect("within its cell"), into) };
    }

    #[inline(always)]
    fn prefetch<const TO_WRITE: bool>(&self, line: usize) {
        self.view.prefetch::<TO_WRITE>(line);
    }

    #[inline(always)]
    fn notify(&self) {
        event_count::notify(&self.view.header().event);
    }

    #[inline(always)]
    fn is_oversubscribed(&self) -> bool {
        self.control.is_oversubscribed()
    }

    fn check_peers(&self, me: Rank, awaited: Awaited) -> Result<(), FabricError> {
        if let Some(act) = self.at_long_waits.get() {
            act();
        }
        self.control.check_peers(me, awaited)
    }

    fn wait<R>(
        &self,
        wait: Wait<'_>,
        look: impl FnMut() -> Result<Option<R>, FabricError>,
        check: impl FnMut() -> Result<(), FabricError>,
    ) -> Result<R, FabricError> {
        words::wait(&self.view, wait, self.is_oversubscribed(), &self.progress, look, check)
    }
}
