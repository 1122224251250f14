//! Jobs of 2 to thousands of ranks in virtual time: the engines that ship, on a network that delays, tears and refuses
//! by a seed. The same seed gives the same run.

mod memory;
mod net;
pub mod skeletons;
mod traffic;
mod wire;

pub use memory::Memory;
pub use traffic::{Arrivals, Traffic, Volume};
pub use wire::SimWire;

use crate::config::{Config, Misconfigured};
use crate::engine::Engine;
use crate::wire::{RAILS, Rail, RailKind, Rank, Wire};
use net::Net;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// What the network is like. Times are nanoseconds.
#[derive(Debug, Clone)]
pub struct Conditions {
    /// The rails of every rank, those of its host among them.
    pub rails: Vec<Rail>,
    /// How long a request is under way, beside the time for its bytes.
    pub latency: Range<u64>,
    /// Picoseconds for each byte on a lane.
    pub picoseconds: u64,
    /// How many times as many on some rails; 1 on those that it does not have.
    pub slower: Vec<u64>,
    /// How long each end works to make a lane of [`RailKind::Connection`], one after the other.
    pub connecting: u64,
    /// Queues of a rank for datagrams, which work side by side and are taken in turn, and how long one works on a request before its bytes
    /// are on the lane.
    pub queues: (usize, u64),
    /// How long a rank takes to notice what comes.
    pub pause: Range<u64>,
    /// Requests on a lane at once.
    pub depth: usize,
    /// Receive slots of a rank, for all its peers.
    pub slots: usize,
    /// Bytes that a rank can take at once, for messages and rings.
    pub memory: usize,
    /// Of a thousand requests so many are refused for no reason.
    pub busy: u32,
    /// Of a thousand registrations so many fail.
    pub unregistered: u32,
    /// Of a thousand messages that are offered so many would be [sent faster](Wire::may_send_faster).
    pub sent_faster: u32,
    /// Windows of a rank at once; see [`Wire::open_window`].
    pub windows: usize,
    /// Puts become visible in pieces.
    pub torn: bool,
    /// Ranks of a host, who have the rails of [`RailKind::Memory`] between them and nothing else; 0 if no rail is of that kind.
    pub host: Rank,
    /// What all ranks have for those of their host, if it is not what they have for the others: see [`Engine::with_near`].
    pub near: Option<Config>,
    /// What becomes of sends by rails of [`RailKind::Datagram`].
    pub faults: Option<Faults>,
}

/// What becomes of datagrams, of a thousand each. One that finds no slot is lost as well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults {
    /// Are lost.
    pub lost: u32,
    /// Come twice.
    pub doubled: u32,
    /// Come later than others that were sent after them.
    pub late: u32,
    /// By how many nanoseconds.
    pub delay: Range<u64>,
    /// Have a bit that has changed, in the slot that they came to.
    pub flipped: u32,
}

impl Default for Conditions {
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
        }
    }
}

/// A simulated job, whose ranks have wires of type `W`.
pub struct Sim<W: Wire<Memory = Memory> = SimWire> {
    net: Rc<RefCell<Net>>,
    engines: Vec<Engine<W>>,
    stopped: Vec<bool>,
}

impl Sim {
    /// A job of so many ranks, all with this configuration.
    pub fn new(seed: u64, ranks: Rank, conditions: Conditions, config: &Config) -> Result<Sim, Misconfigured> {
        Sim::of(seed, conditions, vec![config.clone(); ranks as usize])
    }

    /// A job of ranks with these configurations.
    pub fn of(seed: u64, conditions: Conditions, configs: Vec<Config>) -> Result<Sim, Misconfigured> {
        Sim::over(seed, conditions, configs, |wire| wire)
    }
}

impl<W: Wire<Memory = Memory>> Sim<W> {
    /// A job of ranks with these configurations, and with wires that are made of those of the network.
    ///
    /// ```
    /// use transom_channel::delivery::{Delivery, Settings};
    /// use transom_channel::sim::{Conditions, Faults, Memory, Sim};
    /// use transom_channel::wire::RailKind;
    /// use transom_channel::{Config, Room, Select};
    ///
    /// let faults = Faults { lost: 100, doubled: 10, late: 50, delay: 1..90_000, flipped: 0 };
    /// let mut conditions = Conditions { faults: Some(faults), ..Conditions::default() };
    /// conditions.rails[0].kind = RailKind::Datagram;
    /// let config = Config { rings: 0, zero_copy_from: u64::MAX, ..Config::default() };
    /// let mut sim = Sim::over(7, conditions, vec![config; 2], |wire| Delivery::new(wire, Settings::default()))?;
    /// let length = 1 << 20;
    /// sim.engine(0).send(1, 0, 5, Memory::pattern(42, length), length, false);
    /// sim.engine(1).receive(Select { context: 0, source: None, tag: Some(5) }, Room::Allocate);
    /// sim.wake(0, 0);
    /// sim.wake(1, 0);
    /// while sim.step().is_some() {}
    /// assert_eq!(sim.engine(1).completed().unwrap().memory.unwrap().whose(length), Some(42));
    /// assert!(sim.engine(0).meter().resends > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    /// The channel of a rank. What is called there is noticed by [`step`](Self::step) after a [`wake`](Self::wake).
    pub fn engine(&mut self, rank: Rank) -> &mut Engine<W> {
        &mut self.engines[rank as usize]
    }

