//! Waiting for words of one's own memory: spin, or yield where ranks share cores, then sleep until the bell of its block
//! rings.
//!
//! No wake-up is lost: the waiter raises `sleepers` before it looks at the words a last time, the ringer looks at
//! `sleepers` after it changed a word, all four sequentially consistent; so one of them sees the other. If the
//! ringer does, it changes `bell`, on whose earlier value the waiter sleeps.

use crate::memory::Header;
#[cfg(not(miri))]
use rustix::thread::futex;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use transom_windows::FabricError;

/// How long a sleeper goes without looking whether those it waits for still live.
const ROUND: Duration = Duration::from_millis(100);

/// How long to stay awake before sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience {
    /// Looks at the words, with a pause each, before anything else.
    pub spins: u32,
    /// Whether to yield the processor to others after that, instead of going on.
    pub yields: bool,
    /// When to sleep.
    pub awake: Duration,
}

impl Patience {
    /// A hand-over between two running ranks takes well under a microsecond, and being woken 50 of them: worth spinning
    /// for while every rank has a core, as long as ranks that compute between two fences may differ. Where ranks share
    /// cores, whoever is waited for may need this one: yield at once.
    pub fn new(ranks: usize, cores: usize) -> Self {
        match ranks <= cores {
            true => Patience { spins: 1000, yields: false, awake: Duration::from_millis(10) },
            false => Patience { spins: 2, yields: true, awake: Duration::from_micros(200) },
        }
    }
}

/// Wakes the owner of a block if it sleeps; to be called after its word was changed by a sequentially consistent
/// operation.
#[inline(always)]
pub(crate) fn ring(header: &Header) {
    if header.sleepers.load(SeqCst) != 0 {
        ring_loud(header);
    }
}

#[cold]
#[inline(never)]
fn ring_loud(header: &Header) {
    header.bell.fetch_add(1, SeqCst);
    // Miri knows no futex of this kind; sleepers only yield there.
    #[cfg(not(miri))]
    let _ = futex::wake(&header.bell, futex::Flags::empty(), i32::MAX as u32);
}

/// Waits until `look` finds what it looks for in words of the block, which it must load sequentially consistently.
/// `vain` is asked now and then whether the wait can still end; its error ends it, unless `look` succeeds after all.
#[inline(always)]
pub(crate) fn wait<R>(
    header: &Header,
    patience: Patience,
    mut look: impl FnMut() -> Result<Option<R>, FabricError>,
    vain: impl FnMut() -> Result<(), FabricError>,
) -> Result<R, FabricError> {
    for _ in 0..=patience.spins {
        if let Some(found) = look()? {
            return Ok(found);
        }
        std::hint::spin_loop();
    }
    wait_long(header, patience, look, vain)
}

#[cold]
#[inline(never)]
fn wait_long<R>(
    header: &Header,
    patience: Patience,
    mut look: impl FnMut() -> Result<Option<R>, FabricError>,
    mut vain: impl FnMut() -> Result<(), FabricError>,
) -> Result<R, FabricError> {
    let began = Instant::now();
    while began.elapsed() < patience.awake {
        let looks = if patience.yields { 1 } else { 100 };
        if patience.yields {
            std::thread::yield_now();
        }
        for _ in 0..looks {
            if let Some(found) = look()? {
                return Ok(found);
            }
            std::hint::spin_loop();
        }
    }
    loop {
        let sleeping = Sleeping::new(header);
        let bell = header.bell.load(SeqCst);
        if let Some(found) = look()? {
            return Ok(found);
        }
        sleep(header, bell);
        drop(sleeping);
        if let Some(found) = look()? {
            return Ok(found);
        }
        // Not sooner: what everybody has done already may only have to reach us.
        if began.elapsed() >= ROUND
            && let Err(error) = vain()
        {
            // Whoever died or left may have told us just before.
            return look()?.ok_or(error);
        }
    }
}

/// Counts a sleeper, also if its `look` panics.
struct Sleeping<'h>(&'h Header);

impl<'h> Sleeping<'h> {
    fn new(header: &'h Header) -> Self {
        header.sleepers.fetch_add(1, SeqCst);
        Sleeping(header)
    }
}

impl Drop for Sleeping<'_> {
    fn drop(&mut self) {
        self.0.sleepers.fetch_sub(1, SeqCst);
    }
}

fn sleep(header: &Header, bell: u32) {
    #[cfg(not(miri))]
    {
        let round = ROUND.try_into().expect("a tenth of a second is a timespec");
        // However it ends (rung, changed before, interrupted, timed out), the caller looks again.
        let _ = futex::wait(&header.bell, futex::Flags::empty(), bell, Some(&round));
    }
    #[cfg(miri)]
    let _ = (header, bell, std::thread::yield_now());
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::memory::{Memory, View};
    use std::sync::Arc;

    /// Two threads hand a ball over, each sleeping at once; a wake-up that is lost costs a round.
    #[test]
    fn no_wake_up_is_lost() {
        const HAND_OVERS: u64 = 20_000;
        let memory = || View::whole(&Arc::new(Memory::heap(64, 1).expect("a cache line")));
        let sides = [memory(), memory()];
        let asleep_at_once = Patience { spins: 0, yields: true, awake: Duration::ZERO };
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for me in 0..2 {
                let sides = &sides;
                scope.spawn(move || {
                    for turn in (me..HAND_OVERS).step_by(2) {
                        let (mine, other) = (&sides[me as usize], &sides[1 - me as usize]);
                        let word = mine.word(0).expect("the first word");
                        let look = || Ok((word.load(SeqCst) >= turn).then_some(()));
                        wait(mine.header(), asleep_at_once, look, || Ok(())).expect("the other lives");
                        other.word(0).expect("the first word").store(turn + 1, SeqCst);
                        ring(other.header());
                    }
                });
            }
        });
        let lost = begun.elapsed().as_millis() / ROUND.as_millis();
        assert!(lost < 100, "{HAND_OVERS} hand-overs took {:?}", begun.elapsed());
    }
}
