//! Messages as datagrams, on fake adapters: with several rails packets and pieces use all of them, and go on without one.

use crate::adapter::*;
use std::path::Path;
use std::time::{Duration, Instant};
use transom::World;
use transom::messages::Tag;

const TAG: Tag<u8> = Tag::new(1);

/// Two adapters, in the same order at all ranks.
const TWO: [(&str, &str); 3] =
    [("FAKE_DEVICES", "2"), ("TRANSOM_VERBS_DEVICE", "fake0,fake1"), ("TRANSOM_INTRANODE", "off")];

/// The events, as libibverbs numbers them. The fake adapters do not report a secret one.
const PORT_ACTIVE: u32 = 9;
const PORT_ERR: u32 = 10;
const SECRET: u32 = 1 << 16;

/// Number of message datagrams that each of the two adapters of this rank has sent.
fn sent() -> [u64; 2] {
    let folder = std::env::var("FAKE_ADAPTER").unwrap();
    let counts = std::fs::read(Path::new(&folder).join(format!("datagrams.{}", std::process::id()))).unwrap();
    [0, 8].map(|at| u64::from_ne_bytes(counts[at..at + 8].try_into().unwrap()))
}

/// Number of datagrams of each adapter while `act` runs.
fn sent_during(act: impl FnOnce()) -> [u64; 2] {
    let before = sent();
    act();
    let after = sent();
    [after[0] - before[0], after[1] - before[1]]
}

/// Both ranks send and receive messages of these lengths.
fn exchange(world: &World, lengths: &[usize], times: usize) {
    let (me, other) = (world.rank(), 1 - world.rank());
    let bytes = |rank: usize, time: usize, len: usize| -> Vec<u8> {
        (0..len).map(|at| (at / 4096 * 31 + at * 7 + time * 13 + rank) as u8).collect()
    };
    for time in 0..times {
        for &len in lengths {
            let mut came = vec![0; len];
            world.sendrecv(other, TAG, &bytes(me, time, len), other, TAG, &mut came).unwrap();
            assert!(came == bytes(other, time, len), "{len} bytes, time {time}");
        }
    }
}

/// A rendezvous would take three times as long.
#[test]
fn message_of_several_datagrams_is_sent_eagerly() {
    let datagrams = [("TRANSOM_MESSAGES", "ud"), ("TRANSOM_INTRANODE", "off")];
    on_fake(None, 2, "message_of_several_datagrams_is_sent_eagerly", &datagrams, |world| {
        // The first messages bring the credit for later ones.
        exchange(&world, &[8000], 20);
        let counts = || world.counters().map(|count| [count.eager, count.rendezvous]).unwrap();
        let before = counts();
        exchange(&world, &[8000], 10);
        let after = counts();
        assert_eq!([after[0] - before[0], after[1] - before[1]], [10, 0]);
    });
}

#[test]
fn short_messages_use_the_rails_of_their_spread() {
    let texts = ["ud", "ud,spread=round_robin", "ud,spread=binding", "paths=both,connections=0,spread=round_robin"];
    // A copy was started for one of the texts.
    let texts = if std::env::var_os(ROLE).is_some() { &texts[..1] } else { &texts };
    for text in texts {
        let variables = [&TWO[..], &[("TRANSOM_MESSAGES", text)]].concat();
        on_fake(None, 2, "short_messages_use_the_rails_of_their_spread", &variables, |world| {
            let text = std::env::var("TRANSOM_MESSAGES").unwrap();
            let sent = sent_during(|| exchange(&world, &[1, 100, 3000], 100));
            // Resent packets use the other rail.
            let is_little = |rail: usize| sent[rail] < sent[1 - rail] / 2;
            let is_right = match text.split('=').next_back().unwrap() {
                "round_robin" => !is_little(0) && !is_little(1),
                "binding" => is_little(1 - world.rank()),
                _ => is_little(1),
            };
            assert!(is_right && sent[0] + sent[1] >= 300, "rank {}, {text}: {sent:?}", world.rank());
            meet(&world).unwrap();
        });
    }
}

