//! Runs skeletons on simulated ranks, eight of a host.

use crate::patterns::{Skeleton, Step, reduce};
use std::collections::VecDeque;
use transom_channel::delivery::{Delivery, Settings};
use transom_channel::sim::{Conditions, Faults, Memory, Sim, SimWire};
use transom_channel::wire::{Rail, RailKind};
use transom_channel::{Changes, Channels, Config, Paths, Rank, Room, Select};

/// What came of it.
pub struct Outcome {
    /// Virtual nanoseconds.
    pub took: u64,
    /// Of each rank.
    pub channels: Vec<Channels>,
}

impl Outcome {
    /// Channels of a rank on average.
    pub fn average(&self, of: impl Fn(&Channels) -> usize) -> f64 {
        self.channels.iter().map(of).sum::<usize>() as f64 / self.channels.len() as f64
    }
}

/// Ranks of a host.
pub const HOST: Rank = 8;
const PAIRS: Select = Select { context: 0, source: None, tag: None };

/// What a rank has still to do.
struct Program {
    skeleton: Skeleton,
    left: VecDeque<Step>,
    iterations: u32,
    /// Requests of the step that have not ended; and when it ends by computing.
    open: usize,
    until: Option<u64>,
    begun: bool,
    jitter: fastrand::Rng,
}

fn reductions(skeleton: &Skeleton, rank: Rank, ranks: Rank) -> impl Iterator<Item = Step> {
    (0..skeleton.reductions).flat_map(move |_| reduce(rank, ranks))
}

impl Program {
    /// The next step, if there is one.
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

/// On so many ranks, or the largest square that is not more, with a configuration by its text.
pub fn run(skeleton: &Skeleton, most: Rank, text: &str) -> Outcome {
    let ranks = if skeleton.square { most.isqrt().pow(2) } else { most };
    // MVAPICH keeps no account of what nobody has received.
    let granted = Config { floor: 1 << 16, ..Config::default() };
    let config = text.parse::<Changes>().expect("a configuration").of(granted);
    let rail = Rail { read: true, write: true, longest: 8192 + 192, ..Conditions::default().rails[0] };
    let datagrams = Rail { kind: RailKind::Datagram, longest: 2048 + 72, read: false, write: false, ..rail };
    let memory = Rail { kind: RailKind::Memory, ..rail };
    let rails = match config.paths {
        Paths::Connections => vec![rail, memory],
        Paths::Datagrams => vec![datagrams, memory],
        Paths::Both => vec![rail, datagrams, memory],
    };
    let conditions = Conditions {
        rails,
        latency: 1500..1501,
        picoseconds: 700,
        pause: 100..101,
        slots: 1024,
        host: HOST,
        torn: false,
        faults: Some(Faults { lost: 0, doubled: 0, late: 0, delay: 0..1, flipped: 0 }),
        ..Conditions::default()
    };
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
                sim.engine(rank).receive(Select { source: Some(from), ..PAIRS }, Room::Allocate);
            }
            for (to, bytes) in step.sends {
                sim.engine(rank).send(to, 0, 0, Memory::zero(bytes), bytes, false);
            }
            if step.compute > 0 {
                // No two steps of a machine take as long; alike whatever the configuration.
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
    Outcome { took, channels }
}
