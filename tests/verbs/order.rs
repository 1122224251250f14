//! Order of writes, on a fake adapter that promises no more than InfiniBand: bytes of a write become visible late, after
//! those of a later write, unless a send, an immediate value or an atomic comes between.

use crate::adapter::*;
use transom::messages::Tag;
use transom::pipe::{Config, Step};
use transom::{Op, Window, World};

/// Rounds of each test. Each shows old data at once if an operation relies on order.
const ROUNDS: usize = 5;

/// Adapters that promise no order at all, and order within a write.
const ADAPTERS: [&str; 2] = ["0", "1"];

/// Runs `body` on ranks whose adapters are late.
#[track_caller]
fn on_late_adapters(hosts: Option<&str>, size: usize, name: &str, body: impl Fn(World)) {
    // A copy was started for one of the adapters.
    let adapters = if std::env::var_os(ROLE).is_some() { &ADAPTERS[..1] } else { &ADAPTERS };
    for in_order in adapters {
        let late = [("FAKE_LATE_MS", "10"), ("FAKE_IN_ORDER", in_order)];
        on_fake(hosts, size, name, &late, &body);
    }
}

const WORDS: Tag<u64> = Tag::new(1);

/// A value that depends on the round and on the place.
fn data(round: usize, from: usize, len: usize) -> Vec<u64> {
    (0..len).map(|at| (round << 32 | from << 16 | at) as u64).collect()
}

#[test]
fn late_data_precedes_its_signal() {
    on_late_adapters(None, 2, "late_data_precedes_its_signal", |world| {
        let (me, other) = (world.rank(), 1 - world.rank());
        let mut window: Window<u64> = world.allocate_with_signals(100, 2).unwrap();
        let epoch = window.lock_all().unwrap();
        for round in 1..=ROUNDS {
            epoch.target(other).unwrap().put_signal(0, &data(round, me, 100), 0, 1).unwrap();
            epoch.signals().wait_until(0, |all| all >= round as u64).unwrap();
            assert_eq!(epoch.local().read(0, 100).unwrap(), data(round, other, 100));
            // The data may be overwritten.
            epoch.target(other).unwrap().put_signal(0, &[], 1, 1).unwrap();
            epoch.signals().wait_until(1, |all| all >= round as u64).unwrap();
        }
        epoch.unlock().unwrap();
        window.fence().unwrap();
    });
}

#[test]
fn late_puts_precede_fence_complete_and_unlock() {
    on_late_adapters(None, 3, "late_puts_precede_fence_complete_and_unlock", |world| {
        let (me, n) = (world.rank(), world.size());
        let (to, from) = ((me + 1) % n, (me + n - 1) % n);
        let mut window: Window<u64> = world.allocate(50).unwrap();
        for round in 0..ROUNDS {
            window.fence().unwrap().target(to).unwrap().put(0, &data(round, me, 50)).unwrap();
            window.fence().unwrap();
            assert_eq!(window.local().read(0, 50).unwrap(), data(round, from, 50), "fence");
            window.fence().unwrap();
            window.post(&[from]).unwrap();
            let epoch = window.start(&[to]).unwrap();
            epoch.target(to).unwrap().put(0, &data(round, me + 10, 50)).unwrap();
            epoch.complete().unwrap();
            window.wait().unwrap();
            assert_eq!(window.local().read(0, 50).unwrap(), data(round, from + 10, 50), "complete");
            window.fence().unwrap();
        }
        // Each rank adds under the lock to what the rank before it has written.
        for _ in 0..ROUNDS {
            let epoch = window.lock_exclusive(0).unwrap();
            let mut all = [0; 50];
            epoch.get(0, &mut all).unwrap();
            epoch.put(0, &all.map(|word| word.wrapping_add(1))).unwrap();
            epoch.fetch_and_op(49, Op::Sum, 0).unwrap();
            epoch.unlock().unwrap();
        }
        window.fence().unwrap();
        let expected: Vec<_> = data(ROUNDS - 1, n - 1 + 10, 50).iter().map(|word| word + (n * ROUNDS) as u64).collect();
        let mut all = [0; 50];
        window.lock_shared(0).unwrap().get(0, &mut all).unwrap();
        assert_eq!(all[..], expected[..], "unlock");
        window.fence().unwrap();
    });
}

#[test]
fn collective_calls_exchange_late_data() {
    on_late_adapters(Some("a,b"), 4, "collective_calls_exchange_late_data", |world| {
        let (me, n) = (world.rank(), world.size());
        for round in 0..ROUNDS {
            // Its collective creation gathers keys over lanes.
            let mut window: Window<u64> = world.allocate(10 + me).unwrap();
            window.fence().unwrap();
            let last = (me + 1) % n;
            window.lock_exclusive(last).unwrap().put(9 + last, &[round as u64]).unwrap();
            window.fence().unwrap();
            assert_eq!(window.local().get(9 + me).unwrap(), round as u64);
            let mut sum = data(round, me, 200);
            world.all_reduce(&mut sum, Op::Sum).unwrap();
            let expected: Vec<_> =
                (0..200).map(|at| (0..n).map(|rank| data(round, rank, 200)[at]).sum::<u64>()).collect();
            assert_eq!(sum, expected);
        }
    });
}

#[test]
fn messages_in_rings_arrive_whole_despite_late_data() {
    on_late_adapters(None, 2, "messages_in_rings_arrive_whole_despite_late_data", |world| {
        let (me, other) = (world.rank(), 1 - world.rank());
        for round in 0..200 {
            let len = [3, 40, 700][round % 3];
            let mut into = vec![0; len];
            if me == 0 {
                world.send(other, WORDS, &data(round, me, len)).unwrap();
                world.recv_into(other, WORDS, &mut into).unwrap();
            } else {
                world.recv_into(other, WORDS, &mut into).unwrap();
                world.send(other, WORDS, &data(round, me, len)).unwrap();
            }
            assert_eq!(into, data(round, other, len), "message {round}");
        }
        assert!(world.counters().unwrap().ring_packets > 50, "messages should use the ring: {:?}", world.counters());
        // A rendezvous message may be written by the sender.
        for round in 0..3 {
            let (sent, mut into) = (data(round, me, 100_000), vec![0; 100_000]);
            let sending = world.isend(other, WORDS, sent);
            world.recv_into(other, WORDS, &mut into).unwrap();
            sending.wait().unwrap();
            assert_eq!(into, data(round, other, 100_000), "long message {round}");
        }
    });
}

#[test]
fn pipe_bytes_are_read_after_late_writes() {
    on_late_adapters(None, 2, "pipe_bytes_are_read_after_late_writes", |world| {
        let (me, other) = (world.rank(), 1 - world.rank());
        for step in [Step::Basic, Step::Piggyback, Step::Pipeline, Step::Read, Step::Write] {
            let pipe = world.pipe_with(other, Config { step, ..Config::default() }).unwrap();
            for round in 0..ROUNDS {
                for len in [20, 5_000, 300_000] {
                    let bytes = |from: usize| (0..len).map(|at| (round + from * 3 + at * 7) as u8).collect::<Vec<_>>();
                    let putting = pipe.start_put(bytes(me));
                    let mut into = Vec::new();
                    while into.len() < len {
                        into.extend(pipe.start_get(vec![0; len - into.len()]).wait().unwrap());
                    }
                    assert!(into == bytes(other), "{step:?}, {len} bytes, round {round}");
                    putting.wait().unwrap();
                }
            }
            let count = pipe.count();
            assert!(step != Step::Write || count.written > 0, "no buffer was written in place: {count:?}");
            pipe.end().unwrap();
        }
    });
}