#[test]
fn long_messages_are_striped_over_rails_of_datagrams() {
    let variables = [&TWO[..], &[("TRANSOM_MESSAGES", "ud,stripe=even")]].concat();
    on_fake(None, 2, "long_messages_are_striped_over_rails_of_datagrams", &variables, |world| {
        const LENGTHS: [usize; 3] = [400_000, 1 << 20, 3_000_001];
        let sent = sent_during(|| exchange(&world, &LENGTHS, 3));
        let all: u64 = LENGTHS.iter().map(|len| 3 * *len as u64).sum();
        let (moved, others) = moved(&world);
        assert_eq!(moved, all);
        assert!((all * 49 / 100..=all * 51 / 100).contains(&others), "the second rail moved {others} of {all} bytes");
        let counters = world.counters().unwrap();
        assert_eq!((counters.copied_bytes, counters.read_bytes), (0, 0));
        // Pieces have at most 4 KiB.
        assert!(sent.iter().all(|sent| *sent >= all / 4096 / 3), "{sent:?} datagrams for {all} bytes");
        assert_eq!(verbs(&world).queue_pairs().to_others, 0);
        meet(&world).unwrap();
    });
}

/// Rank 0 resolves no address on the second rail, where the pieces that rank 1 requests are lost.
#[test]
fn messages_go_on_without_addresses_on_a_rail() {
    let variables = [
        &TWO[..],
        &[
            ("TRANSOM_MESSAGES", "ud,stripe=even,spread=round_robin"),
            ("FAKE_LACKS", "none,routes"),
            ("FAKE_LACKS_1", "none"),
        ],
    ];
    on_fake(None, 2, "messages_go_on_without_addresses_on_a_rail", &variables.concat(), |world| {
        let sent = sent_during(|| exchange(&world, &[8, 3000, 400_000, 1 << 20], 3));
        assert_eq!(sent[1] == 0, world.rank() == 0, "{sent:?} datagrams");
        meet(&world).unwrap();
    });
}

/// Each rail has 320 slots of 128 bytes for connection requests. It has 1,024 (`ud_buffers`) receive buffers of 4,096 bytes with
/// the GRH, in cache lines, and 4 x 64 slots of 4,096 bytes to send from.
#[test]
fn each_rail_of_datagrams_registers_its_buffers() {
    const EACH: usize = 320 * 128 + 1024 * 4160 + 256 * 4096;
    let rows = [
        ("fake0", "ud", EACH),
        ("fake0,fake1", "ud", 2 * EACH),
        ("fake0,fake1,fake2", "paths=both", EACH + 81_920),
        ("fake0", "ud,ud_buffers=64", 320 * 128 + 64 * 4160 + 256 * 4096),
        ("fake0", "ud,ud_buffers=2048", EACH + 1024 * 4160),
    ];
    // A copy was started for one of the rows.
    let rows = if std::env::var_os(ROLE).is_some() { &rows[..1] } else { &rows };
    for (devices, paths, bytes) in rows {
        let bytes = bytes.to_string();
        let variables = [
            ("FAKE_DEVICES", "3"),
            ("TRANSOM_VERBS_DEVICE", devices),
            ("TRANSOM_MESSAGES", paths),
            ("TEST_BYTES", &*bytes),
        ];
        on_fake(None, 2, "each_rail_of_datagrams_registers_its_buffers", &variables, |world| {
            let registered = verbs(&world).registered_bytes();
            assert_eq!(registered.to_string(), std::env::var("TEST_BYTES").unwrap());
            meet(&world).unwrap();
        });
    }
}

