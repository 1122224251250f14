//! Simulation of jobs of 2 to thousands of ranks in virtual time. It runs the production engines on a network
//! that delays, tears and refuses requests by a seed. The same seed gives the same run.
//!
//! Every function is `#[inline]`, so that only programs that call the simulator compile it and the engine on it. Without
//! the attribute, each build of the library takes three times the time.

mod adapter;
mod memory;
mod net;
mod passage;
pub mod skeletons;
mod traffic;
mod wire;

pub use adapter::Adapter;
pub use memory::SimMemory;
pub use traffic::{Arrivals, Traffic, Volume};
pub use wire::SimWire;

use crate::config::{Config, Misconfigured};
use crate::engine::Engine;
use crate::wire::{RAILS, Rail, RailKind, Rank, Wire};
use net::Net;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// Properties of the simulated network. Times are in nanoseconds.
#[derive(Debug, Clone)]
pub struct Conditions {
    /// Rails of every rank, including those to peers on its host.
    pub rails: Vec<Rail>,
    /// Latency of a request, without the time for its bytes.
    pub latency: Range<u64>,
    /// Transfer time on a lane, in picoseconds per byte.
    pub picoseconds: u64,
    /// Factor on that time for each rail; 1 for rails beyond the list.
    pub slower: Vec<u64>,
    /// Time that each end spends to make a lane of [`RailKind::Connection`]. A rank makes one lane at a time.
    pub connecting: u64,
    /// Number of a rank's datagram queues, which work in parallel and are used in turn, and the time that a
    /// queue spends on each request before its bytes are sent.
    pub queues: (usize, u64),
    /// Delay until a rank notices an arrival.
    pub pause: Range<u64>,
    /// Most requests in flight on a lane.
    pub depth: usize,
    /// Receive slots of a rank, shared by all its peers.
    pub slots: usize,
    /// Memory that a rank can allocate for messages and rings, in bytes.
    pub memory: usize,
    /// Requests refused as busy at random, per thousand.
    pub busy: u32,
    /// Registrations that fail at random, per thousand.
    pub unregistered: u32,
    /// Offered messages that would be [sent faster](Wire::may_send_faster), per thousand.
    pub sent_faster: u32,
    /// Most open windows of a rank; see [`Wire::open_window`].
    pub windows: usize,
    /// True if puts become visible in pieces.
    pub torn: bool,
    /// Number of ranks on a host. They share the rails of [`RailKind::Memory`] and no others, and the host's
    /// adapters. 0 if no rail is of that kind; then each rank has a host.
    pub host: Rank,
    /// Configuration for peers on the same host, if it differs from that for other peers; see
    /// [`Engine::with_near`].
    pub near: Option<Config>,
    /// Faults of sends on rails of [`RailKind::Datagram`].
    pub faults: Option<Faults>,
    /// Costs of adapters and processors.
    pub adapter: Adapter,
}

/// Faults of datagrams, per thousand of each. A datagram that finds no slot is lost as well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults {
    /// Datagrams lost.
    pub lost: u32,
    /// Datagrams duplicated.
    pub doubled: u32,
    /// Datagrams delayed beyond later ones.
    pub late: u32,
    /// Delay of such datagrams, in nanoseconds.
    pub delay: Range<u64>,
    /// Datagrams with one bit flipped in the receiver's slot.
    pub flipped: u32,
}

impl Default for Conditions {
    #[inline]
    fn default() -> Conditions {
        let rail = Rail {
            kind: RailKind::Connection,
            longest: 16 << 10,
            mark_last: true,
            whole_word: true,
            immediate: true,
            write: true,
            read: true,
            bandwidth: 0,
        };
        Conditions {
            rails: vec![rail],
            latency: 500..1500,
            picoseconds: 100,
            slower: Vec::new(),
            connecting: 0,
            queues: (1, 0),
            pause: 50..500,
            depth: 64,
            slots: 256,
            memory: 1 << 40,
            busy: 0,
            unregistered: 0,
            sent_faster: 0,
            windows: 16,
            torn: true,
            host: 0,
            near: None,
            faults: None,
            adapter: Adapter::default(),
        }
    }
}

/// A simulated job, whose ranks have wires of type `W`.
pub struct Sim<W: Wire<Memory = SimMemory> = SimWire> {
    net: Rc<RefCell<Net>>,
    engines: Vec<Engine<W>>,
    stopped: Vec<bool>,
}

