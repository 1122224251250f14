//! What the lines of a board are written on: words and bytes that all its ranks share, and a bell.

use crate::bell;
use crate::control::Control;
use crate::copy;
use crate::memory::View;
use crate::progress::Progress;
use crate::words;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use transom_locks::{Awaited, Rank};
use transom_windows::{FabricError, Wait};

/// A trait, so that a model checker runs rounds as they ship.
pub(super) trait Slate {
    fn load(&self, word: usize, order: Ordering) -> u64;
    fn store(&self, word: usize, value: u64, order: Ordering);
    /// Sets a word that is 0 yet, sequentially consistently.
    fn claim(&self, word: usize, value: u64);
    fn fence(&self, order: Ordering);
    /// Writes bytes that nobody uses meanwhile.
    fn write(&self, at: usize, bytes: &[u8]);
    /// Reads bytes that nobody writes meanwhile.
    fn read(&self, at: usize, into: &mut [u8]);
    /// Wakes whoever waits, after a word was changed by a sequentially consistent operation.
    fn ring(&self);
    /// Whether ranks share cores.
    fn is_crowded(&self) -> bool;
    /// An error if a rank that is waited for is gone.
    fn check_peers(&self, me: Rank, awaited: Awaited) -> Result<(), FabricError>;
    /// Returns what `look` finds in words that it loads sequentially consistently, or the error of `check`.
    fn wait<R>(
        &self,
        wait: Wait<'_>,
        look: impl FnMut() -> Result<Option<R>, FabricError>,
        check: impl FnMut() -> Result<(), FabricError>,
    ) -> Result<R, FabricError>;
}

/// Memory that ranks share.
pub(super) struct Shared {
    pub view: View,
    pub control: Arc<Control>,
    pub progress: Arc<Progress>,
}

impl Shared {
    #[inline(always)]
    fn word(&self, offset: usize) -> &AtomicU64 {
        self.view.word(offset).expect("a board is laid out")
    }
}

impl Slate for Shared {
    #[inline(always)]
    fn load(&self, word: usize, order: Ordering) -> u64 {
        self.word(word).load(order)
    }

    #[inline(always)]
    fn store(&self, word: usize, value: u64, order: Ordering) {
        self.word(word).store(value, order);
    }

    fn claim(&self, word: usize, value: u64) {
        let _ = self.word(word).compare_exchange(0, value, Ordering::SeqCst, Ordering::SeqCst);
    }

    #[inline(always)]
    fn fence(&self, order: Ordering) {
        std::sync::atomic::fence(order);
    }

    #[inline(always)]
    fn write(&self, at: usize, bytes: &[u8]) {
        let to = self.view.address(at, bytes.len());
        // SAFETY: inside the view, which is accessed by atomics and `copy` alone.
        unsafe { copy::to_shared(to.expect("within its cell"), bytes) };
    }

    #[inline(always)]
    fn read(&self, at: usize, into: &mut [u8]) {
        let from = self.view.address(at, into.len());
        // SAFETY: inside the view, which is accessed by atomics and `copy` alone.
        unsafe { copy::from_shared(from.expect("within its cell"), into) };
    }

    #[inline(always)]
    fn ring(&self) {
        bell::ring(&self.view.header().bell);
    }

    #[inline(always)]
    fn is_crowded(&self) -> bool {
        self.control.is_crowded()
    }

    fn check_peers(&self, me: Rank, awaited: Awaited) -> Result<(), FabricError> {
        self.control.check_peers(me, awaited)
    }

    fn wait<R>(
        &self,
        wait: Wait<'_>,
        look: impl FnMut() -> Result<Option<R>, FabricError>,
        check: impl FnMut() -> Result<(), FabricError>,
    ) -> Result<R, FabricError> {
        words::wait(&self.view, wait, self.is_crowded(), &self.progress, look, check)
    }
}
