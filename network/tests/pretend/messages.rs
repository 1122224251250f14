//! Messages between hosts.

use crate::network::{Pretend, on_hosts};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use transom_channel::wire::{Data, Event, Lane, Request, WireMemory};
use transom_channel::{Changes, Config, Engine, Id, RecvTarget, Select, Wire};
use transom_network::{Hybrid, Transport};
use transom_shm_loopback::messages::Bytes;
use transom_windows::OobExchange;

/// Lengths that are sent eagerly in one packet, eagerly in several packets, and by rendezvous.
const LENGTHS: [usize; 3] = [8, 20_000, 500_000];

fn content(from: usize, to: usize, length: usize) -> Box<[u8]> {
    (0..length).map(|at| (at * 31 + from * 7 + to) as u8).collect()
}

/// Every rank sends messages of all lengths to every other, and receives theirs.
fn talk(engine: &mut Engine<Transport>, me: usize, ranks: usize, done: &AtomicUsize) {
    let mut sends = Vec::new();
    let mut receives: Vec<(Id, usize, usize)> = Vec::new();
    for peer in (0..ranks).filter(|&peer| peer != me) {
        for (tag, length) in LENGTHS.into_iter().enumerate() {
            let select = Select { context: 0, source: Some(peer as u32), tag: Some(tag as u32) };
            receives.push((engine.receive(select, RecvTarget::Allocate), peer, length));
            let memory = Bytes::owned(content(me, peer, length));
            sends.push(engine.send(peer as u32, 0, tag as u32, memory, length, false));
        }
    }
    let began = Instant::now();
    let mut told = false;
    while done.load(SeqCst) < ranks {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "rank {me}: not completed within 60 s: receives {receives:?}, sends {sends:?}"
        );
        engine.progress();
        sends.retain(|&id| engine.take(id).is_none_or(|ended| ended.result.is_err()));
        receives.retain(|&(id, peer, length)| {
            let Some(ended) = engine.take(id) else { return true };
            let status = ended.result.unwrap();
            let mut bytes = vec![0; length];
            ended.memory.unwrap().read(0, &mut bytes);
            assert_eq!((status.peer as usize, status.length), (peer, length as u64));
            assert!(*bytes == *content(peer, me, length), "wrong content of {length} bytes from rank {peer}");
            false
        });
        if !told && sends.is_empty() && receives.is_empty() {
            told = true;
            done.fetch_add(1, SeqCst);
        }
        std::thread::yield_now();
    }
}

#[test]
fn messages_use_memory_on_one_host_only() {
    let done = AtomicUsize::new(0);
    on_hosts(&[0, 1, 0, 1], |world: Hybrid<Pretend<true>>| {
        let (me, ranks) = (world.rank(), world.size());
        // SAFETY: an engine drives it.
        let (wire, config) = unsafe { world.inner().transport(&Changes::default()) }.unwrap();
        assert!(matches!(wire, Transport::Hybrid(_)));
        assert_eq!(wire.waiter().rank(), me, "the waiter's rank differs from the rank in the job");
        let mut engine = Engine::with_near(wire, me as u32, ranks as u32, config, Config::default()).unwrap();
        talk(&mut engine, me, ranks, &done);
        let posts = world.network().counts.posts.lock().unwrap().clone();
        let reached: Vec<u32> = posts.into_keys().collect();
        assert_eq!(reached, if me % 2 == 0 { [1, 3] } else { [0, 2] }, "ranks reached by the network from rank {me}");
        world.barrier().unwrap();
    });
}

/// A rank that is alone on its host uses only the network.
#[test]
fn messages_of_a_lone_rank_use_the_network() {
    let done = AtomicUsize::new(0);
    on_hosts(&[0, 1, 2], |world: Hybrid<Pretend<true>>| {
        let (me, ranks) = (world.rank(), world.size());
        // SAFETY: an engine drives it.
        let (wire, config) = unsafe { world.inner().transport(&Changes::default()) }.unwrap();
        assert!(matches!(wire, Transport::Network(_)));
        let mut engine = Engine::with_near(wire, me as u32, ranks as u32, config, Config::default()).unwrap();
        talk(&mut engine, me, ranks, &done);
        world.barrier().unwrap();
    });
}

/// Packets of a neighbour wait in any number: a packet of another host is taken between them.
#[test]
fn busy_neighbour_leaves_the_network_its_turn() {
    on_hosts(&[0, 1, 0], |world: Hybrid<Pretend<true>>| {
        // SAFETY: an engine drives it, in the other tests; here the wire sends packets alone.
        let (mut wire, _) = unsafe { world.inner().transport(&Changes::default()) }.unwrap();
        world.barrier().unwrap(); // all have opened their messages
        if world.rank() > 0 {
            let lane = Lane { peer: 0, rail: 0 };
            wire.connect(lane);
            for _ in 0..if world.rank() == 2 { 40 } else { 1 } {
                wire.post(lane, Request::Send { head: &[7; 8], body: Data::None }).unwrap();
            }
        }
        world.barrier().unwrap();
        if world.rank() == 0 {
            let from = |event| if let Event::Arrived { lane, .. } = event { Some(lane.peer) } else { None };
            let order: Vec<u32> = std::iter::from_fn(|| wire.poll()).filter_map(from).collect();
            assert!(order.len() == 41 && order[..15] == [2; 15] && order[40] == 2, "{order:?}");
        }
        world.barrier().unwrap();
    });
}