impl Sim {
    /// A job of `ranks` ranks, all with the same configuration.
    #[inline]
    pub fn new(seed: u64, ranks: Rank, conditions: Conditions, config: &Config) -> Result<Sim, Misconfigured> {
        Sim::of(seed, conditions, vec![config.clone(); ranks as usize])
    }

    /// A job of ranks with these configurations.
    #[inline]
    pub fn of(seed: u64, conditions: Conditions, configs: Vec<Config>) -> Result<Sim, Misconfigured> {
        Sim::over(seed, conditions, configs, |wire| wire)
    }
}

impl<W: Wire<Memory = SimMemory>> Sim<W> {
    /// A job of ranks with these configurations, whose wires are made by `over` from those of the network.
    ///
    /// ```
    /// use transom_channel::delivery::{Delivery, Settings};
    /// use transom_channel::sim::{Conditions, Faults, SimMemory, Sim};
    /// use transom_channel::wire::RailKind;
    /// use transom_channel::{Config, RecvTarget, Select};
    ///
    /// let faults = Faults { lost: 100, doubled: 10, late: 50, delay: 1..90_000, flipped: 0 };
    /// let mut conditions = Conditions { faults: Some(faults), ..Conditions::default() };
    /// conditions.rails[0].kind = RailKind::Datagram;
    /// let config = Config { rings: 0, zero_copy_from: u64::MAX, ..Config::default() };
    /// let mut sim = Sim::over(7, conditions, vec![config; 2], |wire| Delivery::new(wire, Settings::default()))?;
    /// let length = 1 << 20;
    /// sim.engine(0).send(1, 0, 5, SimMemory::pattern(42, length), length, false);
    /// sim.engine(1).receive(Select { context: 0, source: None, tag: Some(5) }, RecvTarget::Allocate);
    /// sim.wake(0, 0);
    /// sim.wake(1, 0);
    /// while sim.step().is_some() {}
    /// assert_eq!(sim.engine(1).completed().unwrap().memory.unwrap().whose(length), Some(42));
    /// assert!(sim.engine(0).counters().resends > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn over(
        seed: u64,
        conditions: Conditions,
        configs: Vec<Config>,
        over: impl Fn(SimWire) -> W,
    ) -> Result<Sim<W>, Misconfigured> {
        let ranks = configs.len() as Rank;
        let near = conditions.near.clone();
        let net = Rc::new(RefCell::new(Net::new(seed, ranks, conditions)));
        let wire = |rank| over(SimWire::new(net.clone(), rank));
        let engines = (0..).zip(configs).map(|(rank, config)| {
            let near = near.clone().unwrap_or_else(|| config.clone());
            Engine::with_near(wire(rank), rank, ranks, config, near)
        });
        let engines = engines.collect::<Result<_, _>>()?;
        Ok(Sim { net, engines, stopped: vec![false; ranks as usize] })
    }

    /// The engine of a rank. After calls on it, a [`wake`](Self::wake) is needed for [`step`](Self::step) to
    /// run it.
    #[inline]
    pub fn engine(&mut self, rank: Rank) -> &mut Engine<W> {
        &mut self.engines[rank as usize]
    }

    /// Number of registrations that a rank has.
    #[inline]
    pub fn registrations(&self, rank: Rank) -> usize {
        self.net.borrow().ranks[rank as usize].keys.len()
    }

    /// Number of windows that a rank has open.
    #[inline]
    pub fn windows(&self, rank: Rank) -> usize {
        self.net.borrow().ranks[rank as usize].windows.len()
    }

    /// Number of requests that a rank has posted, by rail.
    #[inline]
    pub fn posts(&self, rank: Rank) -> [u64; RAILS] {
        self.traffic(rank).map(|traffic| traffic.all().requests)
    }

    /// Requests and bytes that a rank has posted, by rail.
    ///
    /// ```
    /// use transom_channel::sim::{Conditions, SimMemory, Sim};
    /// use transom_channel::{Config, RecvTarget, Select};
    ///
    /// let mut sim = Sim::new(7, 2, Conditions::default(), &Config::default())?;
    /// sim.engine(1).receive(Select { context: 0, source: None, tag: None }, RecvTarget::Allocate);
    /// sim.engine(0).send(1, 0, 0, SimMemory::zero(100), 100, false);
    /// (0..2).for_each(|rank| sim.wake(rank, 0));
    /// while sim.step().is_some() {}
    /// let [first, ..] = sim.traffic(0);
    /// assert!(first.sends.requests == 1 && first.sends.bytes > 100 && first.puts.requests == 0);
    /// assert_eq!(sim.arrivals(1).most, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn traffic(&self, rank: Rank) -> [Traffic; RAILS] {
        self.net.borrow().ranks[rank as usize].traffic
    }

    /// Statistics of sends that arrived at a rank.
    #[inline]
    pub fn arrivals(&self, rank: Rank) -> Arrivals {
        self.net.borrow().ranks[rank as usize].arrivals
    }

    /// Virtual time since the start, in nanoseconds.
    #[inline]
    pub fn now(&self) -> u64 {
        self.net.borrow().now
    }

    /// Schedules progress of a rank after `after` nanoseconds, unless an earlier one is scheduled.
    #[inline]
    pub fn wake(&mut self, rank: Rank, after: u64) {
        let mut net = self.net.borrow_mut();
        let at = net.now + after;
        net.turn(rank, at);
    }

    /// Runs the next scheduled rank's progress; `None` if nothing is in flight any more.
    #[inline]
    pub fn step(&mut self) -> Option<Rank> {
        let rank = self.net.borrow_mut().next_turn()?;
        if !self.stopped[rank as usize] {
            let engine = &mut self.engines[rank as usize];
            self.net.borrow_mut().works(rank, |costs| match costs.look {
                0 => 0,
                look => look * engine.channels().rings as u64,
            });
            let worked = engine.progress() > 0;
            let due = engine.due();
            let net = &mut *self.net.borrow_mut();
            let soon = net.now + 1 + net.rng.u64(net.conditions.pause.clone());
            if worked {
                net.turn(rank, soon);
            } else if let Some(due) = due {
                net.turn(rank, due.max(soon));
            }
        }
        Some(rank)
    }

    /// Makes a rail slower than [`Conditions::picoseconds`] by a factor, from now on and for all ranks.
    #[inline]
    pub fn slow_down(&mut self, rail: usize, times: u64) {
        let slower = &mut self.net.borrow_mut().conditions.slower;
        slower.resize(slower.len().max(rail + 1), 1);
        slower[rail] = times;
    }

    /// Cuts a rail between all ranks, or restores it. Ranks are notified within 0.1 ms. Requests that took
    /// effect without a reported completion are never reported.
    #[inline]
    pub fn cut(&mut self, rail: usize, cut: bool) {
        self.net.borrow_mut().darken(rail, cut);
    }

    /// Makes a rail lose every datagram silently, or ends that. Applies only with
    /// [faults](Conditions::faults).
    ///
    /// ```
    /// use transom_channel::delivery::{Delivery, Settings};
    /// use transom_channel::sim::{Conditions, Faults, SimMemory, Sim};
    /// use transom_channel::wire::RailKind;
    /// use transom_channel::{Config, RecvTarget, Select};
    ///
    /// let faults = Some(Faults { lost: 0, doubled: 0, late: 0, delay: 0..1, flipped: 0 });
    /// let mut conditions = Conditions { faults, ..Conditions::default() };
    /// conditions.rails[0].kind = RailKind::Datagram;
    /// let config = Config { rings: 0, ..Config::default() };
    /// let mut sim = Sim::over(7, conditions, vec![config; 2], |wire| Delivery::new(wire, Settings::default()))?;
    /// sim.mute(0, true);
    /// sim.engine(0).send(1, 0, 0, SimMemory::zero(8), 8, false);
    /// sim.engine(1).receive(Select { context: 0, source: None, tag: None }, RecvTarget::Allocate);
    /// (0..2).for_each(|rank| sim.wake(rank, 0));
    /// (0..100).for_each(|_| drop(sim.step()));
    /// assert!(sim.engine(1).completed().is_none());
    /// sim.mute(0, false);
    /// while sim.step().is_some() {}
    /// assert!(sim.engine(1).completed().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn mute(&mut self, rail: usize, mute: bool) {
        self.net.borrow_mut().mute[rail] = mute;
    }

    /// Makes a connection between the windows of two ranks, which lasts as long as the job.
    #[inline]
    pub fn connect_windows(&mut self, a: Rank, b: Rank) {
        self.net.borrow_mut().windows.extend([(a, b), (b, a)]);
    }

    /// Stops progress of a rank, or restarts it. A stopped rank is alive: messages to it wait.
    #[inline]
    pub fn stop(&mut self, rank: Rank, stopped: bool) {
        self.stopped[rank as usize] = stopped;
        self.wake(rank, 0);
    }

    /// Kills a rank; the other ranks are notified after some delay.
    #[inline]
    pub fn kill(&mut self, rank: Rank) {
        self.stopped[rank as usize] = true;
        self.net.borrow_mut().kill(rank);
    }
}