/// The port of a rail of rank 0 goes down under load, with and without an event, and comes back.
#[test]
fn messages_go_on_without_a_failed_rail_of_datagrams() {
    const LENGTHS: [usize; 4] = [8, 3000, 20_000, 600_000];
    let rows = [("0", "reported"), ("1", "reported"), ("0", "secret"), ("1", "secret")];
    // A copy was started for one of the rows.
    let rows = if std::env::var_os(ROLE).is_some() { &rows[..1] } else { &rows };
    for (rail, kind) in rows {
        let text = ("TRANSOM_MESSAGES", "ud,stripe=even,spread=round_robin");
        let variables = [&TWO[..], &[text, ("TEST_RAIL", rail), ("TEST_KIND", kind)]].concat();
        on_fake(None, 2, "messages_go_on_without_a_failed_rail_of_datagrams", &variables, |world| {
            let rail: usize = std::env::var("TEST_RAIL").unwrap().parse().unwrap();
            let secret = if std::env::var("TEST_KIND").unwrap() == "secret" { SECRET } else { 0 };
            let change = |event: u32| {
                meet(&world).unwrap();
                if world.rank() == 0 {
                    happen(event | secret, 0, rail as u32);
                }
            };
            // Both ranks go on until both have seen what they wait for.
            let exchange_until = |is_enough: &dyn Fn([u64; 2]) -> bool| {
                let mut all = [1];
                while all[0] > 0 {
                    let sent = sent_during(|| exchange(&world, &LENGTHS, 1));
                    all[0] = u64::from(!is_enough(sent));
                    world.all_reduce(&mut all, transom::Op::Sum).unwrap();
                }
            };
            exchange_until(&|sent| sent.iter().all(|sent| *sent > 50));
            change(PORT_ERR);
            // A rail that is only silent is tried now and then.
            exchange_until(&|sent| sent[rail] < 20);
            change(PORT_ACTIVE);
            exchange_until(&|sent| sent.iter().all(|sent| *sent > 50));
            meet(&world).unwrap();
        });
    }
}

/// Creates or removes the file that makes an adapter of all ranks accept datagrams and never complete them.
fn mute(adapter: usize, is_mute: bool) {
    let file = Path::new(&std::env::var("FAKE_ADAPTER").unwrap()).join(format!("mute.{adapter}"));
    match is_mute {
        true => std::fs::write(file, "").unwrap(),
        false => std::fs::remove_file(file).unwrap(),
    }
}

#[test]
fn messages_go_on_without_a_rail_that_completes_no_datagram() {
    const LENGTHS: [usize; 3] = [8, 3000, 600_000];
    let variables = [&TWO[..], &[("TRANSOM_MESSAGES", "ud,stripe=even,spread=round_robin")]].concat();
    on_fake(None, 2, "messages_go_on_without_a_rail_that_completes_no_datagram", &variables, |world| {
        exchange(&world, &LENGTHS, 3);
        meet(&world).unwrap();
        if world.rank() == 0 {
            mute(0, true);
        }
        meet(&world).unwrap();
        let sent = sent_during(|| exchange(&world, &LENGTHS, 3));
        assert!(sent[1] > 400, "{sent:?}");
        meet(&world).unwrap();
    });
}

/// Datagrams that one adapter accepted during a second are never completed. Their queue pairs are reset.
#[test]
fn datagrams_that_are_never_completed_are_sent_again() {
    let variables = [("TRANSOM_MESSAGES", "ud"), ("TRANSOM_INTRANODE", "off")];
    on_fake(None, 2, "datagrams_that_are_never_completed_are_sent_again", &variables, |world| {
        exchange(&world, &[8, 600_000], 3);
        meet(&world).unwrap();
        let unmuted = (world.rank() == 0).then(|| {
            mute(0, true);
            std::thread::spawn(|| {
                std::thread::sleep(Duration::from_secs(1));
                mute(0, false);
            })
        });
        let begun = Instant::now();
        exchange(&world, &[8, 600_000], 3);
        assert!(begun.elapsed() > Duration::from_secs(4), "no queue pair was reset in {:?}", begun.elapsed());
        unmuted.into_iter().for_each(|unmuted| unmuted.join().unwrap());
        meet(&world).unwrap();
    });
}
