//! Waiting for memory that other ranks change: how often to look, when to yield the processor, and when to report a
//! long wait.

use crate::FabricError;
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::{Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use transom_locks::{Awaited, Rank};

/// The waiting policy of this process's ranks.
///
/// # Examples
/// ```
/// use transom_windows::Waiting;
/// let waiting = Waiting::default();
/// assert_eq!((waiting.spin.as_micros(), waiting.report.unwrap().as_secs()), (20, 5));
/// assert!(waiting.set()); // once per process; `transom::init` does it
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Time for which a wait polls memory without yielding the processor. Between running ranks a hand-over takes well
    /// under a microsecond; after a longer wait another thread may need the processor more.
    pub spin: Duration,
    /// Time after which a wait reports on stderr which rank waits for which, with the line of the program, the process
    /// and the host; `None` for no reports. Each pair of call and awaited rank is reported once, within the last 1,000.
    /// The line needs debug information (in release builds, `debug = "line-tables-only"` of the profile); without it the
    /// report names the function.
    pub report: Option<Duration>,
}

impl Default for Waiting {
    fn default() -> Self {
        Waiting { spin: Duration::from_micros(20), report: Some(Duration::from_secs(5)) }
    }
}

static WAITING: OnceLock<Waiting> = OnceLock::new();

impl Waiting {
    /// Sets the policy for all later waits of this process; returns whether none had been set before.
    pub fn set(self) -> bool {
        WAITING.set(self).is_ok()
    }

    fn of_this_process() -> Self {
        WAITING.get().copied().unwrap_or_default()
    }
}

/// Polls between two readings of the clock while spinning.
const LOOKS: u32 = 64;
/// Time for which a wait yields between polls before it sleeps: with a core per rank, and with shared cores.
const YIELD: [Duration; 2] = [Duration::from_millis(10), Duration::from_micros(200)];
/// A longer yield has let another process compute, so this core is in demand. Shorter yields are the kernel's work, or
/// that of a process that soon waits again.
const LONG_YIELD: Duration = Duration::from_micros(100);
/// Time for which waits of a thread sleep immediately after a long yield. A woken sleeper runs on a free core if there
/// is one, whereas a yielding thread waits for its turn on the same core, which may take milliseconds. A sleep and a
/// wake-up cost more than a hand-over by a yield, so the time is short.
const WANTED: Duration = Duration::from_millis(1);

/// The state of a thread's core, as observed by its last waits.
#[derive(Clone, Copy)]
enum Core {
    /// No other thread was seen on the core.
    Own,
    /// The last wait ended with its first yield. The awaited rank ran on this core, and could not run while this thread
    /// spun.
    Shared,
    /// Another process computed during a yield. Waits sleep immediately until this time.
    Wanted(Instant),
}

thread_local! {
    static CORE: Cell<Core> = const { Cell::new(Core::Own) };
}

/// Returns whether the last waits of this thread saw no other thread on its core. Only then may a wait spin before it
/// calls [`Wait::until`].
///
/// # Examples
/// ```
/// assert!(transom_windows::has_own_core()); // before the first wait
/// ```
#[inline(always)]
pub fn has_own_core() -> bool {
    matches!(CORE.get(), Core::Own)
}

/// Interval between checks that a wait can still end. Not shorter: the action of a rank that has left may still be in
/// flight.
const CHECK: Duration = Duration::from_millis(100);

/// First sleep of a [poll](Wait::poll); each further sleep is twice as long, up to the longest.
const FIRST_SLEEP: Duration = Duration::from_micros(10);
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// Unsuccessful polls by non-waiting calls per yield of the core.
const POLLS_PER_YIELD: u32 = 2;

/// Yields the core on every second call by this thread. Calls that do not wait call this after an unsuccessful poll
/// where ranks share cores: the awaited rank may need the core.
///
/// # Examples
/// ```
/// let found = || None::<u32>;
/// if found().is_none() {
///     transom_windows::after_empty_poll();
/// }
/// ```
pub fn after_empty_poll() {
    thread_local!(static LOOKS: Cell<u32> = const { Cell::new(0) });
    let looks = LOOKS.get() + 1;
    LOOKS.set(looks % POLLS_PER_YIELD);
    if looks == POLLS_PER_YIELD {
        std::thread::yield_now();
    }
}

