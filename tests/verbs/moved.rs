//! Ports that get another address during a job, on fake adapters: frames to a former LID are lost.

use crate::adapter::*;
use transom::Window;

/// The event, as libibverbs numbers it.
const LID_CHANGE: u32 = 11;

/// A word of `rank` becomes `value`.
fn put(window: &mut Window<u64>, rank: usize, value: u64) {
    let epoch = window.lock_exclusive(rank).unwrap();
    epoch.put(0, &[value]).unwrap();
    epoch.unlock().unwrap();
}

/// Rank 0 is connected to rank 1, whose port moves. Rank 2 first talks to rank 1 after that.
#[test]
fn moved_port_is_announced_and_reached() {
    let off = [("TRANSOM_INTRANODE", "off")];
    on_fake(None, 3, "moved_port_is_announced_and_reached", &off, |world| {
        let me = world.rank();
        let mut window: Window<u64> = world.allocate(1).unwrap();
        meet(&world).unwrap();
        if me == 0 {
            put(&mut window, 1, 5);
        }
        meet(&world).unwrap();
        if me == 1 {
            happen(LID_CHANGE, 7, ALL_ADAPTERS);
        }
        meet(&world).unwrap();
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
