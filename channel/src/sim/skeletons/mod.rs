//! Skeletons of programs on simulated ranks, eight per host: communication partners, message sizes, channels
//! used and run time.

mod patterns;

pub use patterns::{ALL, Skeleton, Step};

use super::{Conditions, Faults, Sim, SimMemory, SimWire, Traffic};
use crate::config::{Changes, Config, Paths};
use crate::delivery::{Delivery, Settings};
use crate::engine::{Channels, RecvTarget};
use crate::matching::Select;
use crate::wire::{Rail, RailKind, Rank};
use patterns::reduce;
use std::collections::VecDeque;

/// Result of [`run`].
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Run time in virtual nanoseconds.
    pub took: u64,
    /// Channels of each rank.
    pub channels: Vec<Channels>,
    /// Requests and bytes posted by all ranks, for each kind of rail.
    pub traffic: Vec<(RailKind, Traffic)>,
}

impl Outcome {
    /// Channels of a rank on average.
    ///
    /// ```
    /// use transom_channel::sim::skeletons::{ALL, run};
    /// let outcome = run(&ALL[2], 16, "aptus");
    /// assert_eq!(outcome.average(|channels| channels.near), 3.0, "EP reduces among 8 of a host");
    /// ```
    #[inline]
    pub fn average(&self, of: impl Fn(&Channels) -> usize) -> f64 {
        self.channels.iter().map(of).sum::<usize>() as f64 / self.channels.len() as f64
    }
}

/// Number of ranks on a host.
pub const HOST: Rank = 8;
const PAIRS: Select = Select { context: 0, source: None, tag: None };

/// The remaining steps of a rank.
struct Program {
    skeleton: Skeleton,
    left: VecDeque<Step>,
    iterations: u32,
    /// `open`: requests of the step in flight. `until`: end of its computation, in ns.
    open: usize,
    until: Option<u64>,
    begun: bool,
    jitter: fastrand::Rng,
}

#[inline]
fn reductions(skeleton: &Skeleton, rank: Rank, ranks: Rank) -> impl Iterator<Item = Step> {
    (0..skeleton.reductions).flat_map(move |_| reduce(rank, ranks))
}

impl Program {
    /// The next step, if there is one.
    #[inline]
    fn next(&mut self, rank: Rank, ranks: Rank) -> Option<Step> {
        while self.left.is_empty() {
            if self.iterations == 0 {
                return None;
            }
            if !std::mem::replace(&mut self.begun, true) {
                self.left.extend(reductions(&self.skeleton, rank, ranks));
            }
            self.left.extend((self.skeleton.iteration)(rank, ranks));
            self.iterations -= 1;
            if self.iterations == 0 {
                self.left.extend(reductions(&self.skeleton, rank, ranks));
            }
        }
        self.left.pop_front()
    }
}

/// The simulated network: 1.5 us and 700 ps per byte between two hosts; packets of 8 KiB on connections and 2
/// KiB as datagrams.
///
/// ```
/// use transom_channel::{Paths, sim::skeletons};
/// let rails = |paths| skeletons::conditions(paths).rails.len();
/// assert_eq!([rails(Paths::Connections), rails(Paths::Datagrams), rails(Paths::Both)], [2, 2, 3]);
/// ```
#[inline]
pub fn conditions(paths: Paths) -> Conditions {
    let rail = Rail { read: true, write: true, longest: 8192 + 192, ..Conditions::default().rails[0] };
    let datagrams = Rail { kind: RailKind::Datagram, longest: 2048 + 72, read: false, write: false, ..rail };
    let memory = Rail { kind: RailKind::Memory, ..rail };
    let rails = match paths {
        Paths::Connections => vec![rail, memory],
        Paths::Datagrams => vec![datagrams, memory],
        Paths::Both => vec![rail, datagrams, memory],
    };
    Conditions {
        rails,
        latency: 1500..1501,
        picoseconds: 700,
        pause: 100..101,
        slots: 1024,
        host: HOST,
        torn: false,
        faults: Some(Faults { lost: 0, doubled: 0, late: 0, delay: 0..1, flipped: 0 }),
        ..Conditions::default()
    }
}

