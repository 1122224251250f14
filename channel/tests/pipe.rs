//! Pipes in the simulator: every step on every kind of rail against a stream of bytes, what they cost, deaths, and peers that
//! write anything.

use std::collections::{BTreeMap, BTreeSet};
use transom_channel::pipe::{Config as Pipe, Fault, Offer, Step};
use transom_channel::sim::{Conditions, Memory, Sim};
use transom_channel::wire::{Data, Key, Lane, Rail, Request, Wire};
use transom_channel::{Cancelled, Config, Error, Id, Lost, Rank};

const STEPS: [Step; 5] = [Step::Basic, Step::Piggyback, Step::Pipeline, Step::Read, Step::Write];

const RAIL: Rail =
    Rail { longest: 16 << 10, mark_last: false, whole_word: false, immediate: false, write: true, read: true };

/// One kind of rail for each marker.
fn rails() -> [Rail; 3] {
    [
        Rail { mark_last: true, whole_word: true, ..RAIL },
        Rail { whole_word: true, ..RAIL },
        Rail { immediate: true, ..RAIL },
    ]
}

fn open(sim: &mut Sim, a: Rank, b: Rank, config: Pipe) -> [(Id, Offer); 2] {
    let ends = [(a, b), (b, a)].map(|(me, peer)| sim.engine(me).pipe_open(peer, config).unwrap());
    (0..2).for_each(|end| sim.wake([a, b][end], 0));
    ends
}

fn joined(sim: &mut Sim, a: Rank, b: Rank, config: Pipe) -> [Id; 2] {
    let [one, two] = open(sim, a, b, config);
    sim.engine(a).pipe_join(one.0, &two.1.encode()).unwrap();
    sim.engine(b).pipe_join(two.0, &one.1.encode()).unwrap();
    [one.0, two.0]
}

fn content(memory: &Memory, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    memory.read(0, &mut bytes);
    bytes
}

