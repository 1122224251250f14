//! Settings of TRANSOM_MESSAGES take effect, and invalid values are errors.

use crate::ranks;
use ranks::{on_with, share_memory};
use transom::World;
use transom::messages::Tag;
use transom::pipe::{self, Step};

const DATA: Tag<u8> = Tag::new(1);

/// Counters of these ranks after `times` exchanges of `bytes` bytes.
fn counted(world: &World, bytes: usize, times: usize) -> impl Fn(&str) -> u64 {
    let (me, other) = (world.rank(), 1 - world.rank());
    for _ in 0..times {
        if me == 0 {
            world.send(other, DATA, &vec![7; bytes]).unwrap();
        }
        assert_eq!(world.recv(other, DATA).unwrap().0, vec![7; bytes]);
        if me == 1 {
            world.send(other, DATA, &vec![7; bytes]).unwrap();
        }
    }
    let counts: Vec<_> = world.counters().unwrap().rows().collect();
    move |name| counts.iter().find(|(row, _)| *row == name).unwrap().1
}

#[test]
fn eager_zero_sends_short_messages_by_rendezvous() {
    on_with(&[("TRANSOM_MESSAGES", "eager=0")], &[2], "eager_zero_sends_short_messages_by_rendezvous", |world| {
        let count = counted(&world, 8, 10);
        assert_eq!((count("rendezvous"), count("eager")), (10, 0));
    });
}

#[test]
fn message_takes_first_path_its_rules_allow() {
    let name = "message_takes_first_path_its_rules_allow";
    for (asked, expected) in ranks::each(&[
        ("rules=MSG_SIZE <= 1000, RC-FP, MSG_SIZE <= 1000, RC-SR, TRUE, Copy-Based", [1, 2, 200_000]),
        // In several eager packets.
        ("eager=300000", [3, 0, 0]),
    ]) {
        let expected = format!("{expected:?}");
        on_with(&[("TRANSOM_MESSAGES", asked), ("TEST_SAYS", &expected)], &[2], name, |world| {
            if world.rank() == 0 {
                world.send(1, DATA, &[3; 8]).unwrap();
                // The answer brings the credit for later eager messages.
                let _ = world.recv(1, DATA).unwrap();
                (0..2).for_each(|_| world.send(1, DATA, &vec![3; 100_000]).unwrap());
                let _ = world.recv(1, DATA).unwrap();
                let counters = world.counters().unwrap();
                let counts = [counters.eager, counters.rendezvous, counters.copied_bytes];
                assert_eq!(format!("{counts:?}"), std::env::var("TEST_SAYS").unwrap());
            } else {
                for bytes in [8, 100_000, 100_000] {
                    assert_eq!(world.recv(0, DATA).unwrap().0, vec![3; bytes]);
                    if bytes == 8 {
                        world.send(0, DATA, &[1]).unwrap();
                    }
                }
                world.send(0, DATA, &[1]).unwrap();
            }
        });
    }
}

/// Packets of such a message cost two more hand-overs between the ranks than one read does.
#[test]
fn message_just_above_eager_is_read_in_place() {
    let name = "message_just_above_eager_is_read_in_place";
    on_with(&[("TRANSOM_MESSAGES", "read_waiting=yes")], &[2], name, |world| {
        let count = counted(&world, 16_400, 10);
        if share_memory(&world) {
            assert_eq!(["rendezvous", "read_bytes", "copied_bytes"].map(count), [10, 164_000, 0]);
        }
    });
}

#[test]
fn rings_zero_opens_no_ring() {
    on_with(&[("TRANSOM_MESSAGES", "rings=0")], &[2], "rings_zero_opens_no_ring", |world| {
        let count = counted(&world, 8, 100);
        assert_eq!((count("joins"), count("ring_packets")), (0, 0));
        assert!(count("queue_packets") >= 100);
    });
}

#[test]
fn ring_after_one_opens_one_ring() {
    let name = "ring_after_one_opens_one_ring";
    on_with(&[("TRANSOM_MESSAGES", "ring_after=1")], &[2], name, |world| {
        let count = counted(&world, 8, 10);
        assert_eq!(count("joins"), 1);
        assert!(count("ring_packets") > 0);
    });
}

#[test]
fn restarted_receive_opens_a_ring_at_once() {
    let name = "restarted_receive_opens_a_ring_at_once";
    on_with(&[("TRANSOM_MESSAGES", "ring_after=1000")], &[2], name, |world| {
        let other = 1 - world.rank();
        let joins = || world.counters().unwrap().joins;
        if world.rank() == 0 {
            let mut coming = world.recv_init(other, DATA, vec![0; 8]).unwrap();
            for _ in 0..3 {
                let incoming = coming.start().unwrap();
                world.send(other, DATA, &[7; 8]).unwrap();
                incoming.wait().unwrap();
            }
            assert_eq!(joins(), 1);
        } else {
            for _ in 0..3 {
                assert_eq!(world.recv(other, DATA).unwrap().0, [7; 8]);
                world.send(other, DATA, &[7; 8]).unwrap();
            }
            assert_eq!(joins(), 0);
        }
    });
}

