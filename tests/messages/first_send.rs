//! First messages to ranks that have made no call yet, and the memory of messages before and after them.

use crate::ranks;
use ranks::{on, pattern};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;
use transom::World;
use transom::messages::{Error, Tag};

const ONE: Tag<u64> = Tag::new(1);
const TWO: Tag<u64> = Tag::new(2);
const BYTES: Tag<u8> = Tag::new(9);

/// The receiver has made no message call yet, and makes none.
#[test]
fn first_send_does_not_wait_for_its_receiver() {
    on(&ranks::SIZES, "first_send_does_not_wait_for_its_receiver", |world| {
        let mut window = world.allocate::<u64>(1).unwrap();
        // Between hosts a rank gives each other credit for 256 bytes at first; a message without data costs 64.
        let bytes = if ranks::over_network() { 100 } else { 16_384 };
        if world.rank() == 0 {
            for to in 0..world.size() {
                world.send(to, ONE, &[to as u64]).unwrap();
                world.send(to, BYTES, &pattern(to, bytes)).unwrap();
            }
            let epoch = window.lock_all().unwrap();
            (0..world.size()).for_each(|to| epoch.target(to).unwrap().put(0, &[1]).unwrap());
            epoch.unlock().unwrap();
        }
        // Local reads serve no messages.
        while window.local().get(0).unwrap() == 0 {
            std::thread::yield_now();
        }
        assert_eq!(world.recv(0, BYTES).unwrap().0, pattern(world.rank(), bytes));
        assert_eq!(world.recv(0, ONE).unwrap().0, [world.rank() as u64]);
    });
}

/// A rank in another wait (a fence) serves any number of messages.
#[test]
fn first_sends_are_served_by_a_fence() {
    on(&ranks::SIZES, "first_sends_are_served_by_a_fence", |world| {
        let mut window = world.allocate::<u64>(1).unwrap();
        let (rank, size) = (world.rank(), world.size());
        let (senders, receivers) = (0..size / 2, size / 2..size);
        if senders.contains(&rank) {
            for i in 0..200 {
                receivers.clone().for_each(|to| world.send(to, ONE, &[rank as u64, i]).unwrap());
            }
        }
        window.fence().unwrap();
        if receivers.contains(&rank) {
            for i in 0..200 {
                senders.clone().for_each(|from| assert_eq!(world.recv(from, ONE).unwrap().0, [from as u64, i]));
            }
        }
    });
}

/// A message to a rank whose first call is no receive, and which then finds the sender gone.
#[test]
fn messages_reach_a_rank_that_sends_first() {
    on(&[2, 4], "messages_reach_a_rank_that_sends_first", |world| {
        let last = world.size() - 1;
        if world.rank() == 0 {
            (0..3).for_each(|i| world.send(last, ONE, &[i]).unwrap());
        } else if world.rank() == last {
            std::thread::sleep(Duration::from_millis(300));
            let gone = loop {
                match world.send(0, TWO, &[9]) {
                    Ok(()) => std::thread::yield_now(),
                    Err(gone) => break gone,
                }
            };
            assert!(matches!(gone, Error::PeerLeft { rank: 0 }), "{gone}");
            (0..3).for_each(|i| assert_eq!(world.recv(0, ONE).unwrap().0, [i]));
            let gone = world.recv(0, ONE).unwrap_err();
            assert!(matches!(gone, Error::PeerLeft { rank: 0 }), "{gone}");
        }
    });
}

/// Shared memory that this process has open, by size in bytes.
fn shared() -> Vec<(u64, u64)> {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let ours = open.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().contains("transom")));
    let of = |memory: std::fs::Metadata| (memory.len(), memory.blocks() * 512);
    let mut sizes: Vec<_> = ours.map(|fd| of(std::fs::metadata(fd.path()).unwrap())).collect();
    sizes.sort();
    sizes
}