/// One wait of a rank: the call in which it waits, and the rank whose action ends it.
///
/// # Examples
/// ```
/// use transom_locks::Awaited;
/// let wait = transom_windows::Wait { rank: 0, call: &"fence of window 1", awaited: Awaited::Rank(2), deadline: None };
/// assert_eq!(wait.to_string(), "rank 0 waits in fence of window 1 for rank 2");
/// ```
#[derive(Clone, Copy)]
pub struct Wait<'c> {
    /// The rank that waits.
    pub rank: Rank,
    /// The call in which it waits, for messages.
    pub call: &'c dyn fmt::Display,
    /// The rank whose action ends the wait.
    pub awaited: Awaited,
    /// The time at which `look` ends the wait by itself, if any. A sleeper must look again by then.
    pub deadline: Option<Instant>,
}

impl Wait<'_> {
    /// Time left until the deadline, which bounds a sleep until memory changes. [`Duration::MAX`] without a deadline.
    ///
    /// # Examples
    /// ```
    /// use std::time::{Duration, Instant};
    /// use transom_locks::Awaited;
    /// use transom_windows::Wait;
    /// let wait = Wait { rank: 0, call: &"an example", awaited: Awaited::Anyone, deadline: None };
    /// assert_eq!(wait.left(), Duration::MAX);
    /// let soon = Wait { deadline: Some(Instant::now() + Duration::from_millis(20)), ..wait };
    /// assert!(soon.left() <= Duration::from_millis(20));
    /// let over = Wait { deadline: Some(Instant::now()), ..wait };
    /// assert_eq!(over.left(), Duration::ZERO);
    /// ```
    pub fn left(&self) -> Duration {
        self.deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Polls until `look` finds a result, and returns it. Spins first, then yields the processor between polls, then
    /// calls `sleep`. `sleep` sleeps for a while, or until the memory may have changed, and may call `look` itself.
    /// With `oversubscribed`, when ranks share cores, the wait does not spin. Every 100 ms `check` tests whether the
    /// wait can still end.
    ///
    /// # Errors
    /// The errors of `look` and `sleep`; that of `check`, if a last `look` finds nothing.
    ///
    /// # Examples
    /// ```
    /// use transom_locks::Awaited;
    /// use transom_windows::{FabricError, Wait};
    /// let wait = Wait { rank: 0, call: &"an example", awaited: Awaited::Anyone, deadline: None };
    /// let mut looks = 0;
    /// let look = || {
    ///     looks += 1;
    ///     Ok((looks == 100).then_some("found"))
    /// };
    /// assert_eq!(wait.until(false, look, || Ok(()), |look| look())?, "found");
    /// # Ok::<(), FabricError>(())
    /// ```
    #[cold]
    #[inline(never)]
    pub fn until<R>(
        self,
        oversubscribed: bool,
        mut look: impl FnMut() -> Result<Option<R>, FabricError>,
        mut check: impl FnMut() -> Result<(), FabricError>,
        mut sleep: impl FnMut(Look<'_, R>) -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError> {
        let (Waiting { spin, report }, began) = (Waiting::of_this_process(), Instant::now());
        let core = CORE.replace(Core::Own);
        let (spin, mut awake) = match core {
            _ if oversubscribed => (Duration::ZERO, YIELD[1]),
            Core::Wanted(until) if began < until => {
                CORE.set(core);
                (Duration::ZERO, Duration::ZERO)
            }
            _ => (spin, spin + YIELD[0]),
        };
        let (mut yields, mut yield_first) = (0, matches!(core, Core::Shared));
        let (mut next_check, mut report) = (CHECK, report.unwrap_or(Duration::MAX));
        let mut reporter = Reporter(None);
        loop {
            let waited = began.elapsed();
            let found = if waited < spin && !std::mem::take(&mut yield_first) {
                let mut found = None;
                for _ in 0..LOOKS {
                    found = look()?;
                    if found.is_some() {
                        break;
                    }
                    std::hint::spin_loop();
                }
                found
            } else if waited < awake {
                std::thread::yield_now();
                yields += 1;
                let is_long = !oversubscribed && began.elapsed() - waited > LONG_YIELD;
                let found = look()?;
                if is_long {
                    CORE.set(Core::Wanted(Instant::now() + WANTED));
                    awake = Duration::ZERO;
                } else if found.is_some() && yields == 1 {
                    CORE.set(Core::Shared);
                }
                found
            } else {
                sleep(&mut look)?
            };
            if let Some(found) = found {
                return Ok(found);
            }
            if waited >= next_check {
                next_check = waited + CHECK;
                if let Err(error) = check() {
                    // The rank that died or left may have ended the wait just before.
                    return look()?.ok_or(error);
                }
            }
            if waited >= report {
                reporter.0 = self.report(waited);
                report = Duration::MAX;
            }
        }
    }

    /// [`until`](Self::until) for memory whose changes wake no sleeper. The sleep between two polls is 10 us at first,
    /// and doubles each time up to 1 ms.
    ///
    /// # Errors
    /// The errors of `until`.
    ///
    /// # Examples
    /// ```
    /// use transom_locks::Awaited;
    /// use transom_windows::{FabricError, Wait};
    /// let wait = Wait { rank: 0, call: &"an example", awaited: Awaited::Anyone, deadline: None };
    /// let mut looks = 0;
    /// let look = || {
    ///     looks += 1;
    ///     Ok((looks == 100).then_some("found"))
    /// };
    /// assert_eq!(wait.poll(true, look, || Ok(()))?, "found");
    /// # Ok::<(), FabricError>(())
    /// ```
    pub fn poll<R>(
        self,
        oversubscribed: bool,
        look: impl FnMut() -> Result<Option<R>, FabricError>,
        check: impl FnMut() -> Result<(), FabricError>,
    ) -> Result<R, FabricError> {
        let mut pause = FIRST_SLEEP;
        self.until(oversubscribed, look, check, |look| {
            std::thread::sleep(pause.min(self.left()));
            pause = LONGEST_SLEEP.min(2 * pause);
            look()
        })
    }

    /// Reports a long wait, once for each pair of call and awaited rank. One line per rank suffices to find out which
    /// rank waits for which. A thread finds the line of the program, which may take a second, so that the wait goes on.
    fn report(&self, waited: Duration) -> Option<JoinHandle<()>> {
        static REPORTED: Mutex<Option<Reported>> = Mutex::new(None);
        let reported = || REPORTED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !reported().get_or_insert_default().add(&self.to_string()) {
            return None;
        }
        let Wait { rank, call, .. } = self;
        let waits = format!("transom: rank {rank} has waited {waited:.0?} in {call}{}", self.whom());
        let frames = Backtrace::force_capture();
        let print = move |caller: &str| {
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname");
            let host = host.map_or(String::new(), |host| format!(" on {}", host.trim_end()));
            let line = format!("{waits}{caller} (process {}{host})\n", std::process::id());
            // One write, so that lines of ranks do not mix. It bypasses the lock of `stderr`, whose holder may keep it
            // until this wait has ended.
            let stderr = std::io::stderr().as_fd().try_clone_to_owned();
            let _ = stderr.and_then(|stderr| File::from(stderr).write_all(line.as_bytes()));
        };
        let without_caller = print.clone();
        let thread = std::thread::Builder::new().spawn(move || print(&crate::caller::describe(&frames)));
        if thread.is_err() {
            without_caller("");
        }
        thread.ok()
    }

    fn whom(&self) -> String {
        match self.awaited {
            Awaited::Rank(rank) => format!(" for rank {rank}"),
            Awaited::Behind(rank) => format!(" behind rank {rank}"),
            Awaited::Anyone => String::new(),
        }
    }
}

/// The thread that prints a report. The end of the wait waits for it: the program may exit then.
struct Reporter(Option<JoinHandle<()>>);

impl Drop for Reporter {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            let _ = thread.join();
        }
    }
}

/// Hashes of the reported waits; emptied when it holds [`Self::MOST`].
#[derive(Default)]
struct Reported {
    hashes: HashSet<u64>,
    hasher: RandomState,
}

impl Reported {
    const MOST: usize = 1000;

    /// Adds a wait; returns whether to report it.
    fn add(&mut self, wait: &str) -> bool {
        if self.hashes.len() == Self::MOST {
            self.hashes.clear();
        }
        self.hashes.insert(self.hasher.hash_one(wait))
    }
}

/// The poll that a sleeper may call: passed to the `sleep` of [`Wait::until`].
pub type Look<'l, R> = &'l mut dyn FnMut() -> Result<Option<R>, FabricError>;

impl fmt::Display for Wait<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wait { rank, call, .. } = self;
        write!(f, "rank {rank} waits in {call}{}", self.whom())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_is_reported_once_in_bounded_memory() {
        let mut reported = Reported::default();
        assert!(reported.add("rank 0 waits in fence of window 0"));
        assert!(!reported.add("rank 0 waits in fence of window 0"));
        let most = (0..100_000).map(|window| {
            reported.add(&format!("rank 0 waits in fence of window {window}"));
            reported.hashes.len()
        });
        assert_eq!(most.max(), Some(1000));
    }
}