#[test]
fn unsupported_ring_marker_is_refused() {
    let name = "unsupported_ring_marker_is_refused";
    for asked in ranks::each(&["last", "second", "immediate"]) {
        let variables = [("TRANSOM_MESSAGES", &*format!("ring_after=1,marker={asked}")), ("TEST_MARKER", *asked)];
        on_with(&variables, &[2], name, |world| {
            // Devices keep different promises.
            if !share_memory(&world) {
                return;
            }
            if std::env::var("TEST_MARKER").unwrap() == "immediate" {
                let error = world.send(1 - world.rank(), DATA, &[1]).unwrap_err().to_string();
                return assert!(error.contains("marker=immediate is not supported by any rail"), "{error}");
            }
            assert!(counted(&world, 8, 1000)("ring_packets") > 0);
        });
    }
}

#[test]
fn offer_no_copies_long_messages_in_packets() {
    let name = "offer_no_copies_long_messages_in_packets";
    on_with(&[("TRANSOM_MESSAGES", "offer=no")], &[2], name, |world| {
        let count = counted(&world, 100_000, 3);
        if share_memory(&world) {
            assert_eq!((count("copied_bytes"), count("read_bytes")), (300_000, 0));
        }
    });
}

/// By default a sender has at most as many packets in flight as its ring has slots, and waits for a free one.
/// Otherwise some packets take a slower path.
#[test]
fn flood_falls_back_only_from_a_small_ring() {
    for (asked, falls_back) in ranks::each(&[("", false), ("ring_slots=8", true)]) {
        let falls = if *falls_back { "yes" } else { "no" };
        let variables = [("TRANSOM_MESSAGES", *asked), ("TEST_FALLS", falls)];
        on_with(&variables, &[2], "flood_falls_back_only_from_a_small_ring", |world| {
            if world.rank() == 0 {
                (0..3000).for_each(|_| world.send(1, DATA, &[1]).unwrap());
                let counters = world.counters().unwrap();
                assert!(counters.ring_packets > 100, "{counters:?}");
                let expected = std::env::var("TEST_FALLS").unwrap() == "yes";
                // Between hosts the adapter executes both ways.
                if share_memory(&world) {
                    assert_eq!(counters.fallbacks > 0, expected, "{}", counters.fallbacks);
                }
            } else {
                (0..3000).for_each(|_| assert_eq!(world.recv(0, DATA).unwrap().0, [1]));
            }
        });
    }
}

#[test]
fn pipe_settings_come_from_variable_or_caller() {
    let asked = "pipe=piggyback,pipe_chunk=64,pipe_chunks=4,pipe_zero_copy_from=5";
    on_with(&[("TRANSOM_MESSAGES", asked)], &[2], "pipe_settings_come_from_variable_or_caller", |world| {
        let other = 1 - world.rank();
        let expected = pipe::Config { step: Step::Piggyback, chunk: 64, chunks: 4, zero_copy_from: 5 };
        assert_eq!(world.pipe(other).unwrap().config(), expected);
        // A configuration of the program is not changed.
        let own = pipe::Config { step: Step::Basic, ..pipe::Config::default() };
        assert_eq!(world.pipe_with(other, own).unwrap().config(), own);
    });
}

/// More messages than one progress call takes out of a ring.
#[test]
fn backlog_of_departed_sender_is_received() {
    let name = "backlog_of_departed_sender_is_received";
    on_with(&[("TRANSOM_MESSAGES", "ring_slots=1024,window=1024")], &[2], name, |world| {
        let other = Tag::<u8>::new(2);
        // Until there are rings.
        for _ in 0..20 {
            world.send(1 - world.rank(), other, &[1]).unwrap();
            assert_eq!(world.recv(1 - world.rank(), other).unwrap().0, [1]);
        }
        if world.rank() == 1 {
            return (0..500_u32).for_each(|i| world.send(0, DATA, &i.to_ne_bytes()).unwrap());
        }
        std::thread::sleep(std::time::Duration::from_millis(500));
        // The progress calls until the rank sees that the other has left.
        let mut never = world.irecv(1, other);
        for _ in 0..20 {
            never.test();
        }
        for i in 0..500_u32 {
            assert_eq!(
                world.recv(1, DATA).unwrap_or_else(|error| panic!("after {i} of 500: {error}")).0,
                i.to_ne_bytes()
            );
        }
    });
}
