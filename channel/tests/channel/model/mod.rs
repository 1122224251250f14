//! Random traffic, and MPI's guarantees for it: every message arrives once, whole, and is matched in order.
//! The model is independent of packets: it records calls and their results, and checks those.
#![allow(dead_code, reason = "each test file uses what it needs")]

pub mod changed;
mod rounds;

pub use rounds::rounds;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use transom_channel::polling::Order;
use transom_channel::ring::{CompletionFlag, RingConfig};
use transom_channel::rules::Rules;
use transom_channel::sim::{Adapter, Conditions, Sim, SimMemory, SimWire};
use transom_channel::striping::{Spread, Stripe};
use transom_channel::wire::{Data, Part, Rail, RailKind};
use transom_channel::{Cancelled, Completion, Config, Error, Id, Misconfigured, Rank, RecvTarget, Select, Wire};

/// Runs `SEED`, or the first `SEEDS` seeds (default `usual`), on all processors. Returns the number of seeds
/// and the sums of all ranks' counters.
pub fn counts_of_seeds<W>(usual: u64, run: fn(u64) -> Result<Job<W>, String>) -> (u64, BTreeMap<&'static str, u64>)
where
    W: Wire<Memory = SimMemory>,
{
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let seeds = number("SEED").map_or(0..number("SEEDS").unwrap_or(usual), |seed| seed..seed + 1);
    let next = AtomicU64::new(seeds.start);
    // Sums of the seeds that one thread runs, or the failure of one.
    let some = || {
        let mut counts = BTreeMap::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if !seeds.contains(&seed) {
                return Ok(counts);
            }
            let said = std::panic::catch_unwind(|| run(seed)).unwrap_or_else(|_| Err("it panicked".into()));
            let mut job = said.map_err(|error| {
                next.store(seeds.end, Ordering::Relaxed);
                format!("SEED={seed}: {error}")
            })?;
            for rank in 0..job.setup.ranks {
                for (name, count) in job.sim.engine(rank).counters().rows() {
                    *counts.entry(name).or_insert(0) += count;
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let each: Vec<Result<BTreeMap<_, u64>, String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(some)).collect();
        threads.into_iter().map(|thread| thread.join().expect("the thread caught all panics")).collect()
    });
    let mut counts = BTreeMap::new();
    for (name, count) in each.into_iter().flat_map(|counts| counts.unwrap_or_else(|error| panic!("{error}"))) {
        *counts.entry(name).or_insert(0) += count;
    }
    println!("{counts:#?}");
    (seeds.end - seeds.start, counts)
}

/// Parameters of a job, drawn from a seed.
pub struct Setup {
    pub ranks: Rank,
    pub conditions: Conditions,
    /// Configuration of each rank.
    pub configs: Vec<Config>,
    pub actions: usize,
}

impl Setup {
    /// Returns true if all peers have datagrams and some have connections.
    pub fn is_mixed(&self) -> bool {
        [RailKind::Connection, RailKind::Datagram]
            .iter()
            .all(|kind| self.conditions.rails.iter().any(|rail| rail.kind == *kind))
    }

    pub fn random(rng: &mut fastrand::Rng) -> Setup {
        let ranks = match rng.u32(..20) {
            0 => rng.u32(16..=64),
            1..6 => rng.u32(5..16),
            _ => rng.u32(2..5),
        };
        let longest = *rng.choice(&[512, 1024, 4096, 16 << 10]).unwrap();
        let rail = |rng: &mut fastrand::Rng| {
            let (mark_last, immediate) = (rng.bool(), rng.bool());
            Rail {
                kind: RailKind::Connection,
                longest,
                mark_last,
                whole_word: rng.u8(..4) > 0,
                immediate,
                write: rng.u8(..4) > 0,
                read: rng.u8(..4) > 0,
                bandwidth: rng.u32(..5),
            }
        };
        let rails = (0..rng.usize(1..=3)).map(|_| rail(rng)).collect();
        let conditions = Conditions {
            rails,
            latency: if rng.bool() { 500..1500 } else { 100..50_000 },
            picoseconds: 100,
            slower: (0..3).map(|_| *rng.choice(&[1, 1, 4, 100]).unwrap()).collect(),
            pause: if rng.bool() { 50..500 } else { 1..20_000 },
            depth: *rng.choice(&[1, 2, 8, 64]).unwrap(),
            slots: *rng.choice(&[1, 2, 8, 256]).unwrap(),
            busy: *rng.choice(&[0, 0, 50, 500]).unwrap(),
            memory: 1 << 40,
            unregistered: *rng.choice(&[0, 0, 300, 1000]).unwrap(),
            sent_faster: *rng.choice(&[0, 500]).unwrap(),
            windows: *rng.choice(&[16, 2, 1, 0]).unwrap(),
            torn: rng.bool(),
            connecting: 0,
            queues: (1, 0),
            host: 0,
            near: None,
            faults: None,
            adapter: Adapter::default(),
        };
        let floor = 64 * rng.u32(2..5);
        let config = |rng: &mut fastrand::Rng| Config {
            eager: *rng.choice(&[0, 64, 400]).unwrap(),
            ring: RingConfig { slots: rng.u32(2..8), bytes: 8 * rng.u32(20..80) },
            rings: rng.usize(..4),
            ring_after: rng.u32(1..6),
            order: *rng.choice(&[Order::Sequential, Order::Circular, Order::RecentFirst]).unwrap(),
            window: *rng.choice(&[2, 3, 8, 64]).unwrap(),
            floor,
            budget: *rng.choice(&[0, 300, 4000, 1 << 20]).unwrap(),
            credit_delay: rng.u64(100..100_000),
            zero_copy_from: *rng.choice(&[1, 1000, 10_000]).unwrap(),
            spread: *rng
                .choice(&[Spread::First, Spread::Binding, Spread::RoundRobin, Spread::Weighted, Spread::Window(3)])
                .unwrap(),
            stripe: *rng.choice(&[Stripe::Even, Stripe::Weighted, Stripe::Adaptive, Stripe::Pull]).unwrap(),
            stripe_from: *rng.choice(&[1, 500, 1 << 20]).unwrap(),
            offer: rng.bool(),
            batch: *rng.choice(&[1, 3, 64]).unwrap(),
            rules: rules(rng),
            connections: rng.usize(..4),
            connect_after: rng.u32(1..6),
            ..Config::default()
        };
        // Ranks may have different configurations, except for the floor.
        let one = config(rng);
        let alike = rng.bool();
        let configs = (0..ranks).map(|_| if alike { one.clone() } else { config(rng) }).collect();
        let actions = if ranks > 15 { rng.usize(1..12) } else { rng.usize(1..60) };
        Setup { ranks, conditions, configs, actions }
    }
}

/// No rules, or random valid ones.
fn rules(rng: &mut fastrand::Rng) -> Option<Rules> {
    if rng.bool() {
        return None;
    }
    let mut text = String::new();
    for _ in 0..rng.u32(..6) {
        let path = rng.choice(["RC-FP", "RC-SR", "UD-SR", "RC-RDMA", "UD-ZCopy", "Copy-Based"]).unwrap();
        let conditions: [String; 4] = [
            "TRUE".into(),
            format!("MSG_SIZE <= {}", rng.u32(..6000)),
            format!("QUEUED < {}", rng.u32(1..4)),
            format!("PEERS >= {} AND MSG_SIZE > {}", rng.u32(..4), rng.u32(..500)),
        ];
        text += &format!("{}, {path},\n", rng.choice(&conditions).unwrap());
    }
    Some((text + "TRUE, Copy-Based").parse().unwrap())
}

/// A message; its number is its index.
pub struct Message {
    pub from: Rank,
    pub to: Rank,
    pub context: u32,
    pub tag: u32,
    pub length: usize,
    /// Number of the receive that took it.
    pub taken: Option<usize>,
    pub sent: bool,
}

/// A receive or a probe; its number is its index. Those of a rank are in posting order.
pub struct Receive {
    pub at: Rank,
    pub select: Select,
    pub room: Option<usize>,
    pub took: Option<u64>,
    pub cancelled: bool,
    /// True if it was withdrawn at the end, having waited since its posting.
    pub starved: bool,
}

pub struct Job<W: Wire<Memory = SimMemory> = SimWire> {
    pub sim: Sim<W>,
    pub rng: fastrand::Rng,
    pub setup: Setup,
    pub messages: Vec<Message>,
    pub receives: Vec<Receive>,
    sends: HashMap<(Rank, Id), u64>,
    open: HashMap<(Rank, Id), usize>,
    left: Vec<usize>,
    /// Number of messages taken out of the matching, or received.
    pub taken: usize,
    pub kept_peak: u64,
}

const TAGS: u32 = 3;

/// The job with a random marker, the same at all ranks; an error if its rails do not support the marker.
fn marked<W: Wire<Memory = SimMemory>>(
    seed: u64,
    setup: &Setup,
    over: &impl Fn(SimWire) -> W,
) -> Result<Sim<W>, Misconfigured> {
    let all = [None, Some(CompletionFlag::Last), Some(CompletionFlag::Second), Some(CompletionFlag::Immediate)];
    let marker = *fastrand::Rng::with_seed(seed ^ 0x3a4c).choice(&all).unwrap();
    let mut conditions = setup.conditions.clone();
    conditions.near.iter_mut().for_each(|near| near.marker = marker);
    let configs = setup.configs.iter().map(|config| Config { marker, ..config.clone() });
    Sim::over(seed, conditions, configs.collect(), over)
}

impl<W: Wire<Memory = SimMemory>> Job<W> {
    /// A job whose wires are made of those of the network; see [`Sim::over`].
    pub fn new(seed: u64, setup: Setup, over: impl Fn(SimWire) -> W) -> Job<W> {
        let sim = marked(seed, &setup, &over)
            .unwrap_or_else(|_| Sim::over(seed, setup.conditions.clone(), setup.configs.clone(), &over).unwrap());
        let left = vec![setup.actions; setup.ranks as usize];
        let rng = fastrand::Rng::with_seed(seed ^ 0x5eed);
        let (sends, open) = Default::default();
        let mut job =
            Job { sim, rng, setup, messages: vec![], receives: vec![], sends, open, left, taken: 0, kept_peak: 0 };
        for rank in 0..job.setup.ranks {
            job.sim.wake(rank, 0);
        }
        job
    }

    /// Runs to the end, and checks the results.
    #[allow(dead_code, reason = "failover.rs cuts rails on the way")]
    pub fn run(self) -> Result<Job<W>, String> {
        self.run_with(|_, _| false)
    }

    /// Like `run`, and calls `happens` at each step. Once no step is left, continues while `happens` returns
    /// true.
    pub fn run_with(mut self, mut happens: impl FnMut(&mut Self, Option<u64>) -> bool) -> Result<Job<W>, String> {
        let mut steps = 0u64;
        loop {
            let Some(rank) = self.sim.step() else {
                match happens(&mut self, None) {
                    true => continue,
                    false => break,
                }
            };
            steps += 1;
            happens(&mut self, Some(steps));
            if steps > 3_000_000 {
                let rest: Vec<_> = (0..self.setup.ranks).map(|rank| self.sim.engine(rank).at_rest()).collect();
                return Err(format!("it does not come to an end, at {} ns: {rest:?}", self.sim.now()));
            }
            self.collect(rank)?;
            self.act(rank)?;
        }
        self.finish()?;
        self.judge()?;
        Ok(self)
    }

    pub fn collect(&mut self, rank: Rank) -> Result<(), String> {
        self.kept_peak = self.kept_peak.max(self.sim.engine(rank).kept());
        while let Some(done) = self.sim.engine(rank).completed() {
            match self.sends.remove(&(rank, done.id)) {
                Some(number) => self.has_sent(number, done)?,
                None => self.received(rank, done)?,
            }
        }
        Ok(())
    }

    fn has_sent(&mut self, number: u64, done: Completion<SimMemory>) -> Result<(), String> {
        let message = &mut self.messages[number as usize];
        let status = done.result.map_err(|error| format!("send of message {number}: {error}"))?;
        let memory = done.memory.expect("a completed send returns its memory");
        if (status.peer, status.tag, status.length) != (message.to, message.tag, message.length as u64) {
            return Err(format!("message {number} was sent as {status:?}"));
        }
        // The memory belongs to the program again.
        memory.spoil();
        message.sent = true;
        Ok(())
    }

    fn received(&mut self, rank: Rank, done: Completion<SimMemory>) -> Result<(), String> {
        let key = (rank, done.id);
        let number = *self.open.get(&key).ok_or("something completed that was not under way")?;
        let (status, room) = match done.result {
            Ok(status) => (status, None),
            Err(Error::Truncated { status, room }) => (status, Some(room as usize)),
            Err(error) => return Err(format!("receive {number}: {error}")),
        };
        let length = status.length as usize;
        let Some(memory) = done.memory else {
            // A probe: its message is received by the same number, and identified by its content.
            let room = self.room(true);
            self.receives[number].room = if let RecvTarget::Into(_, room) = &room { Some(*room) } else { None };
            self.sim.engine(rank).receive_message(done.id, room).map_err(|(error, _)| error.to_string())?;
            self.sim.wake(rank, 0);
            return Ok(());
        };
        self.open.remove(&key);
        let receive = &mut self.receives[number];
        let there = length.min(receive.room.unwrap_or(length));
        if room != receive.room.filter(|room| *room < length) {
            return Err(format!("receive {number} of {length} bytes into {:?}: truncated to {room:?}", receive.room));
        }
        let id = if length == 0 {
            u64::from(status.tag - TAGS)
        } else {
            memory.whose(there).ok_or_else(|| format!("receive {number}: {status:?} is not whole: {memory:?}"))?
        };
        memory.spoil();
        let message = self.messages.get_mut(id as usize).ok_or("a message that nobody sent")?;
        if (message.from, message.to, message.tag, message.length) != (status.peer, rank, status.tag, length) {
            return Err(format!("message {id} came as {status:?}"));
        }
        let fits = receive.select.source.is_none_or(|source| source == message.from)
            && receive.select.tag.is_none_or(|tag| tag == message.tag)
            && receive.select.context == message.context;
        if !fits || message.taken.replace(number).is_some() || receive.took.replace(id).is_some() {
            return Err(format!("message {id} went to receive {number}, twice or wrongly"));
        }
        self.taken += 1;
        Ok(())
    }

    fn act(&mut self, rank: Rank) -> Result<(), String> {
        if self.left[rank as usize] > 0 {
            self.left[rank as usize] -= 1;
            match self.rng.u32(..100) {
                0..50 => self.send(rank),
                50..85 => self.receive(rank),
                85..90 => self.cancel(rank)?,
                _ => self.probe(rank, None)?,
            }
            let after = self.rng.u64(1..10_000);
            self.sim.wake(rank, after);
            if self.left.iter().all(|left| *left == 0) {
                (0..self.setup.ranks).for_each(|rank| self.sim.wake(rank, 0));
            }
        } else if self.left.iter().all(|left| *left == 0) {
            // Takes all further messages, so that the job ends.
            for context in 0..2 {
                self.probe(rank, Some(Select { context, source: None, tag: None }))?;
            }
        }
        Ok(())
    }

    fn send(&mut self, rank: Rank) {
        let to = self.rng.u32(..self.setup.ranks);
        let length = match self.rng.u32(..10) {
            0 => 0,
            1..6 => self.rng.usize(1..300),
            6..9 => self.rng.usize(1..5000),
            _ => 1 << self.rng.u32(10..=23),
        };
        // 8 MiB in packets of a hundred bytes take long to simulate.
        let length = if self.setup.ranks > 3
            || self.setup.configs.iter().any(|config| config.window < 8)
            || self.rng.u8(..10) > 0
        {
            length.min(40_000)
        } else {
            length
        };
        let number = self.messages.len() as u64;
        let tag = if length == 0 { TAGS + number as u32 } else { self.rng.u32(..TAGS) };
        let context = self.rng.u32(..2);
        self.messages.push(Message { from: rank, to, context, tag, length, taken: None, sent: false });
        let memory = SimMemory::pattern(number, length);
        let part = Data::Of(Part { memory: &memory, at: 0, length });
        let sync = self.rng.u8(..5) == 0;
        if !sync && self.sim.engine(rank).try_send(to, context, tag, part) {
            memory.spoil();
            self.messages[number as usize].sent = true;
            return;
        }
        let id = self.sim.engine(rank).send(to, context, tag, memory, length, sync);
        self.sends.insert((rank, id), number);
    }

    fn room(&mut self, matched: bool) -> RecvTarget<SimMemory> {
        match self.rng.u32(..10) {
            0 if !matched => RecvTarget::Probe,
            0..3 => RecvTarget::Allocate,
            3 => short(self.rng.usize(1..400)),
            4..6 => RecvTarget::Make(|length| Some(SimMemory::zero(length))),
            _ => short(8 << 20),
        }
    }

    fn receive(&mut self, rank: Rank) {
        let select = Select {
            context: self.rng.u32(..2),
            source: (self.rng.u8(..3) > 0).then(|| self.rng.u32(..self.setup.ranks)),
            tag: (self.rng.u8(..3) > 0).then(|| self.rng.u32(..TAGS)),
        };
        let room = self.room(false);
        let length = if let RecvTarget::Into(_, length) = &room { Some(*length) } else { None };
        let id = self.sim.engine(rank).receive(select, room);
        self.opened(rank, id, select, length);
    }

    fn opened(&mut self, at: Rank, id: Id, select: Select, room: Option<usize>) {
        self.open.insert((at, id), self.receives.len());
        self.receives.push(Receive { at, select, room, took: None, cancelled: false, starved: false });
    }

    fn cancel(&mut self, rank: Rank) -> Result<(), String> {
        let mut mine: Vec<_> =
            self.open.iter().filter(|((at, _), _)| *at == rank).map(|((_, id), n)| (*n, *id)).collect();
        mine.sort();
        let Some((number, id)) = self.rng.choice(&mine).copied() else { return Ok(()) };
        if let Cancelled::Withdrawn(memory) = self.sim.engine(rank).cancel(id) {
            self.receives[number].cancelled = true;
            self.open.remove(&(rank, id));
            if memory.is_some() != self.receives[number].room.is_some() {
                return Err(format!("receive {number} was cancelled, and its memory is lost"));
            }
        }
        Ok(())
    }

    fn probe(&mut self, rank: Rank, select: Option<Select>) -> Result<(), String> {
        let all = select.is_some();
        let select = select.unwrap_or_else(|| Select {
            context: self.rng.u32(..2),
            source: self.rng.bool().then(|| self.rng.u32(..self.setup.ranks)),
            tag: self.rng.bool().then(|| self.rng.u32(..TAGS)),
        });
        loop {
            let peeked = self.sim.engine(rank).peek(select);
            let probed = self.sim.engine(rank).try_probe(select);
            if peeked != probed.clone().map(|probed| probed.map(|(_, status)| status)) {
                return Err(format!("peek says {peeked:?}, and a probe {probed:?}"));
            }
            let Ok(Some((id, _))) = probed else { return Ok(()) };
            let room = self.room(true);
            let length = if let RecvTarget::Into(_, length) = &room { Some(*length) } else { None };
            self.opened(rank, id, select, length);
            self.sim.engine(rank).receive_message(id, room).map_err(|(error, _)| error.to_string())?;
            self.sim.wake(rank, 0);
            if !all {
                return Ok(());
            }
        }
    }

    /// Nothing is in flight any more: entries that wait now would wait for ever.
    fn finish(&mut self) -> Result<(), String> {
        for number in 0..self.messages.len() {
            let message = &self.messages[number];
            if message.taken.is_none() || !message.sent {
                let Message { from, to, length, taken, sent, .. } = *message;
                let rest: Vec<_> = (0..self.setup.ranks).map(|rank| self.sim.engine(rank).at_rest()).collect();
                let keeps: Vec<_> = (0..self.setup.ranks).map(|rank| self.sim.engine(rank).kept()).collect();
                println!("{rest:?} keep {keeps:?}, under way {:?}", self.open);
                return Err(format!(
                    "message {number} from {from} to {to} of {length} bytes: taken {taken:?}, sent {sent}"
                ));
            }
        }
        let mut open: Vec<_> = self.open.drain().collect();
        open.sort();
        for ((rank, id), number) in open {
            match self.sim.engine(rank).cancel(id) {
                Cancelled::Withdrawn(_) => self.receives[number].starved = true,
                Cancelled::TooLate => return Err(format!("receive {number} was matched, and did not complete")),
            }
        }
        for rank in 0..self.setup.ranks {
            let config = self.setup.configs[rank as usize].clone();
            let (registrations, windows) = (self.sim.registrations(rank), self.sim.windows(rank));
            if windows > 0 {
                return Err(format!("rank {rank} has {windows} windows open"));
            }
            let engine = self.sim.engine(rank);
            engine.at_rest()?;
            if (engine.under_way(), engine.kept()) != (0, 0) {
                return Err(format!("rank {rank} keeps {} requests and {} bytes", engine.under_way(), engine.kept()));
            }
            let (channels, near) = (engine.channels(), self.setup.conditions.near.as_ref().unwrap_or(&config));
            if registrations != channels.rings + channels.near_rings {
                return Err(format!("rank {rank} has {registrations} registrations, and {channels:?}"));
            }
            if channels.connections > config.connections && self.setup.is_mixed() {
                return Err(format!("rank {rank} has {channels:?}"));
            }
            let bytes = channels.rings * config.ring.size() + channels.near_rings * near.ring.size();
            if channels.rings > config.rings
                || channels.near_rings > near.rings
                || engine.ring_bytes() != bytes
                || engine.granted() > config.budget
            {
                return Err(format!("rank {rank} gave more than it may"));
            }
        }
        Ok(())
    }

    /// Checks non-overtaking, for messages and for receives.
    fn judge(&self) -> Result<(), String> {
        let fits = |select: &Select, message: &Message| {
            select.context == message.context
                && select.source.is_none_or(|source| source == message.from)
                && select.tag.is_none_or(|tag| tag == message.tag)
        };
        for (later, second) in self.messages.iter().enumerate() {
            let taker = second.taken.expect("a message was not received");
            let select = &self.receives[taker].select;
            // An earlier message of the same pair that the receive could have taken went to an earlier
            // receive.
            for (earlier, first) in self.messages[..later].iter().enumerate() {
                let pair = (first.from, first.to) == (second.from, second.to);
                if pair && fits(select, first) && first.taken.expect("a message was not received") > taker {
                    return Err(format!("message {later} overtook {earlier}, at receive {taker}"));
                }
            }
            // An earlier receive of the rank that could have taken the message took an earlier message.
            for (number, receive) in self.receives[..taker].iter().enumerate() {
                if receive.at != second.to || receive.cancelled || !fits(&receive.select, second) {
                    continue;
                }
                let wrong = match receive.took {
                    Some(took) => self.messages[took as usize].from == second.from && took > later as u64,
                    None => true,
                };
                if wrong {
                    return Err(format!("receive {taker} took message {later}, which was receive {number}'s"));
                }
            }
        }
        Ok(())
    }
}

fn short(length: usize) -> RecvTarget<SimMemory> {
    RecvTarget::Into(SimMemory::zero(length), length)
}