/// An inbox uses memory only for touched pages, also where ranks are threads.
#[test]
#[cfg_attr(transom_portable_copy, ignore = "ThreadSanitizer uses shadow memory for each byte")]
fn unused_thread_inboxes_take_no_memory() {
    const THREADS: usize = 64;
    let body = |_: World| {
        let fenced = transom::threads(THREADS, |world| {
            let mut window = world.allocate::<u64>(1).unwrap();
            window.fence().map(drop).unwrap();
        });
        assert_eq!(fenced.unwrap().len(), THREADS);
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let kib: usize = peak.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        assert!(kib < 1024 * THREADS / 2, "{kib} KiB; inboxes alone have {THREADS} MiB");
    };
    let name = "unused_thread_inboxes_take_no_memory";
    let Some(outcome) = ranks::outcome_of(1, name, body) else { return };
    assert!(outcome.success(), "{outcome}\n{}", String::from_utf8_lossy(outcome.output(0)));
}

#[test]
fn ring_memory_matches_formula_for_active_pairs() {
    use transom::shm_loopback::messages::{inbox_bytes, ring_bytes};
    let body = |world: World| {
        // A fence is no collective, which may send.
        let mut window = world.allocate::<u8>(1).unwrap();
        let before = shared();
        let inbox = before
            .iter()
            .find(|(size, _)| *size == inbox_bytes(3) as u64)
            .expect("a rank should have an inbox from the start");
        assert!(inbox.1 <= 8192, "unused inbox {inbox:?} uses more than 8192 bytes");
        window.fence().unwrap();
        let sizes = || shared().into_iter().map(|(size, _)| size).collect::<Vec<_>>();
        let before = sizes();
        if world.rank() == 2 {
            let _ = window.fence().unwrap();
            return;
        }
        let other = 1 - world.rank();
        world.sendrecv(other, ONE, &[1], other, ONE, &mut [0]).unwrap();
        assert_eq!(sizes(), before, "one exchange made a mapping for the pair");
        for _ in 0..40 {
            world.sendrecv(other, ONE, &[1], other, ONE, &mut [0]).unwrap();
        }
        let mut expected = [&before[..], &[ring_bytes(256, 16_704) as u64]].concat();
        expected.sort();
        assert_eq!(sizes(), expected, "expected one more mapping, the ring of the peer");
        window.fence().unwrap();
    };
    if ranks::over_network() {
        return;
    }
    let Some(outcome) = ranks::outcome_of(3, "ring_memory_matches_formula_for_active_pairs", body) else { return };
    assert!(outcome.success(), "{outcome}\n{}", String::from_utf8_lossy(outcome.output(0)));
}

/// `cargo test --test messages -- --nocapture memory_of_64_ranks` prints what a rank has.
#[test]
fn memory_of_64_ranks_is_bounded_by_the_formula() {
    use transom::shm_loopback::messages::{inbox_bytes, ring_bytes};
    const RANKS: usize = 64;
    let body = |world: World| {
        let of = |bytes: usize| move |(size, _): &(u64, u64)| *size == bytes as u64;
        let (inbox, ring) = (of(inbox_bytes(RANKS)), of(ring_bytes(256, 16_704)));
        // More peers than there are rings, and each talks enough for one.
        let (me, n) = (world.rank(), world.size());
        for _ in 0..40 {
            for away in 1..=12 {
                let (to, from) = ((me + away) % n, (me + n - away) % n);
                world.sendrecv(to, ONE, &[1], from, ONE, &mut [0]).unwrap();
            }
        }
        let all = shared();
        let (inboxes, rings) = (all.iter().filter(|of| inbox(of)).count(), all.iter().filter(|of| ring(of)).count());
        assert_eq!((inboxes, rings), (1, 8), "{all:?}");
        let used: u64 = all.iter().filter(|of| inbox(of) || ring(of)).map(|(_, used)| used).sum();
        if me == 0 {
            println!("\na rank of 64: 1 inbox and 8 rings, of which {used} bytes were used");
        }
        world.barrier().unwrap();
    };
    if ranks::over_network() {
        return;
    }
    let Some(outcome) = ranks::outcome_of(RANKS, "memory_of_64_ranks_is_bounded_by_the_formula", body) else { return };
    let said = String::from_utf8_lossy(outcome.output(0)).into_owned();
    assert!(outcome.success(), "{outcome}\n{said}");
    println!("{}", said.lines().find(|line| line.starts_with("a rank of 64")).unwrap_or_default());
}
