//! Selection of adapters, on fake ones: near ones in turn, rails in one subnet, and none that lacks what a job needs. Use of the
//! selected rails, and their report.

use crate::adapter::*;
use std::path::Path;
use tempfile::TempDir;
use transom::messages::Tag;
use transom::provider::Chosen;
use transom::verbs::probe;
use transom::{Launch, Op, Window, World};

const TAG: Tag<u8> = Tag::new(1);
/// The case of a test that a process was started for.
const CASE: &str = "TEST_CASE";

/// GIDs of ports in two subnets.
const NORTH: &str = "fe800000000000010000000000000001";
const SOUTH: &str = "fe800000000000020000000000000002";

/// A folder that says which cores are near the fake adapters.
fn near_cores(lists: &[&str]) -> TempDir {
    let sysfs = tempfile::tempdir().unwrap();
    for (at, list) in lists.iter().enumerate() {
        let device = sysfs.path().join(format!("fake{at}/device"));
        std::fs::create_dir_all(&device).unwrap();
        std::fs::write(device.join("local_cpulist"), format!("{list}\n")).unwrap();
    }
    sysfs
}

/// This rank's rails, in order: each device, and whether it is near.
fn rails(world: &World) -> Vec<String> {
    let Chosen::Verbs(far) = world.provider().inner() else { panic!("another provider was chosen") };
    let told = far.describe();
    let rails = told.trim_start_matches("verbs ").split("; ");
    rails.map(|rail| rail.split(", ").take(3).filter(|part| *part != "port 1").collect::<Vec<_>>().join(" ")).collect()
}

/// Each rank locks each other's window and adds to a word there.
fn add_to_all(world: &World) {
    let n = world.size();
    let mut window: Window<u64> = world.allocate(1).unwrap();
    for rank in 0..n {
        let epoch = window.lock_exclusive(rank).unwrap();
        let value = epoch.get_one(0).unwrap();
        epoch.put(0, &[value + 1]).unwrap();
        epoch.unlock().unwrap();
    }
    window.fence().unwrap();
    assert_eq!(window.local().get(0).unwrap(), n as u64);
}

#[test]
fn ranks_of_a_host_use_near_adapters_in_turn() {
    let sysfs = near_cores(&["0-1023", "5000", "0-1023", "5000"]);
    let variables = [("FAKE_DEVICES", "4"), ("FAKE_SYSFS", sysfs.path().to_str().unwrap())];
    on_fake(None, 3, "ranks_of_a_host_use_near_adapters_in_turn", &variables, |world| {
        let near = |device| format!("fake{device} near this rank's cores");
        let far = |device| format!("fake{device} far from this rank's cores");
        let expected = match world.rank() {
            1 => [near(2), near(0), far(1), far(3)],
            _ => [near(0), near(2), far(1), far(3)],
        };
        assert_eq!(rails(&world), expected, "rank {}", world.rank());
        add_to_all(&world);
    });
}

/// A port is the first at one host and the second at the other. Frames between the subnets are lost.
#[test]
fn rails_are_paired_by_subnet() {
    let (gids, crossed) = (format!("{NORTH},{SOUTH}"), format!("{SOUTH},{NORTH}"));
    let variables = [
        ("FAKE_DEVICES", "2"),
        ("FAKE_GID", &*gids),
        ("FAKE_GID_1", &*crossed),
        ("FAKE_HOST_1", "1"),
        ("TRANSOM_MESSAGES", "stripe=even"),
    ];
    on_fake(Some("a,b"), 2, "rails_are_paired_by_subnet", &variables, |world| {
        let (me, other) = (world.rank(), 1 - world.rank());
        let names: Vec<_> = verbs(&world).rails().into_iter().map(|rail| (rail.name, rail.is_roce)).collect();
        let [first, second] = [0, 1].map(|rail| (format!("fake{rail}:1"), false));
        assert_eq!(names, if me == 0 { [first, second] } else { [second, first] });
        add_to_all(&world);
        let bytes =
            |rank: usize| -> Vec<u8> { (0..1 << 20).map(|at| (at / 4096 * 31 + at * 7 + rank) as u8).collect() };
        // Fewer rails are used until all are connected.
        for _ in 0..20 {
            let mut came = vec![0; 1 << 20];
            world.sendrecv(other, TAG, &bytes(me), other, TAG, &mut came).unwrap();
            assert!(came == bytes(other), "received message differs");
        }
        assert!(moved(&world).1 > 0, "the second rail moved nothing");
        meet(&world).unwrap();
    });
}

