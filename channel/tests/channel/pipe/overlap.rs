//! What a pipe copies before it posts: the whole put, or one chunk.

use super::*;
use crate::model::changed::{Change, Changed};
use transom_channel::Config;
use transom_channel::sim::{Conditions, SimWire};
use transom_channel::wire::{Busy, Lane, Request, Wire};

const LENGTH: usize = 4096;

/// Replaces the bytes of a buffer once the first chunk of a pipe is posted.
struct Replace {
    buffer: SimMemory,
    done: bool,
}

impl Change for Replace {
    fn post(&mut self, wire: &mut SimWire, lane: Lane, request: Request<'_, SimMemory>) -> Result<(), Busy> {
        let is_chunk = matches!(&request, Request::Put { body, .. } if body.length() > 64);
        wire.post(lane, request)?;
        if is_chunk && !std::mem::replace(&mut self.done, true) {
            SimMemory::pattern(2, LENGTH).copy(0, LENGTH, &self.buffer, 0);
        }
        Ok(())
    }
}

/// Number of bytes at the start of a put that were copied before its first chunk was posted.
fn copied_before_the_first_post(step: Step) -> usize {
    let buffer = SimMemory::pattern(1, LENGTH);
    let config = Pipe { step, chunk: 512, chunks: 16, zero_copy_from: u32::MAX };
    let over = |wire| Changed { wire, change: Replace { buffer: buffer.clone(), done: false } };
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
    let copied = copied_before_the_first_post(Step::Pipeline);
    assert!((480..=512).contains(&copied), "{copied} bytes, expected one chunk");
    assert_eq!(copied_before_the_first_post(Step::Piggyback), LENGTH);
    assert_eq!(copied_before_the_first_post(Step::Basic), LENGTH);
}
