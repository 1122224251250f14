//! Ports that get another address during a job, on fake adapters: frames to a former LID are lost.

use crate::adapter::*;
use std::time::Instant;
use transom::{Window, World};

/// Events, as libibverbs numbers them.
const LID_CHANGE: u32 = 11;
const GID_CHANGE: u32 = 18;
/// The number with which an event changes no address, and makes queries fail.
const SILENT: u32 = 65535;

/// A word of `rank` becomes `value`.
fn put(window: &mut Window<u64>, rank: usize, value: u64) {
    let epoch = window.lock_exclusive(rank).unwrap();
    epoch.put(0, &[value]).unwrap();
    epoch.unlock().unwrap();
}

/// Collective: rank 0 connects to rank 1 by a put of 5, and then the ports of rank 1 get another LID.
fn connect_then_move(world: &World, window: &mut Window<u64>) {
    meet(world).unwrap();
    if world.rank() == 0 {
        put(window, 1, 5);
    }
    meet(world).unwrap();
    if world.rank() == 1 {
        happen(LID_CHANGE, 7, ALL_ADAPTERS);
    }
    meet(world).unwrap();
}

/// Rank 0 is connected to rank 1, whose port moves. Rank 2 first talks to rank 1 after that.
#[test]
fn moved_port_is_announced_and_reached() {
    let off = [("TRANSOM_INTRANODE", "off")];
    on_fake(None, 3, "moved_port_is_announced_and_reached", &off, |world| {
        let me = world.rank();
        let mut window = world.allocate(1).unwrap();
        connect_then_move(&world, &mut window);
        if me == 0 {
            // The connection breaks, and is restored at the new address.
            put(&mut window, 1, 6);
        }
        meet(&world).unwrap();
        assert!(me != 1 || window.local().get(0).unwrap() == 6);
        // Rank 1 has created its handle of rank 0 anew, and rank 0 one with the new address.
        let handles = std::fs::read_to_string(format!("{}/handles", std::env::var("FAKE_ADAPTER").unwrap())).unwrap();
        let mut lids: Vec<_> = handles.lines().collect();
        lids.sort_unstable();
        assert_eq!(lids, ["1", "1", "1", "7"]);
        meet(&world).unwrap();
        if me == 1 {
            put(&mut window, 2, 7);
        }
        meet(&world).unwrap();
        assert!(me != 2 || window.local().get(0).unwrap() == 7);
        if me == 2 {
            put(&mut window, 1, 8);
        }
        meet(&world).unwrap();
        assert!(me != 1 || window.local().get(0).unwrap() == 8);
        meet(&world).unwrap();
    });
}

#[test]
fn changed_gid_is_announced_and_reached() {
    let routed = [("TRANSOM_INTRANODE", "off"), ("TRANSOM_VERBS_GID", "0")];
    on_fake(None, 2, "changed_gid_is_announced_and_reached", &routed, |world| {
        let me = world.rank();
        let mut window: Window<u64> = world.allocate(1).unwrap();
        meet(&world).unwrap();
        for (gid, value) in [(7, 5), (9, 6)] {
            if me == 0 {
                put(&mut window, 1, value - 1);
            }
            meet(&world).unwrap();
            if me == 1 {
                happen(GID_CHANGE, gid, ALL_ADAPTERS);
            }
            meet(&world).unwrap();
            if me == 0 {
                put(&mut window, 1, value);
            }
            meet(&world).unwrap();
            assert!(me != 1 || window.local().get(0).unwrap() == value);
        }
        meet(&world).unwrap();
    });
}

/// Rank 0 is connected to rank 1 on the first rail when both ports of rank 1 move, and connects on the second afterwards.
#[test]
fn moved_port_is_announced_on_all_rails() {
    let rails = [("TRANSOM_INTRANODE", "off"), ("FAKE_DEVICES", "2"), ("TRANSOM_MESSAGES", "stripe=even")];
    on_fake(None, 2, "moved_port_is_announced_on_all_rails", &rails, |world| {
        let me = world.rank();
        let mut window = world.allocate(1 << 17).unwrap();
        connect_then_move(&world, &mut window);
        if me == 0 {
            let large = vec![6; 1 << 17];
            let began = Instant::now();
            while verbs(&world).divided_bytes()[1] == 0 {
                assert!(began.elapsed() < DEADLINE / 2, "the second rail does not connect");
                let epoch = window.lock_exclusive(1).unwrap();
                epoch.put(0, &large).unwrap();
                epoch.unlock().unwrap();
            }
        }
        meet(&world).unwrap();
        assert!(me != 1 || window.local().get((1 << 17) - 1).unwrap() == 6);
        meet(&world).unwrap();
    });
}

/// An event says that the address may have changed, and the device does not tell the present one.
#[test]
fn address_stays_if_the_port_cannot_be_queried() {
    let off = [("TRANSOM_INTRANODE", "off")];
    on_fake(None, 2, "address_stays_if_the_port_cannot_be_queried", &off, |world| {
        let me = world.rank();
        let mut window: Window<u64> = world.allocate(1).unwrap();
        meet(&world).unwrap();
        if me == 1 {
            happen(LID_CHANGE, SILENT, ALL_ADAPTERS);
        }
        meet(&world).unwrap();
        put(&mut window, 1 - me, 3);
        meet(&world).unwrap();
        assert_eq!(window.local().get(0).unwrap(), 3);
        let handles = std::fs::read_to_string(format!("{}/handles", std::env::var("FAKE_ADAPTER").unwrap())).unwrap();
        assert!(handles.lines().all(|lid| lid == "1"), "{handles}");
        meet(&world).unwrap();
    });
}
