//! Every step in random conditions, compared with a plain stream of bytes.

use super::*;
use std::collections::BTreeMap;
use transom_channel::pipe::Fault;
use transom_channel::sim::Conditions;
use transom_channel::{Cancelled, Config, Error};

/// A random length, from `least` to one of the lengths in `of`, and at most `most`.
fn some(rng: &mut fastrand::Rng, least: usize, most: usize, of: &[usize]) -> usize {
    let scale = *rng.choice(of).unwrap();
    rng.usize(least..=scale.min(most))
}

/// One end of a pipe in a random run, with the expected state of its streams.
struct End {
    rank: Rank,
    id: Id,
    theirs: Option<Offer>,
    /// Identifiers of the streams that this end puts and gets.
    streams: [u64; 2],
    /// Bytes that this end will put in all, has put or started, and has got.
    total: usize,
    put: usize,
    got: usize,
    /// Bytes that the other end will put in all.
    coming: usize,
    /// Started puts: start offset, memory and length.
    puts: BTreeMap<Id, (usize, SimMemory, usize)>,
    /// Started gets in order, with the room of each.
    gets: Vec<(Id, usize)>,
    ended: bool,
    over: bool,
    closed: bool,
}

impl End {
    /// Makes one call of the program.
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
                assert!(
                    moved <= length && (moved == 0 || self.puts.is_empty()),
                    "a blocking put overtook a started put"
                );
                self.put += moved;
            }
            2 if left > 0 && self.puts.len() < 3 => {
                let length = some(rng, 0, left, &[40, 700, 9000]);
                let bytes = SimMemory::bytes(&stretch(self.streams[0], self.put, length));
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
                        assert!(into[moved..].iter().all(|byte| *byte == 0), "the get changed bytes beyond its length");
                        self.got += moved;
                    }
                    None => self.over = true,
                }
            }
            5 if self.gets.len() < 3 && !self.over => {
                let room = some(rng, 0, usize::MAX, &[30, 500, 20_000]);
                let id = engine.pipe_start_get(self.id, SimMemory::zero(room), room).unwrap();
                self.gets.push((id, room));
            }
            _ => {}
        }
        // Sometimes withdraws a get that has not begun.
        if rng.u8(..10) == 0
            && let Some((id, room)) = self.gets.last().copied()
            && let Cancelled::Withdrawn(memory) = engine.cancel(id)
        {
            assert!(
                content(&memory.unwrap(), room).iter().all(|byte| *byte == 0),
                "a withdrawn get changed its buffer"
            );
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

    /// Handles an operation that has ended; `false` if it belongs to another end.
    fn ended(&mut self, id: Id, length: usize, memory: &SimMemory) -> bool {
        if let Some((at, bytes, whole)) = self.puts.remove(&id) {
            assert_eq!(length, whole);
            assert!(content(&bytes, whole) == stretch(self.streams[0], at, whole), "a put changed its buffer");
            bytes.spoil();
            return true;
        }
        let Some(at) = self.gets.iter().position(|get| get.0 == id) else { return false };
        assert_eq!(at, 0, "gets completed out of order");
        let (_, room) = self.gets.remove(0);
        assert!(length <= room);
        assert!(
            content(memory, length) == stretch(self.streams[1], self.got, length),
            "the got bytes differ from the next {length} bytes of the stream"
        );
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

/// Opens a pipe; retries where a registration fails.
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
    // Two pipes between one pair, and one from a rank to itself.
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
        assert!(steps < 2_000_000, "not finished after 2,000,000 steps");
        while let Some(done) = sim.engine(rank).completed() {
            let length = done.result.unwrap().length as usize;
            let memory = done.memory.unwrap();
            let mut mine = ends.iter_mut().filter(|end| end.rank == rank);
            assert!(mine.any(|end| end.ended(done.id, length, &memory)), "an unknown request completed");
        }
        for end in ends.iter_mut().filter(|end| end.rank == rank && !end.closed) {
            end.call(&mut sim, &mut rng);
            sim.wake(rank, rng.u64(100..3000));
        }
    }
    for end in &ends {
        assert!(end.closed && end.got == end.coming, "got {} of {} bytes", end.got, end.coming);
    }
    for rank in 0..3 {
        let registrations = sim.registrations(rank);
        let engine = sim.engine(rank);
        assert_eq!((engine.pipes(), engine.under_way(), registrations), (0, 0, 0), "rank {rank}");
        assert!(!engine.is_needed());
    }
}

#[test]
fn byte_stream_is_correct_in_random_conditions() {
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