/// Runs a skeleton on `most` ranks, or on the largest square number of ranks up to `most`. `text` is the
/// configuration.
///
/// ```
/// use transom_channel::sim::skeletons::{ALL, run};
/// let lu = ALL.iter().find(|skeleton| skeleton.name == "LU").unwrap();
/// let outcome = run(lu, 16, "aptus");
/// assert!(outcome.channels.iter().all(|channels| channels.connections <= 16 && channels.rings <= 8));
/// assert!(outcome.took > 0);
/// ```
#[inline]
pub fn run(skeleton: &Skeleton, most: Rank, text: &str) -> Outcome {
    run_on(skeleton, most, text, |_| ())
}

/// Runs a skeleton on a network that differs from [the usual one](conditions).
///
/// ```
/// use transom_channel::sim::skeletons::{ALL, run, run_on};
/// let far = run_on(&ALL[2], 16, "rc", |conditions| conditions.latency = 100_000..100_001);
/// assert!(far.took > run(&ALL[2], 16, "rc").took);
/// ```
#[inline]
pub fn run_on(skeleton: &Skeleton, most: Rank, text: &str, change: impl FnOnce(&mut Conditions)) -> Outcome {
    let ranks = if skeleton.square { most.isqrt().pow(2) } else { most };
    // MVAPICH keeps no account of unreceived messages.
    let granted = Config { floor: 1 << 16, ..Config::default() };
    let config = text.parse::<Changes>().expect("a configuration").of(granted);
    let mut conditions = conditions(config.paths);
    change(&mut conditions);
    let kinds: Vec<RailKind> = conditions.rails.iter().map(|rail| rail.kind).collect();
    let over = |wire: SimWire| Delivery::new(wire, Settings::default());
    let mut sim = Sim::over(1, conditions, vec![config; ranks as usize], over).expect("a job");
    let program = |rank: Rank| {
        let (skeleton, iterations) = (*skeleton, skeleton.iterations);
        Some(Program {
            skeleton,
            iterations,
            left: VecDeque::new(),
            open: 0,
            until: None,
            begun: false,
            jitter: fastrand::Rng::with_seed(rank.into()),
        })
    };
    let mut programs: Vec<Option<Program>> = (0..ranks).map(program).collect();
    (0..ranks).for_each(|rank| sim.wake(rank, 0));
    let (mut left, mut took) = (ranks, 0);
    while let Some(rank) = sim.step() {
        let now = sim.now();
        let Some(program) = &mut programs[rank as usize] else {
            while sim.engine(rank).completed().is_some() {}
            continue;
        };
        while let Some(done) = sim.engine(rank).completed() {
            assert!(done.result.is_ok(), "{:?}", done.result);
            program.open -= 1;
        }
        loop {
            if program.open > 0 {
                break;
            }
            match program.until {
                Some(until) if now < until => {
                    sim.wake(rank, until - now);
                    break;
                }
                _ => program.until = None,
            }
            let Some(step) = program.next(rank, ranks) else {
                programs[rank as usize] = None;
                left -= 1;
                took = now;
                break;
            };
            program.open = step.receives.len() + step.sends.len();
            for from in step.receives {
                sim.engine(rank).receive(Select { source: Some(from), ..PAIRS }, RecvTarget::Allocate);
            }
            for (to, bytes) in step.sends {
                sim.engine(rank).send(to, 0, 0, SimMemory::zero(bytes), bytes, false);
            }
            if step.compute > 0 {
                // Compute times vary, as on a real machine, but identically for every configuration.
                program.until = Some(now + step.compute * program.jitter.u64(80..120) / 100);
            }
            sim.wake(rank, 0);
            while let Some(done) = sim.engine(rank).completed() {
                assert!(done.result.is_ok(), "{:?}", done.result);
                program.open -= 1;
            }
        }
    }
    assert_eq!(left, 0, "{}: some wait for ever", skeleton.name);
    let channels = (0..ranks).map(|rank| sim.engine(rank).channels()).collect();
    let mut traffic: Vec<_> = kinds.into_iter().map(|kind| (kind, Traffic::default())).collect();
    for rank in 0..ranks {
        traffic.iter_mut().zip(sim.traffic(rank)).for_each(|((_, all), more)| *all += more);
    }
    Outcome { took, channels, traffic }
}
