//! The rule table: its text, and the paths that messages take by it.

use transom_channel::delivery::{Delivery, Settings};
use transom_channel::rules::{Facts, Path, Rules};
use transom_channel::sim::{Conditions, Faults, Sim, SimMemory, SimWire};
use transom_channel::wire::{Data, Rail, RailKind};
use transom_channel::{Config, Counters, RecvTarget, Select};

/// The table of the slides, verbatim.
const SLIDES: &str = "\
MSG_SIZE <= 2048, RC-FP,
MSG_SIZE <= 2008, UD-SR,
MSG_SIZE <= 8192, RC-SR,
MSG_SIZE <= 8192, UD-SR,
TRUE,             RC-RDMA,
TRUE,             UD-ZCopy,
TRUE,             Copy-Based
";

fn rules(text: &str) -> Rules {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refused(text: &str) -> String {
    text.parse::<Rules>().expect_err(text).to_string()
}

#[test]
fn published_sample_rules_parse_unchanged() {
    use Path::{Copy, Datagram, DatagramMove, Move, Queue, Ring};
    let rules = rules(SLIDES);
    let long = [Move, DatagramMove, Copy];
    for (size, first) in [
        (0, &[Ring, Datagram, Queue, Datagram][..]),
        (2008, &[Ring, Datagram, Queue, Datagram]),
        (2009, &[Ring, Queue, Datagram]),
        (2048, &[Ring, Queue, Datagram]),
        (2049, &[Queue, Datagram]),
        (8192, &[Queue, Datagram]),
        (8193, &[]),
        (u64::MAX, &[]),
    ] {
        let paths: Vec<Path> = rules.paths(Facts { size, peers: 9, queued: 9 }).collect();
        assert_eq!(paths, [first, &long].concat(), "{size}");
    }
}

#[test]
fn printed_rules_parse_to_the_same_rules() {
    for text in [
        SLIDES,
        "TRUE, Copy-Based",
        "TRUE AND TRUE, Copy-Based,",
        "  # nothing\n\nMSG_SIZE<=1,RC-FP # short\n,TRUE,Copy-Based # the rest",
        "MSG_SIZE < 1 AND PEERS >= 2 AND QUEUED == 3, RC-SR, MSG_SIZE != 4 AND QUEUED > 5, UD-SR, TRUE, Copy-Based",
    ] {
        assert_eq!(rules(&rules(text).to_string()), rules(text), "{text}");
    }
    let all = rules("MSG_SIZE > 10 AND PEERS < 3 AND QUEUED == 2, RC-SR, TRUE, Copy-Based");
    let of = |size, peers, queued| all.paths(Facts { size, peers, queued }).count();
    assert_eq!([of(11, 2, 2), of(10, 2, 2), of(11, 3, 2), of(11, 2, 1)], [2, 1, 1, 1]);
}

#[test]
fn rules_error_names_line_and_column() {
    for (text, error) in [
        ("", "line 1, column 1: found the end, expected MSG_SIZE, PEERS, QUEUED or TRUE"),
        ("SIZE <= 4, RC-FP", "line 1, column 1: found `SIZE`, expected MSG_SIZE, PEERS, QUEUED or TRUE"),
        ("TRUE, RC-FP,\n  MSG_SIZE =< 4, UD-SR", "line 2, column 12: found `=<`, expected <=, <, >=, >, == or !="),
        ("MSG_SIZE <= 4k, RC-FP", "line 1, column 13: found `4k`, expected a number of at most 64 bits"),
        ("MSG_SIZE <= -4, RC-FP", "line 1, column 13: found `-4`, expected a number of at most 64 bits"),
        (
            "MSG_SIZE <= 18446744073709551616, RC-FP",
            "line 1, column 13: found `18446744073709551616`, expected a number of at most 64 bits",
        ),
        ("TRUE RC-FP", "line 1, column 6: found `RC-FP`, expected , or AND"),
        (
            "TRUE, # \u{fc}\nRC_FP",
            "line 2, column 1: found `RC_FP`, expected RC-FP, RC-SR, UD-SR, RC-RDMA, UD-ZCopy or Copy-Based",
        ),
        ("TRUE, RC-FP\nTRUE, Copy-Based", "line 2, column 1: found `TRUE`, expected ,"),
        (
            "MSG_SIZE <= 4,",
            "line 1, column 15: found the end, expected RC-FP, RC-SR, UD-SR, RC-RDMA, UD-ZCopy or Copy-Based",
        ),
        ("\u{fc}\u{fc} ;", "line 1, column 1: found `\u{fc}\u{fc}`, expected MSG_SIZE, PEERS, QUEUED or TRUE"),
    ] {
        assert_eq!(refused(text), error, "{text}");
    }
}

#[test]
fn last_rule_without_a_path_is_refused() {
    for (text, place) in [
        ("TRUE, RC-RDMA", "line 1, column 1"),
        ("TRUE, Copy-Based,\nTRUE, UD-SR,", "line 2, column 1"),
        ("TRUE, RC-FP, MSG_SIZE <= 18446744073709551615, Copy-Based", "line 1, column 14"),
    ] {
        let error =
            format!("{place}: the last rule may have no path: make it `TRUE, Copy-Based`, which always has one");
        assert_eq!(refused(text), error);
    }
}

/// Two ranks with datagrams of 2,048 bytes, and at most `connections` connections each.
fn two(text: &str, connections: usize, rings: usize) -> Sim<Delivery<SimWire>> {
    let rail = Conditions::default().rails[0];
    let datagrams = Rail { kind: RailKind::Datagram, longest: 2048 + 32, read: false, ..rail };
    let faults = Some(Faults { lost: 0, doubled: 0, late: 0, delay: 0..1, flipped: 0 });
    let conditions = Conditions { rails: vec![rail, datagrams], faults, ..Conditions::default() };
    let config =
        Config { connections, connect_after: 2, rings, ring_after: 2, rules: Some(rules(text)), ..Config::default() };
    Sim::over(1, conditions, vec![config; 2], |wire| Delivery::new(wire, Settings::default())).unwrap()
}

/// Sends one message, checks that it arrives whole, and returns the sender's counters for it.
fn send(sim: &mut Sim<Delivery<SimWire>>, length: usize) -> Counters {
    let before = sim.engine(0).counters();
    sim.engine(1).receive(Select { context: 0, source: Some(0), tag: None }, RecvTarget::Allocate);
    sim.engine(0).send(1, 0, 0, SimMemory::pattern(length as u64, length), length, false);
    (0..2).for_each(|rank| sim.wake(rank, 0));
    while sim.step().is_some() {}
    assert!(sim.engine(0).completed().unwrap().result.is_ok());
    assert_eq!(sim.engine(1).completed().unwrap().memory.unwrap().whose(length), Some(length as u64));
    let after = sim.engine(0).counters();
    Counters {
        eager: after.eager - before.eager,
        rendezvous: after.rendezvous - before.rendezvous,
        ring_packets: after.ring_packets - before.ring_packets,
        datagram_packets: after.datagram_packets - before.datagram_packets,
        queue_packets: after.queue_packets - before.queue_packets,
        copied_bytes: after.copied_bytes - before.copied_bytes,
        written_bytes: after.written_bytes - before.written_bytes,
        ..Counters::default()
    }
}

#[test]
fn messages_go_by_the_first_path_that_exists() {
    let eager = Counters { eager: 1, ..Counters::default() };
    let by_datagrams = |packets| Counters { datagram_packets: packets, queue_packets: packets, ..eager };
    // Datagrams alone. A packet has a header of 32 bytes before a whole message, and of 68 before a piece.
    let mut sim = two(SLIDES, 0, 0);
    for (length, packets) in [(8, 1), (2008, 1), (2016, 1), (2017, 2), (3960, 2), (3961, 3), (8192, 5)] {
        assert_eq!(send(&mut sim, length), by_datagrams(packets), "{length}");
    }
    let long = send(&mut sim, 8193);
    assert_eq!((long.rendezvous, long.eager, long.copied_bytes, long.written_bytes), (1, 0, 0, 8193));
    // Connections, after two messages.
    let mut sim = two(SLIDES, 1, 0);
    for _ in 0..3 {
        send(&mut sim, 5000);
    }
    assert_eq!((sim.engine(0).channels().connections, sim.engine(1).channels().connections), (1, 1));
    assert_eq!(send(&mut sim, 2008), by_datagrams(1));
    for length in [2009, 8192] {
        assert_eq!(send(&mut sim, length), Counters { queue_packets: 1, ..eager }, "{length}");
    }
    let long = send(&mut sim, 100_000);
    assert_eq!((long.rendezvous, long.copied_bytes, long.written_bytes), (1, 0, 100_000));
    // Rings.
    let mut sim = two(SLIDES, 1, 1);
    for _ in 0..6 {
        send(&mut sim, 8);
    }
    assert_eq!(sim.engine(1).channels().rings, 1);
    for length in [8, 2008] {
        assert_eq!(send(&mut sim, length), Counters { ring_packets: 1, ..eager }, "{length}");
    }
    // With its header and mark the message is longer than a slot.
    assert_eq!(send(&mut sim, 2009), Counters { queue_packets: 1, ..eager });
    // With another table every message uses rendezvous.
    let mut sim = two("TRUE, Copy-Based", 1, 1);
    for _ in 0..6 {
        send(&mut sim, 8);
    }
    let short = send(&mut sim, 8);
    assert_eq!((short.eager, short.rendezvous, short.copied_bytes), (0, 1, 8));
    // Conditions on variables other than the size.
    let mut sim = two("PEERS >= 2, UD-SR, TRUE, Copy-Based", 0, 0);
    assert_eq!((send(&mut sim, 8).eager, send(&mut sim, 8).rendezvous), (0, 1));
}

/// A full ring does not count as a path: messages take the next rule, and none waits.
#[test]
fn full_ring_falls_to_the_next_rule() {
    let mut sim = two(SLIDES, 1, 1);
    for _ in 0..6 {
        send(&mut sim, 8);
    }
    let before = sim.engine(0).counters();
    for number in 0..40 {
        sim.engine(1).receive(Select { context: 0, source: Some(0), tag: None }, RecvTarget::Allocate);
        sim.engine(0).send(1, 0, 0, SimMemory::pattern(number, 100), 100, false);
    }
    let after = sim.engine(0).counters();
    let went = (after.ring_packets - before.ring_packets, after.datagram_packets - before.datagram_packets);
    assert_eq!(went, (32, 8), "expected one message per ring slot, and the rest by datagrams");
    (0..2).for_each(|rank| sim.wake(rank, 0));
    while sim.step().is_some() {}
    for number in 0..40 {
        assert_eq!(sim.engine(1).completed().unwrap().memory.unwrap().whose(100), Some(number));
    }
}

/// A message that is sent at once counts as one that waits, like a message posted later.
#[test]
fn immediate_send_counts_itself_as_queued() {
    for (queued, goes) in [(0, false), (1, true)] {
        let text = format!("QUEUED == {queued}, RC-SR, TRUE, Copy-Based");
        let config = Config { rules: Some(rules(&text)), ..Config::default() };
        let mut sim = Sim::new(1, 2, Conditions::default(), &config).unwrap();
        sim.engine(0).send(1, 0, 0, SimMemory::zero(8), 8, false);
        sim.wake(0, 0);
        while sim.step().is_some() {}
        let counters = sim.engine(0).counters();
        assert_eq!((counters.eager, counters.rendezvous), if goes { (1, 0) } else { (0, 1) }, "{text}");
        assert_eq!(sim.engine(0).try_send(1, 0, 0, Data::None), goes, "{text}");
    }
}
