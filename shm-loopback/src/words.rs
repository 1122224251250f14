//! The words of a block: the processor's atomics on them, and waiting for a change.

use crate::event_count;
use crate::memory::View;
use crate::progress::Progress;
use std::cell::Cell;
use std::sync::atomic::Ordering::SeqCst;
use transom_windows::{FabricError, Wait, Wake};

/// Polls before the clock is read: most waits are over by then. The second number is for ranks that share cores, where
/// the awaited rank may need this one.
const LOOKS: [u32; 2] = [64, 2];

/// Returns whether a wait that has polled `looks` times should poll again before it reads the clock.
#[inline(always)]
pub(crate) fn looks_again(looks: u32, oversubscribed: bool) -> bool {
    looks < LOOKS[usize::from(oversubscribed || !transom_windows::has_own_core())]
}

#[inline(always)]
pub(crate) fn cas(at: &View, offset: usize, expected: u64, new: u64, wake: Wake) -> Result<u64, FabricError> {
    match at.own_word(offset)?.compare_exchange(expected, new, SeqCst, SeqCst) {
        Ok(found) => {
            notify_waiters(at, wake);
            Ok(found)
        }
        Err(found) => Ok(found),
    }
}

#[inline(always)]
pub(crate) fn add(at: &View, offset: usize, delta: u64, wake: Wake) -> Result<u64, FabricError> {
    let found = at.own_word(offset)?.fetch_add(delta, SeqCst);
    notify_waiters(at, wake);
    Ok(found)
}

#[inline(always)]
pub(crate) fn notify(at: &View, offset: usize, value: u64, wake: Wake) -> Result<(), FabricError> {
    at.own_word(offset)?.store(value, SeqCst);
    notify_waiters(at, wake);
    Ok(())
}

#[inline(always)]
pub(crate) fn read(at: &View, offset: usize) -> Result<u64, FabricError> {
    Ok(at.word(offset)?.load(SeqCst))
}

#[inline(always)]
fn notify_waiters(at: &View, wake: Wake) {
    if wake == Wake::Home {
        event_count::notify(&at.header().event);
    }
}

/// Waits until `look` finds its result in words of the block, which it must load sequentially consistently.
/// `oversubscribed` and `check` are those of [`Wait::until`]. The rank's messages make progress before the first poll and
/// after each unsuccessful one.
#[inline(always)]
pub(crate) fn wait<R>(
    block: &View,
    wait: Wait<'_>,
    oversubscribed: bool,
    progress: &Progress,
    mut look: impl FnMut() -> Result<Option<R>, FabricError>,
    check: impl FnMut() -> Result<(), FabricError>,
) -> Result<R, FabricError> {
    let busy = Cell::new(false);
    let mut first = true;
    let mut look = || {
        // The first poll makes progress in any case: a caller may wait again and again for what is there at once.
        if !std::mem::take(&mut first)
            && let Some(found) = look()?
        {
            return Ok(Some(found));
        }
        if let Some(hook) = progress.get() {
            busy.set(hook.progress());
        }
        look()
    };
    let mut looks = 0;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        looks += 1;
        if !looks_again(looks, oversubscribed) {
            break;
        }
        // A rank that shares its core yields it instead.
        if !oversubscribed {
            std::hint::spin_loop();
        }
    }
    let event = &block.header().event;
    wait.until(oversubscribed, look, check, |look| match progress.get() {
        None => event_count::park(event, wait.left(), look),
        Some(hook) => hook.park(event, &busy, wait.left(), look),
    })
}
