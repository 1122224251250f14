//! Peers that RDMA does not reach, on a fake adapter.

use crate::adapter::*;
use std::error::Error;
use std::time::{Duration, Instant};
use transom::Window;
use transom::messages::Tag;

/// An error with its sources.
fn whole(error: &(dyn Error + 'static)) -> String {
    error.source().map_or(error.to_string(), |source| format!("{error}: {}", whole(source)))
}

/// The processes of both hosts run, and no datagram passes: a firewall, a VLAN or a partition lies between them.
#[test]
fn unreached_host_is_named_within_half_a_minute() {
    let deaf = [("FAKE_DEAF", "1")];
    on_fake(Some("a,b"), 2, "unreached_host_is_named_within_half_a_minute", &deaf, |world| {
        let (began, other) = (Instant::now(), 1 - world.rank());
        let error = world.allocate::<u64>(1).map(drop).unwrap_err();
        let (error, took) = (whole(&error), began.elapsed());
        assert!(took < Duration::from_secs(30), "{took:?}");
        // The rank that fails first notifies the other.
        let named = [
            format!("no datagram of rank {other} arrived for 20s, though its process runs"),
            "RDMA device fake0, port 1".into(),
            "This port: LID 1, GID fe80::1; partition key 0xffff".into(),
            format!("The port of rank {other}: LID 1, GID fe80::1"),
        ];
        let notified = error.contains(&format!("rank {other} died"));
        assert!(notified || named.iter().all(|part| error.contains(part)), "{error}");
        // The address of a silent peer is resolved again from time to time.
        let handles = std::fs::read_to_string(format!("{}/handles", std::env::var("FAKE_ADAPTER").unwrap())).unwrap();
        assert!(handles.lines().count() > 2, "{handles}");
    });
}

/// The sender's error names the peer, and its stderr the ports and what to check. The receiver fails once the sender leaves.
#[test]
fn message_to_an_unreached_host_fails() {
    let deaf = [("FAKE_DEAF", "1")];
    let exchange = || {
        let world = transom::init().unwrap();
        let (began, other) = (Instant::now(), 1 - world.rank());
        let (error, expected) = match world.rank() {
            0 => (world.ssend(other, Tag::new(1), &[1_u8]).unwrap_err(), "rank 1 was cut off: neither shared memory"),
            _ => (world.recv(other, Tag::<u8>::new(1)).map(drop).unwrap_err(), "rank 0 dropped its `World`"),
        };
        assert!(began.elapsed() < Duration::from_secs(40), "{error} after {:?}", began.elapsed());
        let error = whole(&error);
        assert!(error.starts_with(expected), "{error}, expected {expected}");
    };
    let Some(outcome) = run_fake(Some("a,b"), 2, "message_to_an_unreached_host_fails", &deaf, exchange) else { return };
    assert!(outcome.success(), "{outcome}\n{}", outputs(&outcome));
    let why = "transom: rank 0 cannot send to rank 1: no datagram of rank 1 arrived for 20s, though its process runs. This port: \
               LID 1, GID fe80::1; partition key 0xffff. The port of rank 1: LID 1, GID fe80::1. Check: are both ports in one \
               subnet and partition, and is the subnet manager running? `TRANSOM_FABRIC=tcp` does without RDMA\n";
    let output = String::from_utf8_lossy(outcome.output(0));
    assert_eq!(output.matches(why).count(), 1, "{output}");
}

/// The first rail passes no message between the hosts.
#[test]
fn first_messages_use_the_rail_that_passes() {
    let deaf = [("FAKE_DEVICES", "2"), ("TRANSOM_VERBS_DEVICE", "fake0,fake1"), ("FAKE_DEAF", "1,0")];
    on_fake(Some("a,b"), 2, "first_messages_use_the_rail_that_passes", &deaf, |world| {
        let (me, other) = (world.rank() as u8, 1 - world.rank());
        // Short ones until there would be a ring, which needs the first rail.
        for bytes in [[8; 100].as_slice(), &[100_000, 2_000_000]].concat() {
            let mut came = vec![0; bytes];
            world.sendrecv(other, Tag::<u8>::new(1), &vec![me; bytes], other, Tag::<u8>::new(1), &mut came).unwrap();
            assert!(came.iter().all(|byte| usize::from(*byte) == other), "{bytes} bytes");
        }
        meet(&world).unwrap();
    });
}

/// The device promises order to itself, where it is asked at the start, but not on the connection to a peer.
#[test]
fn connection_without_promised_order_is_refused() {
    let order = [("FAKE_IN_ORDER", "2"), ("TRANSOM_INTRANODE", "off")];
    on_fake(None, 2, "connection_without_promised_order_is_refused", &order, |world| {
        let mut window: Window<u64> = world.allocate(1).unwrap();
        if world.rank() == 0 {
            let error = whole(&window.lock_exclusive(1).map(drop).unwrap_err());
            assert!(error.contains("set TRANSOM_VERBS_WORD_WRITE=atomic at all ranks"), "{error}");
        }
        meet(&world).unwrap();
    });
}

#[test]
fn ports_of_two_partitions_are_refused_at_the_start() {
    let partitions = [("FAKE_PKEYS", "7fff,8001"), ("FAKE_PKEYS_1", "8002")];
    let join = || match transom::init() {
        Ok(_) => panic!("ranks of two partitions joined"),
        Err(error) => println!("refused: {}", whole(&error)),
    };
    let Some(outcome) = run_fake(None, 2, "ports_of_two_partitions_are_refused_at_the_start", &partitions, join) else {
        return;
    };
    let refused = "the RDMA ports of rank 0 and rank 1 cannot reach each other: rank 0 has fake0, port 1 (InfiniBand, subnet \
                   fe80::/64, partition 0x8001); rank 1 has fake0, port 1 (InfiniBand, subnet fe80::/64, partition 0x8002)";
    let is_told = |rank| String::from_utf8_lossy(outcome.output(rank)).contains(refused);
    assert!(outcome.success() && is_told(0) && is_told(1), "{outcome}\n{}", outputs(&outcome));
}

/// A full member of the partition is preferred to the limited one at index 0.
#[test]
fn limited_partition_member_uses_its_full_membership() {
    let partitions = [("FAKE_PKEYS", "7fff,8001"), ("FAKE_PKEYS_1", "8001")];
    on_fake(None, 2, "limited_partition_member_uses_its_full_membership", &partitions, |world| {
        let mut window: Window<u64> = world.allocate(1).unwrap();
        window.lock_exclusive(1 - world.rank()).unwrap().put(0, &[7]).unwrap();
        window.fence().unwrap();
        assert_eq!(window.local().get(0).unwrap(), 7);
    });
}