/// Byte `at` of a stream.
fn byte(stream: u64, at: usize) -> u8 {
    ((stream ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn stretch(stream: u64, at: usize, length: usize) -> Vec<u8> {
    (at..at + length).map(|at| byte(stream, at)).collect()
}

/// From `least` to one of these lengths, and `most`.
fn some(rng: &mut fastrand::Rng, least: usize, most: usize, of: &[usize]) -> usize {
    let scale = *rng.choice(of).unwrap();
    rng.usize(least..=scale.min(most))
}

/// One end of a pipe in a random run, and what the plain stream of bytes says of it.
struct End {
    rank: Rank,
    id: Id,
    theirs: Option<Offer>,
    /// Streams by their names: what this end puts, and what it gets.
    streams: [u64; 2],
    /// Bytes that this end will put, has put or started, and has got.
    total: usize,
    put: usize,
    got: usize,
    /// The other end puts so many.
    coming: usize,
    /// Started puts: where they begin, and their memory.
    puts: BTreeMap<Id, (usize, Memory, usize)>,
    /// Started gets, in order, and how much room each has.
    gets: Vec<(Id, usize)>,
    ended: bool,
    over: bool,
    closed: bool,
}

impl End {
    /// One call of the program's.
    fn call(&mut self, sim: &mut Sim, rng: &mut fastrand::Rng) {
        let engine = sim.engine(self.rank);
        if let Some(offer) = self.theirs {
            if rng.bool() {
                engine.pipe_join(self.id, &offer.encode()).unwrap();
                self.theirs = None;
            }
            return;
        }
        let left = self.total - self.put;
        match rng.u32(..6) {
            0 | 1 if left > 0 => {
                let length = some(rng, 1, left, &[1, 20, 300, 5000]);
                let mut bytes = stretch(self.streams[0], self.put, length);
                let moved = engine.pipe_put(self.id, &bytes).unwrap();
                bytes.fill(0);
                assert!(moved <= length && (moved == 0 || self.puts.is_empty()), "nothing overtakes what was started");
                self.put += moved;
            }
            2 if left > 0 && self.puts.len() < 3 => {
                let length = some(rng, 0, left, &[40, 700, 9000]);
                let bytes = Memory::bytes(&stretch(self.streams[0], self.put, length));
                let id = engine.pipe_start_put(self.id, bytes.clone(), length).unwrap();
                self.puts.insert(id, (self.put, bytes, length));
                self.put += length;
            }
            3 | 4 if self.gets.is_empty() && !self.over => {
                let room = some(rng, 1, usize::MAX, &[1, 50, 400, 20_000]);
                let mut into = vec![0; room];
                match engine.pipe_get(self.id, &mut into).unwrap() {
                    Some(moved) => {
                        assert!(into[..moved] == stretch(self.streams[1], self.got, moved));
                        assert!(into[moved..].iter().all(|byte| *byte == 0), "nothing beyond");
                        self.got += moved;
                    }
                    None => self.over = true,
                }
            }
            5 if self.gets.len() < 3 && !self.over => {
                let room = some(rng, 0, usize::MAX, &[30, 500, 20_000]);
                let id = engine.pipe_start_get(self.id, Memory::zero(room), room).unwrap();
                self.gets.push((id, room));
            }
            _ => {}
        }
        // Now and then one that has not begun is taken back.
        if rng.u8(..10) == 0
            && let Some((id, room)) = self.gets.last().copied()
            && let Cancelled::Withdrawn(memory) = engine.cancel(id)
        {
            assert!(content(&memory.unwrap(), room).iter().all(|byte| *byte == 0), "nothing was got into it");
            self.gets.pop();
        }
        if left == 0 && !self.ended && rng.bool() {
            self.ended = true;
            engine.pipe_end(self.id);
        }
        if self.ended && self.over && self.gets.is_empty() && self.puts.is_empty() {
            self.closed = true;
            engine.pipe_close(self.id);
        }
    }

    /// Something has ended; false if it is another end's.
    fn ended(&mut self, id: Id, length: usize, memory: &Memory) -> bool {
        if let Some((at, bytes, whole)) = self.puts.remove(&id) {
            assert_eq!(length, whole);
            assert!(content(&bytes, whole) == stretch(self.streams[0], at, whole), "it was not changed");
            bytes.spoil();
            return true;
        }
        let Some(at) = self.gets.iter().position(|get| get.0 == id) else { return false };
        assert_eq!(at, 0, "in the order in which they were started");
        let (_, room) = self.gets.remove(0);
        assert!(length <= room);
        assert!(content(memory, length) == stretch(self.streams[1], self.got, length), "the next {length} bytes");
        self.got += length;
        if length == 0 && room > 0 {
            self.over = true;
        }
        true
    }
}

fn random_config(rng: &mut fastrand::Rng, step: Step) -> Pipe {
    Pipe {
        step,
        chunk: 8 * rng.u32(8..40),
        chunks: rng.u32(2..9),
        zero_copy_from: *rng.choice(&[0, 100, 1000, u32::MAX]).unwrap(),
    }
}

fn random_conditions(rng: &mut fastrand::Rng, rail: Rail) -> Conditions {
    let rail = Rail { read: rng.u8(..4) > 0, write: rng.u8(..4) > 0, ..rail };
    Conditions {
        rails: vec![rail],
        depth: *rng.choice(&[2, 8, 64]).unwrap(),
        busy: *rng.choice(&[0, 100, 400]).unwrap(),
        unregistered: *rng.choice(&[0, 0, 300]).unwrap(),
        torn: rng.u8(..4) > 0,
        ..Conditions::default()
    }
}

/// Opens a pipe, where registering may fail.
fn open_end(sim: &mut Sim, me: Rank, peer: Rank, config: Pipe) -> (Id, Offer) {
    loop {
        match sim.engine(me).pipe_open(peer, config) {
            Ok(open) => return open,
            Err(Error::Pipe { fault: Fault::NoMemory(_), .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

fn random_run(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let step = STEPS[seed as usize % 5];
    let rail = rails()[seed as usize / 5 % 3];
    let conditions = random_conditions(&mut rng, rail);
    let mut sim = Sim::new(seed, 3, conditions, &Config::default()).unwrap();
    let mut ends = Vec::new();
    // Two between one pair, and one to oneself.
    for (number, (a, b)) in (0..).zip([(0, 1), (1, 0), (1, 2), (2, 2)]) {
        let config = random_config(&mut rng, step);
        let (one, totals) = (open_end(&mut sim, a, b, config), [rng.usize(..30_000), rng.usize(..3000)]);
        let two = if a == b { one } else { open_end(&mut sim, b, a, config) };
        let sides = if a == b { 1 } else { 2 };
        for side in 0..sides {
            let (rank, id, theirs) = [(a, one.0, two.1), (b, two.0, one.1)][side];
            let other = (side + sides - 1) % sides;
            ends.push(End {
                rank,
                id,
                theirs: Some(theirs),
                streams: [2 * number + side as u64, 2 * number + other as u64],
                total: totals[side],
                put: 0,
                got: 0,
                coming: totals[other],
                puts: BTreeMap::new(),
                gets: Vec::new(),
                ended: false,
                over: false,
                closed: false,
            });
        }
    }
    (0..3).for_each(|rank| sim.wake(rank, 0));
    let mut steps = 0;
    while let Some(rank) = sim.step() {
        steps += 1;
        assert!(steps < 2_000_000, "it does not come to an end");
        while let Some(done) = sim.engine(rank).completed() {
            let length = done.result.unwrap().length as usize;
            let memory = done.memory.unwrap();
            let mut mine = ends.iter_mut().filter(|end| end.rank == rank);
            assert!(mine.any(|end| end.ended(done.id, length, &memory)), "nobody has started it");
        }
        for end in ends.iter_mut().filter(|end| end.rank == rank && !end.closed) {
            end.call(&mut sim, &mut rng);
            sim.wake(rank, rng.u64(100..3000));
        }
    }
    for end in &ends {
        assert!(end.closed && end.got == end.coming, "{} of {} bytes came", end.got, end.coming);
    }
    for rank in 0..3 {
        let engine = sim.engine(rank);
        assert_eq!((engine.pipes(), engine.under_way(), engine.wire().registrations()), (0, 0, 0), "rank {rank}");
        assert!(!engine.is_needed());
    }
}

#[test]
fn a_stream_of_bytes_in_random_conditions() {
    let seeds = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(600);
    let only: Option<u64> = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in only.map_or(0..seeds, |seed| seed..seed + 1) {
        let run = std::panic::catch_unwind(|| random_run(seed));
        if let Err(panic) = run {
            println!("SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// Puts or gets all of a buffer by calls that do not wait.
fn pass(sim: &mut Sim, [from, to]: [(Rank, Id); 2], length: usize) {
    let (data, mut into) = (stretch(1, 0, length), vec![0; length]);
    let (mut put, mut got) = (0, 0);
    sim.wake(from.0, 0);
    while got < length {
        let rank = sim.step().expect("it is under way");
        if rank == from.0 && put < length {
            put += sim.engine(rank).pipe_put(from.1, &data[put..]).unwrap();
            if put < length {
                sim.wake(rank, 100);
            }
        }
        if rank == to.0 {
            got += sim.engine(rank).pipe_get(to.1, &mut into[got..]).unwrap().unwrap();
        }
    }
    assert!(into == data);
}

#[test]
fn three_writes_a_message_then_one() {
    let rounds = 1000;
    for rail in rails() {
        for step in STEPS {
            let conditions = Conditions { rails: vec![rail], ..Conditions::default() };
            let mut sim = Sim::new(1, 2, conditions, &Config::default()).unwrap();
            let [a, b] = joined(&mut sim, 0, 1, Pipe { step, ..Pipe::default() });
            for _ in 0..rounds {
                pass(&mut sim, [(0, a), (1, b)], 8);
                pass(&mut sim, [(1, b), (0, a)], 8);
            }
            let counts = [sim.engine(0).pipe_count(a).unwrap(), sim.engine(1).pipe_count(b).unwrap()];
            let writes: u64 = counts.iter().map(|count| count.writes).sum();
            // Where a word is all that is seen whole, the mark of a chunk is a write of its own.
            let second = u64::from(!rail.mark_last && !rail.immediate);
            let each = if step == Step::Basic { 3 } else { 1 + second };
            assert_eq!(writes, each * 2 * rounds, "{step:?} {rail:?}");
            assert!(counts.iter().all(|count| count.copied == 8 * rounds && count.got == 8 * rounds));
        }
    }
}

#[test]
fn one_way_a_tail_is_told_for_half_a_ring() {
    for step in &STEPS[1..] {
        let mut sim = Sim::new(1, 2, Conditions::default(), &Config::default()).unwrap();
        let [a, b] = joined(&mut sim, 0, 1, Pipe { step: *step, ..Pipe::default() });
        let messages = 800;
        for _ in 0..messages {
            pass(&mut sim, [(0, a), (1, b)], 8);
        }
        assert_eq!(sim.engine(0).pipe_count(a).unwrap().writes, messages);
        let tails = sim.engine(1).pipe_count(b).unwrap();
        assert_eq!((tails.writes, tails.alone), (messages / 8, messages / 8), "16 chunks");
    }
}

/// Steps that copy all that fits before they write take longer than one that does not only where copying takes time, which
/// it does not here; but all take as many chunks.
#[test]
fn a_long_put_takes_its_chunks() {
    for step in &STEPS[1..] {
        let mut sim = Sim::new(1, 2, Conditions::default(), &Config::default()).unwrap();
        let config = Pipe { step: *step, ..Pipe::default() };
        let [a, b] = joined(&mut sim, 0, 1, config);
        pass(&mut sim, [(0, a), (1, b)], 100 * config.payload());
        assert_eq!(sim.engine(0).pipe_count(a).unwrap().writes, 100);
        assert_eq!(config.payload(), (16 << 10) - 16);
    }
}

#[test]
fn a_long_buffer_is_not_copied() {
    let length = 1 << 20;
    for rail in rails() {
        for (step, reads, writes, expected) in [
            // An offer, and the acknowledgement of the read; an announcement, where to, and that it is there.
            (Step::Read, true, true, (length, 0, [1, 1])),
            (Step::Write, true, true, (0, length, [2, 1])),
            (Step::Write, true, false, (length, 0, [1, 1])),
            (Step::Read, false, true, (0, length, [2, 1])),
        ] {
            let rail = Rail { read: reads, write: writes, ..rail };
            let conditions = Conditions { rails: vec![rail], ..Conditions::default() };
            let mut sim = Sim::new(1, 2, conditions, &Config::default()).unwrap();
            let [a, b] = joined(&mut sim, 0, 1, Pipe { step, ..Pipe::default() });
            let data = Memory::pattern(5, length);
            let put = sim.engine(0).pipe_start_put(a, data, length).unwrap();
            let get = sim.engine(1).pipe_start_get(b, Memory::zero(length), length).unwrap();
            while sim.step().is_some() {}
            let done = sim.engine(0).completed().unwrap();
            assert_eq!((done.id, done.result.unwrap().length), (put, length as u64));
            let done = sim.engine(1).completed().unwrap();
            assert_eq!((done.id, done.memory.unwrap().whose(length)), (get, Some(5)));
            let counts = [sim.engine(0).pipe_count(a).unwrap(), sim.engine(1).pipe_count(b).unwrap()];
            let twice = if !rail.mark_last && !rail.immediate { 2 } else { 1 };
            let (read, written, posts) = expected;
            assert_eq!((counts[0].read, counts[0].written, counts[0].copied), (read as u64, written as u64, 0));
            assert_eq!(counts.map(|count| count.writes), posts.map(|posts| posts * twice), "{step:?} {rail:?}");
            // Nothing but the two ends' memory is registered when all is over.
            assert_eq!([0, 1].map(|rank| sim.engine(rank).wire().registrations()), [1, 1]);
        }
    }
}

#[test]
fn what_cannot_be_is_said() {
    let mut sim = Sim::new(1, 2, Conditions::default(), &Config::default()).unwrap();
    let said = |result: Result<(Id, Offer), Error>| result.unwrap_err().to_string();
    let engine = sim.engine(0);
    assert_eq!(said(engine.pipe_open(2, Pipe::default())), "there is no rank 2: the job's ranks are 0 to 1");
    for config in [
        Pipe { chunk: 60, ..Pipe::default() },
        Pipe { chunk: 100, ..Pipe::default() },
        Pipe { chunks: 1, ..Pipe::default() },
        Pipe { chunk: 65_536, chunks: 17, ..Pipe::default() },
    ] {
        assert!(said(engine.pipe_open(1, config)).starts_with("the pipe to rank 1: a pipe has 2 to 1024 chunks"));
    }
    // Ends that differ.
    let (one, offer) = engine.pipe_open(1, Pipe { step: Step::Basic, ..Pipe::default() }).unwrap();
    let (two, _) = sim.engine(1).pipe_open(0, Pipe::default()).unwrap();
    let differs = sim.engine(1).pipe_join(two, &offer.encode()).unwrap_err();
    assert!(matches!(differs, Error::Pipe { rank: 0, fault: Fault::Differs { .. } }));
    let text = differs.to_string();
    assert!(text.contains("step: Basic") && text.contains("step: Read"), "{text}");
    sim.engine(1).pipe_refuse(two);
    assert_eq!(sim.engine(1).pipes(), 0);
    // Puts after the end, at a closed end, and to one.
    let [a, b] = joined(&mut sim, 0, 1, Pipe::default());
    sim.engine(0).pipe_end(a);
    let ended = sim.engine(0).pipe_put(a, &[1; 10]).unwrap_err();
    assert_eq!(ended, Error::Pipe { rank: 1, fault: Fault::Ended });
    sim.engine(0).pipe_close(a);
    while sim.step().is_some() {}
    let closed = sim.engine(1).pipe_put(b, &[1; 10]).unwrap_err();
    assert_eq!(closed.to_string(), "the pipe to rank 0: it has closed its end");
    sim.engine(1).pipe_start_put(b, Memory::pattern(1, 10), 10).unwrap();
    assert_eq!(sim.engine(1).completed().unwrap().result, Err(closed));
    assert_eq!(sim.engine(1).pipe_get(b, &mut vec![0; 4]), Ok(None));
    sim.engine(1).pipe_close(b);
    while sim.step().is_some() {}
    assert_eq!(sim.engine(1).pipe_put(b, &vec![0; 4]), Err(Error::NoPipe));
    assert_eq!((sim.engine(0).pipes(), sim.engine(1).pipes()), (1, 0));
    sim.engine(0).pipe_refuse(one);
    assert_eq!(sim.engine(0).pipes(), 0);
    // 256 to one peer.
    for _ in 0..256 {
        sim.engine(0).pipe_open(1, Pipe { chunk: 64, chunks: 2, ..Pipe::default() }).unwrap();
    }
    let more = sim.engine(0).pipe_open(1, Pipe::default());
    assert!(matches!(more, Err(Error::Pipe { fault: Fault::TooMany, .. })));
}

/// A closed end ends what the peer has under way, and gives back its buffers.
#[test]
fn a_peer_that_closes_ends_what_is_under_way() {
    for step in STEPS {
        let mut sim = Sim::new(3, 2, Conditions::default(), &Config::default()).unwrap();
        let [a, b] = joined(&mut sim, 0, 1, Pipe { step, ..Pipe::default() });
        let length = 5 << 20;
        let puts = [0, 1].map(|i| sim.engine(0).pipe_start_put(a, Memory::pattern(i, length), length).unwrap());
        (0..30).for_each(|_| _ = sim.step());
        sim.engine(1).pipe_close(b);
        while sim.step().is_some() {}
        for (i, put) in (0..).zip(puts) {
            let done = sim.engine(0).completed().unwrap();
            assert_eq!((done.id, done.result), (put, Err(Error::Pipe { rank: 1, fault: Fault::Closed })), "{step:?}");
            assert_eq!(done.memory.unwrap().whose(length), Some(i));
        }
        sim.engine(0).pipe_close(a);
        while sim.step().is_some() {}
        assert_eq!([0, 1].map(|rank| sim.engine(rank).wire().registrations()), [0, 0]);
    }
}

/// Rank 1 dies after so many steps; whether that was before the end.
fn die_after(steps: usize, step: Step, seed: u64) -> bool {
    let rail = rails()[seed as usize % 3];
    let conditions = Conditions { rails: vec![rail], depth: 4, ..Conditions::default() };
    let mut sim = Sim::new(seed, 3, conditions, &Config::default()).unwrap();
    let config = Pipe { step, chunk: 1024, chunks: 4, zero_copy_from: 4000 };
    let victim = joined(&mut sim, 0, 1, config);
    let living = joined(&mut sim, 0, 2, config);
    let length = 20_000;
    let (mut open, mut gets) = (BTreeMap::new(), BTreeSet::new());
    for (other, pipe) in [(1, victim), (2, living)] {
        for (rank, end) in [(0, pipe[0]), (other, pipe[1])] {
            for _ in 0..2 {
                let put = sim.engine(rank).pipe_start_put(end, Memory::pattern(9, length), length).unwrap();
                open.insert((rank, put), other);
            }
            for _ in 0..3 {
                let get = sim.engine(rank).pipe_start_get(end, Memory::zero(length), length).unwrap();
                open.insert((rank, get), other);
                gets.insert((rank, get));
            }
        }
    }
    let (mut taken, mut over, mut living_bytes) = (0, false, 0);
    loop {
        if taken == steps {
            sim.kill(1);
        }
        taken += 1;
        let Some(rank) = sim.step() else {
            if taken > steps {
                break;
            }
            over = true;
            continue;
        };
        while let Some(done) = sim.engine(rank).completed() {
            let other = open.remove(&(rank, done.id)).expect("each ends once");
            let memory = done.memory.expect("it is given back");
            match done.result {
                Ok(status) if other == 2 && gets.remove(&(rank, done.id)) => {
                    living_bytes += status.length;
                    let end = living[usize::from(rank == 2)];
                    let get = sim.engine(rank).pipe_start_get(end, Memory::zero(length), length).unwrap();
                    open.insert((rank, get), 2);
                    gets.insert((rank, get));
                    sim.wake(rank, 0);
                }
                Ok(_) => {}
                Err(Error::Lost { rank: 1, lost: Lost::Died }) => assert_eq!((rank, other), (0, 1)),
                Err(error) => panic!("{error}"),
            }
            memory.spoil();
        }
    }
    // Of the pipe that lives on, only gets are left, which wait for more.
    assert!(open.iter().all(|(id, other)| id.0 == 1 || (*other == 2 && gets.contains(id))), "waits for ever: {open:?}");
    assert_eq!(living_bytes, 4 * 20_000, "both ways");
    let lost = Error::Lost { rank: 1, lost: Lost::Died };
    let engine = sim.engine(0);
    while engine.pipe_get(victim[0], &mut vec![0; length]).is_ok() {
        assert!(engine.pipe_get(victim[0], &mut vec![0; length]) != Ok(None), "it has not ended the stream");
    }
    assert_eq!(engine.pipe_get(victim[0], &mut vec![0; length]), Err(lost.clone()));
    assert_eq!(engine.pipe_put(victim[0], &vec![0; length]), Err(lost.clone()));
    let put = engine.pipe_start_put(victim[0], Memory::zero(9), 9).unwrap();
    let done = engine.completed().unwrap();
    assert_eq!((done.id, done.result, done.memory.unwrap().len()), (put, Err(lost.clone()), 9));
    assert_eq!(engine.pipe_open(1, Pipe::default()).unwrap_err(), lost);
    engine.pipe_close(victim[0]);
    assert_eq!((engine.pipes(), engine.wire().registrations()), (1, 1), "the pipe that lives");
    !over
}

#[test]
fn a_peer_dies_in_every_phase() {
    for (seed, step) in (0..).zip(STEPS.iter().cycle().take(15)) {
        let mut steps = 0;
        while die_after(steps, *step, seed) {
            steps += 1;
        }
        assert!(steps > 50, "{steps} phases only");
    }
}

/// Who has put, ended and gone leaves what it has put, and the end.
#[test]
fn what_has_come_of_one_who_left_can_be_got() {
    for step in STEPS {
        let mut sim = Sim::new(1, 2, Conditions::default(), &Config::default()).unwrap();
        let [a, b] = joined(&mut sim, 0, 1, Pipe { step, ..Pipe::default() });
        assert_eq!(sim.engine(0).pipe_put(a, &stretch(1, 0, 40_000)), Ok(40_000));
        sim.engine(0).pipe_end(a);
        while sim.step().is_some() {}
        sim.kill(0);
        while sim.step().is_some() {}
        let mut into = vec![0; 50_000];
        assert_eq!(sim.engine(1).pipe_get(b, &mut into), Ok(Some(40_000)));
        assert!(into[..40_000] == stretch(1, 0, 40_000));
        assert_eq!(sim.engine(1).pipe_get(b, &mut into), Ok(None));
        let get = sim.engine(1).pipe_start_get(b, Memory::zero(50_000), 50_000).unwrap();
        let done = sim.engine(1).completed().unwrap();
        assert_eq!((done.id, done.result.unwrap().length), (get, 0));
    }
}

/// Rank 0 writes anything into its end of a pipe with rank 1, which has one with rank 2 as well.
#[test]
fn hostile_bytes() {
    let mut seen = BTreeMap::new();
    for seed in 0..3000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let step = STEPS[seed as usize % 5];
        let rail = rails()[seed as usize / 5 % 3];
        let conditions = Conditions { rails: vec![rail], torn: false, ..Conditions::default() };
        let mut sim = Sim::new(seed, 3, conditions, &Config::default()).unwrap();
        let config = Pipe { step, chunk: 128, chunks: 4, zero_copy_from: 200 };
        let [(mine, my_offer), (id, offer)] = open(&mut sim, 0, 1, config);
        sim.engine(0).pipe_join(mine, &offer.encode()).unwrap();
        sim.engine(1).pipe_join(id, &my_offer.encode()).unwrap();
        let other = joined(&mut sim, 1, 2, config);
        for _ in 0..20 {
            let length = rng.usize(1..1000);
            sim.engine(1).pipe_start_put(id, Memory::pattern(1, length), length).unwrap();
            sim.engine(1).pipe_start_get(id, Memory::zero(length), length).unwrap();
            if rng.u8(..3) == 0 {
                sim.engine(0).pipe_start_put(mine, Memory::pattern(1, length), length).unwrap();
                sim.engine(0).pipe_start_get(mine, Memory::zero(length), length).unwrap();
            }
        }
        for _ in 0..rng.usize(1..20) {
            (0..rng.usize(..30)).for_each(|_| _ = sim.step());
            let lane = Lane { peer: 1, rail: 0 };
            let word = |rng: &mut fastrand::Rng| match rng.u8(..4) {
                0 => rng.u64(..),
                1 => rng.u64(..600),
                2 => rng.u64(..130) << 32 | rng.u64(..12),
                _ => rng.u64(..6),
            };
            let words: Vec<u8> = (0..rng.usize(..6)).flat_map(|_| word(&mut rng).to_le_bytes()).collect();
            // Where pointers, control and chunks end, or anywhere.
            let slots = [0, 64, 184, 248, 312, 376, 504, 632, 760, 888];
            let end = if rng.bool() { *rng.choice(&slots).unwrap() } else { 8 * rng.usize(..112) };
            let at = end - words.len().min(end);
            let words = &words[..end - at];
            let stamp = rng.u64(1..9);
            let length = *rng.choice(&[words.len() as u64, 8, 16, 32, 100, 121, 1 << 31]).unwrap();
            let mark = if rng.u8(..4) == 0 { word(&mut rng) } else { length << 32 | stamp };
            let immediate = (rail.immediate && rng.u8(..4) > 0)
                .then(|| if rng.bool() { 1 << 31 | rng.u32(..4) << 29 | rng.u32(..1000) } else { rng.u32(..) });
            let request =
                Request::Put { to: offer.key, at, head: words, body: Data::None, mark: Some(mark), immediate };
            let _ = sim.engine(0).wire().post(lane, request);
            sim.wake(1, 0);
        }
        let length = 5000;
        sim.engine(2).pipe_start_put(other[1], Memory::bytes(&stretch(7, 0, length)), length).unwrap();
        let mut steps = 0;
        let (mut got, mut lost) = (0, None);
        let mut into = vec![0; length];
        while let Some(rank) = sim.step() {
            steps += 1;
            assert!(steps < 100_000, "seed {seed}: it does not come to an end");
            while let Some(done) = sim.engine(rank).completed() {
                match done.result {
                    Err(Error::Lost { rank: who, lost: why }) => {
                        assert!((rank, who) == (1, 0) || (rank, who) == (0, 1), "rank {rank} lost {who}: {why}");
                        lost = if rank == 1 { Some(why) } else { lost };
                    }
                    Err(Error::Pipe { rank: who, fault: Fault::Closed }) => assert_eq!((rank, who), (1, 0)),
                    Err(other) => panic!("{other}"),
                    Ok(_) => {}
                }
            }
            if rank == 1 && got < length {
                got += sim.engine(1).pipe_get(other[0], &mut into[got..]).unwrap().unwrap();
                sim.wake(1, 500);
            }
        }
        assert!(got == length && into == stretch(7, 0, length), "the pipe with another");
        let _ = sim.engine(1).pipe_get(id, &mut vec![0; 100]);
        *seen.entry(format!("{lost:?}").chars().take(70).collect::<String>()).or_insert(0) += 1;
    }
    println!("{seen:#?}");
    assert!(seen.len() > 8, "few ways to be cut off: {seen:#?}");
}

#[test]
fn offers_are_checked() {
    let offer = Offer { config: Pipe::default(), number: 7, key: Key { address: 1 << 40, key: 99 } };
    assert_eq!(Offer::decode(&offer.encode()), Some(offer));
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..100_000 {
        let mut bytes = offer.encode().to_vec();
        for _ in 0..rng.usize(1..3) {
            let at = rng.usize(..bytes.len());
            bytes[at] = rng.u8(..);
        }
        bytes.truncate(rng.usize(30..40));
        if let Some(read) = Offer::decode(&bytes) {
            assert_eq!(read.encode()[..], bytes[..], "what is read writes back to the same bytes");
            assert!(read.config.memory() <= 384 + (1 << 20) && read.config.chunks >= 2);
        }
    }
    // A peer whose offer is none is cut off.
    let mut sim = Sim::new(1, 2, Conditions::default(), &Config::default()).unwrap();
    let (id, _) = sim.engine(0).pipe_open(1, Pipe::default()).unwrap();
    let error = sim.engine(0).pipe_join(id, b"no offer").unwrap_err();
    assert_eq!(
        error.to_string(),
        "rank 1 is lost: it broke the protocol: what it has offered as its end of a pipe is none"
    );
}