/// Puts are divided among rails that messages have connected, but not with `stripe=binding`.
#[test]
fn stripe_binding_puts_by_the_first_rail() {
    const LEN: usize = 1 << 20;
    let rows = ["stripe=binding", "stripe=even"];
    // A copy was started for one of the rows.
    let rows = if std::env::var_os(ROLE).is_some() { &rows[..1] } else { &rows };
    for stripe in rows {
        let variables = [("FAKE_DEVICES", "2"), ("TRANSOM_INTRANODE", "off"), ("TRANSOM_MESSAGES", stripe)];
        on_fake(None, 2, "stripe_binding_puts_by_the_first_rail", &variables, |world| {
            let (me, other) = (world.rank(), 1 - world.rank());
            let is_bound = std::env::var("TRANSOM_MESSAGES").unwrap() == "stripe=binding";
            let mut is_connected = [0];
            while is_connected == [0] {
                let mut came = vec![0; LEN];
                world.sendrecv(other, TAG, &vec![me as u8; LEN], other, TAG, &mut came).unwrap();
                assert!(came == vec![other as u8; LEN], "received message differs");
                // Messages of rank 0 use the first rail alone if they are bound.
                is_connected = [u8::from(moved(&world).1 > 0 || (is_bound && me == 0))];
                world.all_reduce(&mut is_connected, Op::Min).unwrap();
            }
            let mut window: Window<u8> = world.allocate(LEN).unwrap();
            for round in 0..8 {
                let epoch = window.lock_exclusive(other).unwrap();
                epoch.put(0, &vec![round + me as u8; LEN]).unwrap();
                epoch.unlock().unwrap();
            }
            window.fence().unwrap();
            assert!(window.local().read(0, LEN).unwrap() == vec![7 + other as u8; LEN], "put differs");
            let divided = verbs(&world).divided_bytes();
            assert!(
                divided.len() == 2 && divided.iter().all(|bytes| (*bytes == 0) == is_bound),
                "rank {me}: {divided:?}"
            );
            meet(&world).unwrap();
        });
    }
}

#[test]
fn hosts_of_two_subnets_are_refused_at_the_start() {
    let subnets = [("FAKE_GID", NORTH), ("FAKE_GID_1", SOUTH)];
    let join = || match transom::init() {
        Ok(_) => panic!("ranks of two subnets joined"),
        Err(error) => println!("refused: {error}"),
    };
    let Some(outcome) = run_fake(None, 2, "hosts_of_two_subnets_are_refused_at_the_start", &subnets, join) else {
        return;
    };
    let refused = "the RDMA ports of rank 0 and rank 1 cannot reach each other: rank 0 has fake0, port 1 (InfiniBand, subnet \
                   fe80:0:0:1::/64, partition 0xffff); rank 1 has fake0, port 1 (InfiniBand, subnet fe80:0:0:2::/64";
    let is_told = |rank| String::from_utf8_lossy(outcome.output(rank)).contains(refused);
    assert!(outcome.success() && is_told(0) && is_told(1), "{outcome}\n{}", outputs(&outcome));
}

/// A device that the user names is used wherever it is, and whatever other ranks use.
#[test]
fn named_adapter_is_used_though_it_is_far() {
    let sysfs = near_cores(&["0-1023", "5000"]);
    let sysfs = sysfs.path().to_str().unwrap();
    let variables = [("FAKE_DEVICES", "2"), ("FAKE_SYSFS", sysfs), ("TRANSOM_VERBS_DEVICE", "fake1")];
    on_fake(None, 2, "named_adapter_is_used_though_it_is_far", &variables, |world| {
        assert_eq!(rails(&world), ["fake1 far from this rank's cores"]);
        add_to_all(&world);
    });
}

#[test]
fn adapter_that_cannot_work_is_not_available() {
    let name = "adapter_that_cannot_work_is_not_available";
    let rows = [
        ("FAKE_TRANSPORT", "1", "it uses iWARP, which has no datagrams (UD) and no atomics; TRANSOM_FABRIC=tcp"),
        ("FAKE_TRANSPORT", "4", "its transport is not InfiniBand's (EFA, usNIC)"),
        (
            "FAKE_LACKS",
            "atomics",
            "it has no atomics, which windows need; set TRANSOM_FABRIC=tcp, or name it by TRANSOM_VERBS_DEVICE for messages alone",
        ),
        (
            "FAKE_LACKS",
            "srq",
            "(max_srq 0, max_srq_wr 16384, max_cqe 1048576), which messages need; set TRANSOM_FABRIC=tcp",
        ),
        ("FAKE_LACKS", "ud", "RDMA device fake0: it has no working datagrams (UD)"),
        ("FAKE_LACKS", "rc", "RDMA device fake0: it has no working reliable connections (RC)"),
        ("FAKE_LACKS", "adds", "RDMA device fake0: it has no working atomics (fetch-and-add: remote access error)"),
        // The second one of two can work.
        ("FAKE_TRANSPORT", "1,0", "fake1, port 1"),
        ("FAKE_LACKS", "atomics+srq,", "fake1, port 1"),
    ];
    // A copy was started for one of the rows.
    let rows = if std::env::var_os(ROLE).is_some() { &rows[..1] } else { &rows };
    for (variable, value, expected) in rows {
        let devices = if value.contains(',') { "2" } else { "1" };
        let variables = [(*variable, *value), ("FAKE_DEVICES", devices), (CASE, expected)];
        let body = || {
            let (found, expected) = (probe().map_err(|error| error.to_string()), std::env::var(CASE).unwrap());
            let is_available = expected.starts_with("fake1");
            let told = found.as_ref().unwrap_or_else(|error| error);
            assert!(told.contains(&expected) && found.is_ok() == is_available, "{found:?}, expected {expected}");
        };
        if let Some(outcome) = run_fake(None, 1, name, &variables, body) {
            assert!(outcome.success(), "{outcome}\n{}", outputs(&outcome));
        }
    }
}

