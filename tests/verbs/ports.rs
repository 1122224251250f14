//! Rails of ranks: those that TRANSOM_VERBS_DEVICE names, by device, port and address; otherwise ports in the networks
//! that all ranks share. Two addresses of one port are two paths.
//!
//! These tests need the devices of the guests that `tests/soft-roce/verbs` starts. They are skipped elsewhere, with a
//! message.

use crate::adapter;
use adapter::*;
use transom::messages::Tag;
use transom::{Window, World};

const TAG: Tag<u8> = Tag::new(1);
/// The case of a test that a process was started for.
const CASE: &str = "TEST_CASE";

/// Returns whether this is no guest of `tests/soft-roce/run` with `devices` devices, whose expected values are known
/// here. Prints that.
fn is_no_guest(devices: usize) -> bool {
    let listed = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let mut names: Vec<_> = listed.map(|device| device.file_name()).collect();
    names.sort();
    // The guest is recognised by its second IPv4 address.
    let gids = std::fs::read_to_string("/sys/class/infiniband/rxe0/ports/1/gids/2").unwrap_or_default();
    let guest = names.len() >= devices
        && names.iter().enumerate().all(|(at, name)| name.to_str() == Some(&format!("rxe{at}")))
        && gids.contains("ffff:0a4e");
    if !guest {
        assert!(
            std::env::var_os("TEST_DEVICE").is_none(),
            "guest should have {devices} device(s), found {names:?}, {gids:?}"
        );
        eprintln!("skipped: needs a guest of tests/soft-roce/run with {devices} device(s)");
    }
    !guest
}

/// Long messages between two ranks. Returns the number of connections afterwards, and whether the further rails moved
/// a part.
fn exchange(world: &World) -> (usize, bool) {
    let (me, other) = (world.rank(), 1 - world.rank());
    let bytes = |rank: usize| -> Vec<u8> { (0..1 << 20).map(|at| (at / 4096 * 31 + at * 7 + rank) as u8).collect() };
    // Fewer rails are used until all are connected.
    for _ in 0..20 {
        let mut came = vec![0; 1 << 20];
        world.sendrecv(other, TAG, &bytes(me), other, TAG, &mut came).unwrap();
        assert!(came == bytes(other), "received message differs");
    }
    meet(world).unwrap();
    (verbs(world).queue_pairs().to_others, world.counters().unwrap().other_rails_bytes > 0)
}

/// Each rank has its given devices as its rails.
fn with(name: &str, rails: [Option<&str>; 2], body: impl Fn(Result<World, transom::StartError>)) {
    let case = format!("{rails:?}");
    if std::env::var(CASE).is_ok_and(|started| started != case) {
        return;
    }
    let variables =
        [("TRANSOM_FABRIC", "verbs"), ("TRANSOM_INTRANODE", "off"), ("TRANSOM_MESSAGES", "stripe=even"), (CASE, &case)];
    let outcome = run(2, name, &variables, || {
        let me = std::env::var("TRANSOM_RANK").unwrap().parse::<usize>().unwrap();
        if let Some(named) = rails[me] {
            // SAFETY: the process was started for this one test; no other thread reads variables.
            unsafe { std::env::set_var("TRANSOM_VERBS_DEVICE", named) };
        }
        body(transom::init());
    });
    if let Some(outcome) = outcome {
        assert!(outcome.success(), "{outcome}\n{}", outputs(&outcome));
    }
}

#[test]
fn two_addresses_of_a_port_are_two_rails() {
    let name = "two_addresses_of_a_port_are_two_rails";
    if is_no_guest(1) {
        return;
    }
    with(name, [Some("rxe0:1:1,rxe0:1:2"); 2], |world| {
        let world = world.unwrap();
        let rails: Vec<_> = verbs(&world).rails().into_iter().map(|rail| (rail.name, rail.is_roce)).collect();
        assert_eq!(rails, ["rxe0:1:1", "rxe0:1:2"].map(|rail| (rail.to_owned(), true)));
        assert_eq!(exchange(&world), (2, true));
    });
    // The same device twice, under two spellings.
    with(name, [Some("rxe0:1:1,rxe0"); 2], |world| {
        let told = world.err().expect("two rails of one address should be refused").to_string();
        assert!(told.contains("TRANSOM_VERBS_DEVICE: rxe0:1:1 is listed twice"), "{told}");
    });
}

#[test]
fn missing_port_or_gid_is_refused() {
    let name = "missing_port_or_gid_is_refused";
    if is_no_guest(1) {
        return;
    }
    for (named, wanted) in
        [("rxe0:7", "rxe0 has 1 port(s)"), ("rxe0:1:99", "port 1 of rxe0 has no such GID index; it has 0, 1")]
    {
        with(name, [Some(named); 2], |world| {
            let told = world.err().expect("a missing port or GID should be refused").to_string();
            assert!(told.contains(wanted), "{told}");
        });
    }
}

#[test]
fn every_equal_device_is_a_rail() {
    let name = "every_equal_device_is_a_rail";
    if is_no_guest(2) {
        return;
    }
    with(name, [None; 2], |world| assert_eq!(exchange(&world.unwrap()), (2, true)));
}

#[test]
fn rail_count_is_the_smallest_of_all_ranks() {
    let name = "rail_count_is_the_smallest_of_all_ranks";
    if is_no_guest(2) {
        return;
    }
    with(name, [None, Some("rxe0")], |world| assert_eq!(exchange(&world.unwrap()), (1, false)));
    // Named rails exist at both ranks, or both get an error.
    with(name, [Some("rxe0,rxe1"), Some("rxe0")], |world| {
        let told = world.err().expect("different numbers of rails should be refused").to_string();
        assert!(
            told.contains("rank 0 has 2 rails, and rank 1 has 1: name the same number of devices at every rank"),
            "{told}"
        );
    });
}

/// The second rails of two hosts are in different networks: all packets use the first. Rails are set up as
/// `tests/soft-roce/verbs` does.
#[test]
fn unreachable_second_rail_is_not_used() {
    if std::env::var_os("TEST_HOSTS_ARE_SEVERAL").is_none() {
        return eprintln!("skipped: needs two hosts with two rails, and `transom run`");
    }
    with("", [Some("rxe0,rxe1"), Some("rxe0,rxe0:1:2")], |world| {
        let world = world.unwrap();
        let (me, other) = (world.rank(), 1 - world.rank());
        assert!(!exchange(&world).1, "bytes were sent by the unreachable rail");
        let mut window: Window<u64> = world.allocate(1 << 18).unwrap();
        for round in 0..10 {
            let epoch = window.fence().unwrap();
            epoch.target(other).unwrap().put(0, &vec![round + me as u64; 1 << 18]).unwrap();
            let epoch = window.fence().unwrap();
            let mut mine = vec![0; 1 << 18];
            epoch.local().read_into(0, &mut mine).unwrap();
            assert!(mine.iter().all(|word| *word == round + other as u64), "round {round}");
        }
        assert_eq!(verbs(&world).divided_bytes(), [0, 0]);
        meet(&world).unwrap();
    });
}
