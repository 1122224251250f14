//! Queue pairs, work requests and registered bytes of messages on the provider for several machines.
//! docs/results/rdma.md has the tables.
//!
//! Tests that need an RDMA device are skipped, with a message, on machines without one. `tests/soft-roce/verbs` runs
//! them in guests.

use crate::adapter;
use adapter::*;
use std::time::Instant;
use transom::messages::Tag;
use transom::{Op, Window};

/// With datagrams, a rank that exchanges messages with all others is connected only to ranks that it has a pipe to.
#[test]
fn datagram_messages_make_no_queue_pairs() {
    if skipped("messages by datagrams") {
        return;
    }
    let chosen = [("TRANSOM_MESSAGES", "paths=ud,checksum=yes"), ("TRANSOM_INTRANODE", "off")];
    on_verbs(4, "datagram_messages_make_no_queue_pairs", &chosen, |world| {
        const BYTES: Tag<u8> = Tag::new(4);
        let (me, n) = (world.rank(), world.size());
        let pattern = |from: usize, length: usize| -> Vec<u8> { (0..length).map(|at| (at * 5 + from) as u8).collect() };
        for length in [0, 1, 900, 1000, 40_000] {
            for away in 0..n {
                let (to, from) = ((me + away) % n, (me + n - away) % n);
                let mut got = vec![0; length];
                world.sendrecv(to, BYTES, &pattern(me, length), from, BYTES, &mut got).unwrap();
                assert!(got == pattern(from, length), "{length} bytes from {from}");
            }
        }
        let counters = world.counters().unwrap();
        assert!(
            counters.copied_bytes >= 3 * 41_000 && counters.read_bytes + counters.written_bytes == 0,
            "{counters:?}"
        );
        assert_eq!((counters.spoiled, counters.ring_packets), (0, 0));
        assert_eq!((verbs(&world).queue_pairs().to_others, verbs(&world).queue_pairs().to_itself), (0, 0));
        let mut pipe = world.pipe(me ^ 1).unwrap();
        std::io::Write::write_all(&mut pipe, &[me as u8; 9]).unwrap();
        let mut got = [0; 9];
        std::io::Read::read_exact(&mut pipe, &mut got).unwrap();
        assert_eq!(got, [me as u8 ^ 1; 9]);
        assert_eq!(verbs(&world).queue_pairs().to_others, 1);
    });
}

/// Long messages go into place by datagrams, still without a connection.
#[test]
fn long_datagram_messages_arrive_without_copies() {
    if skipped("messages by datagrams") {
        return;
    }
    let chosen = [("TRANSOM_MESSAGES", "ud"), ("TRANSOM_INTRANODE", "off")];
    on_verbs(3, "long_datagram_messages_arrive_without_copies", &chosen, |world| {
        const BYTES: Tag<u8> = Tag::new(4);
        let (me, n) = (world.rank(), world.size());
        let pattern = |from: usize, length: usize| -> Vec<u8> {
            (0..length).map(|at| ((at * 5 + from) ^ (at >> 9)) as u8).collect()
        };
        let mut bytes = 0;
        for length in [200_000, 1 << 20, 3_000_001] {
            for away in 1..n {
                let (to, from) = ((me + away) % n, (me + n - away) % n);
                let (given, mut got) = (pattern(me, length), vec![0; length]);
                world.sendrecv(to, BYTES, &given, from, BYTES, &mut got).unwrap();
                assert!(got == pattern(from, length), "{length} bytes from {from}");
                bytes += length as u64;
            }
        }
        let counters = world.counters().unwrap();
        assert_eq!((counters.written_bytes, counters.copied_bytes, counters.read_bytes), (bytes, 0, 0));
        // Pieces have between 448 bytes and 4 KiB; all but few come by datagrams.
        let pieces = bytes / 4096..=bytes / 448;
        assert!((pieces.start() / 64..=pieces.end() / 64 + 12).contains(&counters.datagram_windows), "{counters:?}");
        assert!(counters.datagram_repairs < bytes / 4096 / 4, "{counters:?}");
        assert_eq!((verbs(&world).queue_pairs().to_others, verbs(&world).queue_pairs().to_itself), (0, 0));
    });
}