    /// How many registrations a rank has.
    pub fn registrations(&self, rank: Rank) -> usize {
        self.net.borrow().ranks[rank as usize].keys.len()
    }

    /// How many windows a rank has open.
    pub fn windows(&self, rank: Rank) -> usize {
        self.net.borrow().ranks[rank as usize].windows.len()
    }

    /// How many requests a rank has posted, by rails.
    pub fn posts(&self, rank: Rank) -> [u64; RAILS] {
        self.traffic(rank).map(|traffic| traffic.all().requests)
    }

    /// What a rank has posted, by rails.
    ///
    /// ```
    /// use transom_channel::sim::{Conditions, Memory, Sim};
    /// use transom_channel::{Config, Room, Select};
    ///
    /// let mut sim = Sim::new(7, 2, Conditions::default(), &Config::default())?;
    /// sim.engine(1).receive(Select { context: 0, source: None, tag: None }, Room::Allocate);
    /// sim.engine(0).send(1, 0, 0, Memory::zero(100), 100, false);
    /// (0..2).for_each(|rank| sim.wake(rank, 0));
    /// while sim.step().is_some() {}
    /// let [first, ..] = sim.traffic(0);
    /// assert!(first.sends.requests == 1 && first.sends.bytes > 100 && first.puts.requests == 0);
    /// assert_eq!(sim.arrivals(1).most, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn traffic(&self, rank: Rank) -> [Traffic; RAILS] {
        self.net.borrow().ranks[rank as usize].traffic
    }

    /// What became of sends to a rank.
    pub fn arrivals(&self, rank: Rank) -> Arrivals {
        self.net.borrow().ranks[rank as usize].arrivals
    }

    /// Virtual nanoseconds since the start.
    pub fn now(&self) -> u64 {
        self.net.borrow().now
    }

    /// Gives a rank a turn in so many nanoseconds, if it has none sooner.
    pub fn wake(&mut self, rank: Rank, after: u64) {
        let mut net = self.net.borrow_mut();
        let at = net.now + after;
        net.turn(rank, at);
    }

    /// The next rank that has a turn makes progress; `None` if nothing is under way any more.
    pub fn step(&mut self) -> Option<Rank> {
        let rank = self.net.borrow_mut().next_turn()?;
        if !self.stopped[rank as usize] {
            let engine = &mut self.engines[rank as usize];
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

    /// From now on a rail is so many times as slow as [`Conditions::picoseconds`] says, for all.
    pub fn slow_down(&mut self, rail: usize, times: u64) {
        let slower = &mut self.net.borrow_mut().conditions.slower;
        slower.resize(slower.len().max(rail + 1), 1);
        slower[rail] = times;
    }

    /// From now on a rail passes nothing between ranks, or does again, for all. Ranks are told within 0.1 ms; what had taken effect and was
    /// not told done is told neither.
    pub fn cut(&mut self, rail: usize, cut: bool) {
        self.net.borrow_mut().darken(rail, cut);
    }

    /// From now on a rail loses every datagram, where there are [faults](Conditions::faults), or does no more. Nobody is told.
    ///
    /// ```
    /// use transom_channel::delivery::{Delivery, Settings};
    /// use transom_channel::sim::{Conditions, Faults, Memory, Sim};
    /// use transom_channel::wire::RailKind;
    /// use transom_channel::{Config, Room, Select};
    ///
    /// let faults = Some(Faults { lost: 0, doubled: 0, late: 0, delay: 0..1, flipped: 0 });
    /// let mut conditions = Conditions { faults, ..Conditions::default() };
    /// conditions.rails[0].kind = RailKind::Datagram;
    /// let config = Config { rings: 0, ..Config::default() };
    /// let mut sim = Sim::over(7, conditions, vec![config; 2], |wire| Delivery::new(wire, Settings::default()))?;
    /// sim.mute(0, true);
    /// sim.engine(0).send(1, 0, 0, Memory::zero(8), 8, false);
    /// sim.engine(1).receive(Select { context: 0, source: None, tag: None }, Room::Allocate);
    /// (0..2).for_each(|rank| sim.wake(rank, 0));
    /// (0..100).for_each(|_| drop(sim.step()));
    /// assert!(sim.engine(1).completed().is_none());
    /// sim.mute(0, false);
    /// while sim.step().is_some() {}
    /// assert!(sim.engine(1).completed().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mute(&mut self, rail: usize, mute: bool) {
        self.net.borrow_mut().mute[rail] = mute;
    }

    /// Windows of two ranks have a connection between them, for as long as the job lasts.
    pub fn connect_windows(&mut self, a: Rank, b: Rank) {
        self.net.borrow_mut().windows.extend([(a, b), (b, a)]);
    }

    /// The rank makes no progress until it is started again. It is not dead: what is sent to it waits.
    pub fn stop(&mut self, rank: Rank, stopped: bool) {
        self.stopped[rank as usize] = stopped;
        self.wake(rank, 0);
    }

    /// The rank dies; the others learn of it by and by.
    pub fn kill(&mut self, rank: Rank) {
        self.stopped[rank as usize] = true;
        self.net.borrow_mut().kill(rank);
    }
}
