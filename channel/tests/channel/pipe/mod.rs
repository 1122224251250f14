//! Pipes in the simulator: every step on every kind of rail against a stream of bytes, their cost, deaths,
//! and hostile peers.

mod closing;
mod cost;
mod death;
mod hostile;
mod overlap;
mod random;

use transom_channel::pipe::{Config as Pipe, Offer, Step};
use transom_channel::sim::{Sim, SimMemory};
use transom_channel::wire::{Rail, RailKind, WireMemory};
use transom_channel::{Id, Rank};

const STEPS: [Step; 5] = [Step::Basic, Step::Piggyback, Step::Pipeline, Step::Read, Step::Write];

const RAIL: Rail = Rail {
    kind: RailKind::Connection,
    longest: 16 << 10,
    mark_last: false,
    whole_word: false,
    immediate: false,
    write: true,
    read: true,
    bandwidth: 0,
};

/// One kind of rail for each marker.
fn rails() -> [Rail; 4] {
    [
        Rail { mark_last: true, whole_word: true, ..RAIL },
        Rail { mark_last: true, immediate: true, ..RAIL },
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

fn content(memory: &SimMemory, length: usize) -> Vec<u8> {
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