/// A rank exchanges messages with two others in turn, and has room for one connection: one of the two gets it. A
/// window then connects both, and messages use these connections too.
#[test]
fn connections_go_to_the_busiest_peers() {
    if skipped("messages by datagrams and connections") {
        return;
    }
    let paths = "paths=both,connections=1,connect_after=4,rings=1,ring_after=2";
    let chosen = [("TRANSOM_MESSAGES", paths), ("TRANSOM_INTRANODE", "off")];
    on_verbs(3, "connections_go_to_the_busiest_peers", &chosen, |world| {
        const NUMBERS: Tag<u32> = Tag::new(4);
        let (me, long) = (world.rank(), (0..100_000).collect::<Vec<u32>>());
        let speak = |with: usize| {
            for number in 0..150 {
                if me == 0 {
                    world.send(with, NUMBERS, &[number]).unwrap();
                    assert_eq!(world.recv(with, NUMBERS).unwrap().0, [number + 1]);
                } else if me == with {
                    assert_eq!(world.recv(0, NUMBERS).unwrap().0, [number]);
                    world.send(0, NUMBERS, &[number + 1]).unwrap();
                }
            }
            if me == 0 {
                world.send(with, NUMBERS, &long).unwrap();
            } else if me == with {
                assert!(world.recv(0, NUMBERS).unwrap().0 == long);
            }
        };
        [1, 2, 1, 2].into_iter().for_each(speak);
        if me == 0 {
            let counters = world.counters().unwrap();
            let (connects, disconnects) = (counters.connects, counters.disconnects);
            assert!(connects >= 2 && connects - disconnects <= 1, "{counters:?}");
            assert!(counters.ring_packets > 0 && counters.datagram_packets > 0, "{counters:?}");
            // At most four messages go in place. On a slow machine a connection is not ready yet, and its pieces are
            // copied.
            let in_place = counters.registered;
            assert!((2..=4).contains(&in_place), "long messages sent without copies: {counters:?}");
            assert_eq!(counters.copied_bytes, (4 - in_place) * 400_000, "{counters:?}");
            let pairs = verbs(&world).queue_pairs();
            assert!(pairs.to_others >= 2 && pairs.now <= 1, "{pairs:?}");
        }
        // From now on other ranks may be changing a word there.
        let mut window: Window<u64> = world.allocate(1).unwrap();
        window.fence().unwrap();
        let before = verbs(&world).queue_pairs().now;
        for with in [1, 2, 1, 2] {
            speak(with);
            window.lock_exclusive(0).unwrap().fetch_and_op(0, Op::Sum, 1).unwrap();
        }
        window.fence().unwrap();
        assert_eq!(window.lock_shared(0).unwrap().get_one(0).unwrap(), 12);
        assert!(verbs(&world).queue_pairs().now >= before);
    });
}

/// A rank with room for one connection, and with one of a window, makes no connection for messages to another rank.
#[test]
fn count_windows_includes_window_connections() {
    if skipped("messages by datagrams and connections") {
        return;
    }
    for count in ["yes", "no"] {
        let paths = format!("paths=both,connections=1,connect_after=4,count_windows={count}");
        let chosen = [("TRANSOM_MESSAGES", &*paths), ("TRANSOM_INTRANODE", "off")];
        on_verbs(3, "count_windows_includes_window_connections", &chosen, |world| {
            // Copies do not run the second iteration of this loop: a variable says which iteration they are.
            let counts = std::env::var("TRANSOM_MESSAGES").unwrap().ends_with("yes");
            const NUMBERS: Tag<u32> = Tag::new(4);
            let me = world.rank();
            let mut window: Window<u64> = world.allocate(1).unwrap();
            if me == 0 {
                window.lock_exclusive(1).unwrap().put_one(0, 7).unwrap();
            }
            meet(&world).unwrap();
            let before = verbs(&world).queue_pairs().now;
            for number in 0..40 {
                if me == 0 {
                    world.send(2, NUMBERS, &[number]).unwrap();
                    assert_eq!(world.recv(2, NUMBERS).unwrap().0, [number + 1]);
                } else if me == 2 {
                    assert_eq!(world.recv(0, NUMBERS).unwrap().0, [number]);
                    world.send(0, NUMBERS, &[number + 1]).unwrap();
                }
            }
            meet(&world).unwrap();
            let counters = world.counters().unwrap();
            let more = verbs(&world).queue_pairs().now - before;
            match (me, counts) {
                (0, true) | (1, _) => assert_eq!((counters.connects, more), (0, 0), "{counters:?}"),
                (2, true) => assert!(counters.connects == 0 && counters.refusals > 0 && more == 0, "{counters:?}"),
                _ => assert_eq!((counters.connects, more), (1, 1), "{counters:?}"),
            }
        });
        if std::env::var_os(ROLE).is_some() {
            return;
        }
    }
}

