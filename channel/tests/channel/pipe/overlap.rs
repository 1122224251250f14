//! What a pipe copies before it posts: the whole put, or one chunk.

use super::*;
use transom_channel::Config;
use transom_channel::sim::{Conditions, SimWire};
use transom_channel::wire::{Busy, Event, Key, Lane, Request, Wire};

const LENGTH: usize = 4096;

/// A wire that replaces the bytes of a buffer once the first chunk of a pipe is posted.
struct Replace {
    wire: SimWire,
    buffer: SimMemory,
    done: bool,
}

impl Wire for Replace {
    type Memory = SimMemory;

    fn post(&mut self, lane: Lane, request: Request<'_, SimMemory>) -> Result<(), Busy> {
        let is_chunk = matches!(&request, Request::Put { body, .. } if body.length() > 64);
        self.wire.post(lane, request)?;
        if is_chunk && !std::mem::replace(&mut self.done, true) {
            SimMemory::pattern(2, LENGTH).copy(0, LENGTH, &self.buffer, 0);
        }
        Ok(())
    }

    fn rails(&self, near: bool) -> &[Rail] {
        self.wire.rails(near)
    }

    fn connect(&mut self, lane: Lane) {
        self.wire.connect(lane);
    }

    fn abort_peer(&mut self, peer: Rank) {
        self.wire.abort_peer(peer);
    }

    fn take(&mut self, length: usize) -> Option<SimMemory> {
        self.wire.take(length)
    }

    fn give(&mut self, memory: SimMemory) {
        self.wire.give(memory);
    }

    fn ring(&mut self, peer: Rank, length: usize) -> Option<(SimMemory, Key)> {
        self.wire.ring(peer, length)
    }

    fn reads(&mut self, lane: Lane) -> bool {
        self.wire.reads(lane)
    }

    fn register(&mut self, memory: &SimMemory, lane: Lane) -> Option<Key> {
        self.wire.register(memory, lane)
    }

    fn release(&mut self, lane: Lane, key: Key) {
        self.wire.release(lane, key);
    }

    fn poll(&mut self) -> Option<Event<SimMemory>> {
        self.wire.poll()
    }

    fn now(&self) -> u64 {
        self.wire.now()
    }
}

/// Number of bytes at the start of a put that were copied before its first chunk was posted.
fn copied_before_the_first_post(step: Step) -> usize {
    let buffer = SimMemory::pattern(1, LENGTH);
    let config = Pipe { step, chunk: 512, chunks: 16, zero_copy_from: u32::MAX };
    let over = |wire| Replace { wire, buffer: buffer.clone(), done: false };
    let mut sim = Sim::over(1, Conditions::default(), vec![Config::default(); 2], over).unwrap();
    let ends = [(0, 1), (1, 0)].map(|(me, peer)| sim.engine(me).pipe_open(peer, config).unwrap());
    for me in 0..2 {
        sim.engine(me as Rank).pipe_join(ends[me].0, &ends[1 - me].1.encode()).unwrap();
        sim.wake(me as Rank, 0);
    }
    while sim.step().is_some() {}
    sim.engine(0).pipe_start_put(ends[0].0, buffer, LENGTH).unwrap();
    sim.wake(0, 0);
    while sim.step().is_some() {}
    let mut came = vec![0; LENGTH];
    assert_eq!(sim.engine(1).pipe_get(ends[1].0, &mut came), Ok(Some(LENGTH)));
    let [old, new] = [1, 2].map(|seed| content(&SimMemory::pattern(seed, LENGTH), LENGTH));
    let at = (0..LENGTH).rfind(|at| came[*at] == old[*at] && came[*at] != new[*at]).unwrap() + 1;
    assert!(came[..at] == old[..at] && came[at..] == new[at..]);
    at
}

#[test]
fn pipeline_posts_a_chunk_before_it_copies_the_next() {
    let first = Pipe { chunk: 512, ..Pipe::default() }.chunk as usize;
    let copied = copied_before_the_first_post(Step::Pipeline);
    assert!((first - 32..=first).contains(&copied), "{copied} bytes, expected one chunk");
    assert_eq!(copied_before_the_first_post(Step::Piggyback), LENGTH);
    assert_eq!(copied_before_the_first_post(Step::Basic), LENGTH);
}