#[test]
fn auto_selects_tcp_if_an_adapter_lacks_atomics() {
    let variables = [("TRANSOM_FABRIC", "auto"), ("FAKE_LACKS_1", "atomics")];
    on_fake(Some("a,b"), 2, "auto_selects_tcp_if_an_adapter_lacks_atomics", &variables, |world| {
        assert!(matches!(world.provider().inner(), Chosen::Tcp(_)));
        add_to_all(&world);
    });
}

#[test]
fn auto_selects_verbs_if_all_adapters_work() {
    let variables = [("TRANSOM_FABRIC", "auto")];
    on_fake(Some("a,b"), 2, "auto_selects_verbs_if_all_adapters_work", &variables, |world| {
        assert!(matches!(world.provider().inner(), Chosen::Verbs(_)));
        add_to_all(&world);
    });
}

/// The adapter refuses the right to execute atomics, so it is not requested.
#[test]
fn named_adapter_without_atomics_sends_messages() {
    let variables = [("FAKE_LACKS", "atomics"), ("TRANSOM_VERBS_DEVICE", "fake0"), ("TRANSOM_INTRANODE", "off")];
    on_fake(None, 2, "named_adapter_without_atomics_sends_messages", &variables, |world| {
        let (me, other) = (world.rank(), 1 - world.rank());
        for len in [3, 5_000, 300_000] {
            let mut came = vec![0; len];
            world.sendrecv(other, TAG, &vec![me as u8; len], other, TAG, &mut came).unwrap();
            assert!(came == vec![other as u8; len], "{len} bytes");
        }
        let error = world.allocate::<u64>(1).map(drop).unwrap_err().to_string();
        assert!(error.contains("atomics"), "{error}");
        meet(&world).unwrap();
    });
}

#[test]
fn completion_vectors_are_spread_over_the_ranks() {
    let variables = [("FAKE_VECTORS", "3")];
    on_fake(None, 4, "completion_vectors_are_spread_over_the_ranks", &variables, |world| {
        meet(&world).unwrap();
        let folder = std::env::var("FAKE_ADAPTER").unwrap();
        let used = std::fs::read_to_string(Path::new(&folder).join("vectors")).unwrap();
        let mut used: Vec<_> = used.lines().collect();
        used.sort_unstable();
        assert_eq!(used, ["0", "0", "1", "2"]);
        meet(&world).unwrap();
    });
}

/// `transom run -v`: rank 0 reports each host's devices, ports, GIDs and MTU.
#[test]
fn verbose_job_reports_the_devices_of_each_host() {
    let name = "verbose_job_reports_the_devices_of_each_host";
    let gids = format!("{NORTH},{SOUTH}");
    let variables = [("FAKE_DEVICES", "2"), ("FAKE_GID", &*gids), ("FAKE_LID_1", "7"), ("TRANSOM_VERBS_MTU", "512")];
    let join = || drop(transom::init().unwrap());
    for verbose in [true, false] {
        let adapt = |launch: Launch| launch.verbose(verbose);
        let Some(outcome) = launch_fake(Some("a,b"), 2, name, &variables, adapt, join) else { return };
        assert!(outcome.success(), "{outcome}\n{}", outputs(&outcome));
        let output = String::from_utf8_lossy(outcome.output(0));
        let reports: Vec<_> = output.lines().filter_map(|line| line.strip_prefix("transom: host ")).collect();
        let expected = [
            "a: verbs fake0, port 1, InfiniBand, GID index 0 (fe80:0:0:1::1), LID 1, MTU 512, partition 0xffff, atomics; fake1, \
             port 1, InfiniBand, GID index 0 (fe80:0:0:2::2), LID 1, MTU 512, partition 0xffff, atomics (rank 0)",
            "b: verbs fake0, port 1, InfiniBand, GID index 0 (fe80:0:0:1::1), LID 7, MTU 512, partition 0xffff, atomics; fake1, \
             port 1, InfiniBand, GID index 0 (fe80:0:0:2::2), LID 7, MTU 512, partition 0xffff, atomics (rank 1)",
        ];
        assert_eq!(reports, if verbose { &expected[..] } else { &[] }, "{output}");
    }
}