/// A packet is one request: a message to a shared buffer, or a write to a ring; a large message is an RTS, one read, an
/// ACK, and is not copied.
#[test]
fn message_packet_is_one_work_request() {
    if skipped("requests of messages") {
        return;
    }
    on_verbs(2, "message_packet_is_one_work_request", &[("TRANSOM_INTRANODE", "off")], |world| {
        let (me, verbs) = (world.rank(), verbs(&world));
        let (other, tag) = (1 - me, Tag::<u8>::new(1));
        let counted = |what: &mut dyn FnMut()| {
            let (requests, before) = (verbs.work_requests_to_others(), world.counters().unwrap());
            let begun = Instant::now();
            what();
            // A poll of the lanes, at most ten a second, asks for a completion on lanes without one since the last
            // poll.
            let looks = 1 + begun.elapsed().as_millis() as u64 / 100;
            let (requests, now) = (verbs.work_requests_to_others() - requests, world.counters().unwrap());
            let packets = [now.queue_packets - before.queue_packets, now.ring_packets - before.ring_packets];
            let others = now.controls - before.controls + now.joins - before.joins;
            assert!(requests.markers <= looks, "{requests:?}");
            (requests, packets, others)
        };
        let ping_pong = |len: usize, rounds: usize| {
            let (mine, mut got) = (vec![7; len], vec![0; len]);
            for _ in 0..rounds {
                if me == 0 {
                    world.send(other, tag, &mine).unwrap();
                }
                world.recv_into(other, tag, &mut got).unwrap();
                if me == 1 {
                    world.send(other, tag, &mine).unwrap();
                }
            }
        };
        for (len, rounds, what) in
            [(8, 8, "before there are rings"), (8, 40, "rings open"), (8, 20, "by rings"), (2000, 20, "copied")]
        {
            let (requests, [queue, ring], others) = counted(&mut || ping_pong(len, rounds));
            assert_eq!(
                queue + ring,
                rounds as u64 + others,
                "{what}: expected one packet per message plus control packets"
            );
            assert_eq!(requests.sends, queue, "{what}: {requests:?}");
            // The kind of write depends on the promise of the adapter: with an immediate value, in order, or with the
            // completion flag in a second write.
            let writes = [(ring, 0), (0, ring), (0, 2 * ring)];
            assert!(writes.contains(&(requests.told_writes, requests.writes)), "{what}: {requests:?}, {ring} by rings");
            assert_eq!((requests.reads, requests.compare_and_swaps, requests.fetch_and_adds), (0, 0, 0));
            // One in 32, a quarter of what a queue pair takes.
            let posted = requests.sends + requests.writes + requests.told_writes;
            assert!(requests.signalled <= 1 + posted / 32 + requests.markers, "{what}: {requests:?}");
            match what {
                "before there are rings" => assert_eq!(ring, 0),
                "by rings" | "copied" => assert!(ring >= rounds as u64 - 2, "{ring} of {rounds} by rings"),
                _ => {}
            }
        }
        let data = vec![me as u8; 1 << 20];
        meet(&world).unwrap();
        let before = verbs.registrations();
        let (requests, packets, others) = counted(&mut || {
            if me == 0 {
                world.send(other, tag, &data).unwrap(); // until it is received
            } else {
                // The message has arrived, so the receiver reads it.
                let message = world.probe(other, tag).unwrap();
                assert_eq!(message.recv().unwrap(), vec![0; 1 << 20]);
            }
        });
        let packets: u64 = packets.into_iter().sum();
        assert_eq!((requests.reads, packets - others), (me as u64, 1), "{requests:?}");
        assert!(requests.signalled <= requests.reads + 1 + requests.markers, "{requests:?}");
        let mut expected = before;
        expected.passing += 1;
        assert_eq!(verbs.registrations(), expected, "expected one registration for the message at each end");
        meet(&world).unwrap();
    });
}

/// Registered bytes of each of `n` ranks that exchange messages with all others, one or two at a time.
fn registered_for_messages(n: usize) -> usize {
    let datagrams = 128 * (256 + 64);
    // 16 buffers with the first queue pair and 64 with the first message, each of 8 KiB and a header, in whole pages.
    let buffers = 135_168 + 536_576;
    // One for each peer, up to the cap: 32 slots of 8 KiB, a header and a mark.
    let rings = (n - 1).min(8) * 32 * 8320;
    datagrams + buffers + rings
}

/// Checks the registered bytes of each of `n` ranks after messages with all others, or with nine on each side.
fn registered(n: usize, name: &str) {
    on_verbs(n, name, &[("TRANSOM_INTRANODE", "off")], |world| {
        let (me, n) = (world.rank(), world.size());
        let tag = Tag::<u64>::new(1);
        // Enough messages to get a ring.
        for round in 0..24 {
            for away in 1..n.min(10) {
                let (to, from) = ((me + away) % n, (me + n - away) % n);
                let mut got = [0];
                world.sendrecv(to, tag, &[round], from, tag, &mut got).unwrap();
                assert_eq!(got, [round]);
            }
        }
        meet(&world).unwrap();
        let bytes = verbs(&world).registered_bytes();
        assert_eq!(bytes, registered_for_messages(n), "{n} ranks");
        if me == 0 {
            println!("\n| {n} | {bytes} |");
        }
        meet(&world).unwrap();
    });
}

#[test]
fn message_registrations_match_the_formula() {
    if skipped("counting memory of messages") {
        return;
    }
    let copy = std::env::var_os(ROLE).is_some();
    if !copy {
        println!("\n| ranks | registered bytes |\n|---|---|");
    }
    // More of them take minutes where a guest is emulated.
    let many = std::env::var("TEST_MANY").ok().map(|many| many.parse().expect("TEST_MANY: how many ranks"));
    for n in [2, 4, 8, 16].into_iter().chain(many) {
        registered(n, "message_registrations_match_the_formula");
        if copy {
            return;
        }
    }
    println!("| 1024, by the formula | {} |", registered_for_messages(1024));
}
