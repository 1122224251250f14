//! Properties of the provider for several machines: connections on demand, and atomics by the adapter alone. Failures:
//! no library, no device, bad variables, memory that may not be locked, wrong keys, a link that goes down.
//!
//! Tests that need an RDMA device are skipped, with a message, on machines without one. `tests/soft-roce/verbs` runs
//! them in guests.

use crate::adapter;
use adapter::*;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transom::messages::Tag;
use transom::shm_loopback::Loopback;
use transom::verbs::{Hybrid, Node, Verbs, VerbsError, probe};
use transom::windows::{Fabric, Wake};
use transom::{FabricError, Flavor, Op, StartError, Window};

/// A job of this process alone, over the adapter.
fn alone() -> (Loopback, Hybrid<Verbs>) {
    let job = Loopback::alone().unwrap();
    (job.clone(), Hybrid::open(Arc::new(job.clone()), Node::all(job), &Default::default()).unwrap())
}

/// Atomics of two adapters are not atomic towards each other. A rank reaches the words of a neighbour with another
/// adapter by the connection to the neighbour, not by its own adapter. `tests/soft-roce/verbs` starts it on one host,
/// each rank with a device.
#[test]
fn peer_on_another_adapter_is_reached_by_connection() {
    if std::env::var_os(ROLE).is_none() || std::env::var_os("TRANSOM_VERBS_DEVICE").is_none() {
        return eprintln!("skipped: needs two devices that reach each other, and `transom run`");
    }
    let world = transom::init().expect("a rank can join its job");
    let (me, verbs) = (world.rank(), verbs(&world));
    assert_eq!((world.size(), probe().unwrap().contains(&format!("rxe{me}"))), (2, true), "{:?}", probe());
    let mut window: Window<u64> = world.allocate(2).unwrap();
    window.fence().unwrap();
    assert!(window.local().of(1 - me).is_ok(), "host peers should share memory");
    let others_and_itself = || {
        let counts = [verbs.work_requests_to_others(), verbs.work_requests_to_itself()];
        counts.map(|posted| posted.compare_and_swaps + posted.fetch_and_adds)
    };
    const EACH: u64 = 20;
    let mut add = || {
        let epoch = window.lock_shared(0).unwrap();
        epoch.fetch_and_op(0, Op::Sum, 1).unwrap();
        epoch.unlock().unwrap();
    };
    add(); // the epoch of the fence ends
    let before = others_and_itself();
    (1..EACH).for_each(|_| add());
    let posted = others_and_itself();
    // To lock, to add, to unlock. Each of the first 16 accumulates is admitted and leaves; the next stays admitted.
    let posted_by_each = 3 * (EACH - 1) + 2 * 15 + 1;
    let [at_home, elsewhere] = [[0, posted_by_each], [posted_by_each, 0]];
    assert_eq!([0, 1].map(|at| posted[at] - before[at]), if me == 0 { at_home } else { elsewhere });
    meet(&world).unwrap(); // no rank has queued for the lock so far
    for _ in 0..EACH {
        let epoch = window.lock_exclusive(0).unwrap();
        let value = epoch.get_one(1).unwrap();
        epoch.put(1, &[value + 1]).unwrap();
        epoch.unlock().unwrap();
    }
    window.fence().unwrap();
    let mut found = [0; 2];
    window.lock_shared(0).unwrap().get(0, &mut found).unwrap();
    assert_eq!(found, [2 * EACH; 2]);
    window.fence().unwrap();
}

#[test]
fn cpu_and_adapter_atomics_on_a_word_are_refused() {
    if !cfg!(debug_assertions) || skipped("an adapter's words") {
        return;
    }
    let (job, verbs) = alone();
    let (_region, key) = verbs.allocate(64).unwrap();
    let through_adapter = verbs.attach(0, &key, 64).unwrap();
    assert_eq!(
        verbs.start_add(&through_adapter, 8, 5, Wake::Home).and_then(|pending| verbs.finish(pending)).unwrap(),
        0
    );
    // The same memory through the other provider would lose updates. The key begins with that of the shared memory,
    // behind its length.
    let by_processor = job.attach(0, &key[1..][..key[0].into()], 64).unwrap();
    for met in [job.cas(&by_processor, 8, 5, 6, Wake::Home).map(drop), job.notify(&by_processor, 8, 1, Wake::Home)] {
        assert!(matches!(met, Err(FabricError::Misuse { .. })), "{met:?}");
    }
    assert_eq!(verbs.cas(&through_adapter, 8, 5, 6, Wake::Home).unwrap(), 5);
}

#[test]
fn invalid_keys_and_offsets_are_refused() {
    if skipped("wrong keys") {
        return;
    }
    let (_job, verbs) = alone();
    let (region, key) = verbs.allocate(64).unwrap();
    let right = verbs.attach(0, &key, 64).unwrap();
    assert!(matches!(
        verbs.cas(&right, 60, 0, 1, Wake::Home),
        Err(FabricError::OutOfBounds { offset: 60, len: 8, size: 64 })
    ));
    assert!(matches!(verbs.cas(&right, 4, 0, 1, Wake::Home), Err(FabricError::Misaligned { offset: 4 })));
    assert_eq!(verbs.cas(&right, 56, 0, 9, Wake::Home).unwrap(), 0);
    assert_eq!(verbs.word(&region, 56).unwrap(), 9);
    for len in 0..13 {
        assert!(matches!(verbs.attach(0, &key[..len], 64), Err(FabricError::BadKey { rank: 0, .. })));
    }
    assert!(matches!(verbs.attach(7, &key, 64), Err(FabricError::BadKey { rank: 7, .. })));
    let mut wrong = key.clone();
    let last = wrong.len() - 1;
    wrong[last - 12] ^= 0x55; // the adapter's key
    let begun = Instant::now();
    let error = verbs.attach(0, &wrong, 64).and_then(|wrong| verbs.cas(&wrong, 0, 0, 1, Wake::Home)).unwrap_err();
    assert!(matches!(&error, FabricError::BadKey { rank: 0, why, .. } if why.contains("refused")), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert_eq!(verbs.word(&region, 0).unwrap(), 0, "refused operation changed the word");
}

#[test]
fn notify_by_write_loses_no_update() {
    if skipped("posts") {
        return;
    }
    on_verbs(3, "notify_by_write_loses_no_update", &[("TRANSOM_VERBS_WORD_WRITE", "write")], |world| {
        let mut window: Window<u64> = world.allocate(1).unwrap();
        for round in 0..20 {
            window.lock_exclusive(round % world.size()).unwrap().fetch_and_op(0, Op::Sum, 1).unwrap();
            window.fence().unwrap();
        }
        let all: u64 = (0..world.size()).map(|rank| window.lock_shared(rank).unwrap().get_one(0).unwrap()).sum();
        assert_eq!(all, 20 * world.size() as u64);
        window.fence().unwrap();
    });
}

/// A rank whose adapter writes words in one piece uses compare-and-swap if another rank's adapter does not, and its
/// completion flags are immediate values. The rank waits for them where the other did not write.
#[test]
fn ranks_with_different_adapters_interoperate() {
    if skipped("ranks that differ") {
        return;
    }
    let name = "ranks_with_different_adapters_interoperate";
    let variables = [("TRANSOM_FABRIC", "verbs"), ("TRANSOM_INTRANODE", "off")];
    let outcome = run(3, name, &variables, || {
        let me = std::env::var("TRANSOM_RANK").unwrap();
        // SAFETY: the process was started for this one test; no other thread reads variables.
        unsafe { std::env::set_var("TRANSOM_VERBS_WORD_WRITE", if me == "1" { "write" } else { "atomic" }) };
        let world = transom::init().unwrap();
        const TAG: Tag<u64> = Tag::new(3);
        let (me, n) = (world.rank(), world.size());
        let mut window: Window<u64> = world.allocate(1).unwrap();
        for round in 0..200 {
            window.lock_exclusive(round % n).unwrap().fetch_and_op(0, Op::Sum, 1).unwrap();
            window.fence().unwrap();
            // After some rounds, frequent peers get rings.
            let (to, from) = ((me + 1) % n, (me + n - 1) % n);
            let sent = world.isend(to, TAG, vec![round as u64; 20]);
            assert_eq!(world.recv(from, TAG).unwrap().0, [round as u64; 20]);
            sent.wait().unwrap();
        }
        world.barrier().unwrap();
    });
    if let Some(outcome) = outcome {
        assert!(outcome.success(), "{outcome}\n{}", outputs(&outcome));
    }
}

#[test]
fn repeated_windows_transfer_correctly() {
    if skipped("windows") {
        return;
    }
    on_verbs(2, "repeated_windows_transfer_correctly", &[], |world| {
        for round in 0..20u64 {
            let mut window: Window<u64> = world.allocate(1000).unwrap();
            let epoch = window.lock_exclusive(1 - world.rank()).unwrap();
            epoch.put(999, &[round]).unwrap();
            epoch.unlock().unwrap();
            assert_eq!(window.lock_shared(1 - world.rank()).unwrap().get_one(999).unwrap(), round);
            // One rank is done sooner than the other.
        }
        let team = world.split(Some(0), 10 - world.rank() as u64).unwrap().expect("a colour was named");
        drop(world);
        let mut window: Window<u64> = team.allocate(1).unwrap();
        window.lock_exclusive(0).unwrap().fetch_and_op(0, Op::Sum, 1).unwrap();
        window.fence().unwrap();
        assert_eq!(window.lock_shared(0).unwrap().get_one(0).unwrap(), 2);
        drop(team);
    });
}

/// A thread with a distant peer does not delay another thread with a near peer: on two hosts, started by
/// `tests/soft-roce/verbs`. Each cycle ends with an order: the put arrives before the lock is released.
#[test]
fn near_peer_is_not_delayed_by_a_distant_one() {
    const LINK: &str = "rail0";
    const DELAY: Duration = Duration::from_millis(400);
    if std::env::var_os(ROLE).is_none() || std::env::var_os("TEST_HOSTS_ARE_SEVERAL").is_none() {
        return eprintln!("skipped: needs two hosts, and `transom run`");
    }
    let world = transom::init().expect("a rank can join its job");
    assert_eq!(world.size(), 3);
    let mut windows: [Window<u64>; 2] = [0, 1].map(|_| world.allocate(1000).unwrap());
    for window in &mut windows {
        (0..3).for_each(|rank| assert_eq!(window.lock_shared(rank).unwrap().get_one(0).unwrap(), 0));
    }
    meet(&world).unwrap();
    if world.rank() == 0 {
        shell(&format!("tc qdisc replace dev {LINK} root netem delay {}ms", DELAY.as_millis()));
        let cycle = |window: &mut Window<u64>, rank| {
            let begun = Instant::now();
            let epoch = window.lock_exclusive(rank).unwrap();
            epoch.put(0, &[1; 500]).unwrap();
            epoch.unlock().unwrap();
            window.lock_shared(0).unwrap().unlock().unwrap(); // after the puts at the other rank
            begun.elapsed()
        };
        let [far_window, near_window] = &mut windows;
        let far = [1, 2].into_iter().max_by_key(|&rank| cycle(far_window, rank)).unwrap();
        let (far_took, near_took) = std::thread::scope(|scope| {
            let far_away = scope.spawn(|| (0..5).map(|_| cycle(far_window, far)).min().unwrap());
            let mut near = Vec::new();
            while !far_away.is_finished() {
                near.push(cycle(near_window, 3 - far));
            }
            near.sort();
            (far_away.join().unwrap(), near)
        });
        let median = near_took[near_took.len() / 2];
        println!("\n| far {far_took:?} | near {median:?}, of {} |", near_took.len());
        assert!(far_took > DELAY && median < DELAY / 4, "far {far_took:?}, near {median:?}");
        shell(&format!("tc qdisc del dev {LINK} root"));
    }
    meet(&world).unwrap();
}

/// The error of a rank that cannot join.
fn cannot_join(name: &str, variables: &[(&str, &str)], wanted: &[&str]) {
    let forced = [("TRANSOM_FABRIC", "verbs")].iter().chain(variables).copied().collect::<Vec<_>>();
    let run = run(1, name, &forced, || {
        let error = transom::init().map(drop).expect_err("joining should fail");
        assert!(matches!(error, StartError::Provider(_)), "{error:?}");
        println!("<<{error}>>");
    });
    if let Some(outcome) = run {
        let output = outputs(&outcome);
        assert!(outcome.success(), "{output}");
        for wanted in wanted {
            assert!(output.contains(wanted), "{variables:?}: {wanted:?} is missing in\n{output}");
        }
    } else {
        // A copy has done its part.
        std::process::exit(0);
    }
}

#[test]
fn invalid_variables_are_refused() {
    let name = "invalid_variables_are_refused";
    for (variable, value, wanted) in [
        ("TRANSOM_FABRIC", "infiniband", "expected `auto`"),
        ("TRANSOM_INTRANODE", "perhaps", "expected `auto`"),
        ("TRANSOM_VERBS_DEVICE", "rxe0,rxe0", "up to 4"),
        ("TRANSOM_VERBS_DEVICE", "a,b,c,d,e", "up to 4"),
        ("TRANSOM_VERBS_PORT", "0", "from 1 to 254"),
        ("TRANSOM_VERBS_GID", "256", "from 0 to 255"),
        ("TRANSOM_VERBS_MTU", "1500", "expected 256"),
        ("TRANSOM_VERBS_SL", "16", "from 0 to 15"),
        ("TRANSOM_VERBS_DEPTH", "3", "from 4 to 32768"),
        ("TRANSOM_VERBS_INLINE", "many", "from 0 to 4096"),
        ("TRANSOM_VERBS_CONNECTIONS", "0", "from 1 to 4294967295"),
        ("TRANSOM_VERBS_ZCOPY_MIN", "32767", "from 32768 to 4294967295"),
        ("TRANSOM_VERBS_REGCACHE_BYTES", "-1", "from 0 to 4294967295"),
        ("TRANSOM_VERBS_TIMEOUT", "-1", "expected seconds above 0"),
        ("TRANSOM_VERBS_TIMEOUT", "0", "expected seconds above 0"),
        ("TRANSOM_VERBS_TRAFFIC_CLASS", "256", "from 0 to 255"),
        ("TRANSOM_VERBS_PKEY", "0x8000", "from 1 to 65535"),
        ("TRANSOM_VERBS_WORD_WRITE", "send", "expected `auto`"),
    ] {
        cannot_join(name, &[(variable, value)], &[&format!("{variable}=\"{value}\""), wanted]);
    }
}

#[test]
fn missing_device_resources_are_refused() {
    if skipped("asking for what a device does not have") {
        return;
    }
    let name = "missing_device_resources_are_refused";
    cannot_join(
        name,
        &[("TRANSOM_VERBS_DEVICE", "mlx5_77")],
        &["TRANSOM_VERBS_DEVICE=mlx5_77: no such RDMA device", "available: "],
    );
    cannot_join(name, &[("TRANSOM_VERBS_PORT", "200")], &["TRANSOM_VERBS_PORT=200", "port(s)"]);
    cannot_join(name, &[("TRANSOM_VERBS_GID", "200")], &["TRANSOM_VERBS_GID=200", "no such GID index; it has 0"]);
}

/// A directory with a file libibverbs that is no library.
fn no_library() -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("no-libibverbs-{}", std::process::id()));
    let directory = match std::fs::create_dir_all(&directory) {
        Ok(()) => directory,
        // The folder of the build is not writable.
        Err(_) => std::env::temp_dir().join(format!("no-libibverbs-{}", std::process::id())),
    };
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("libibverbs.so.1"), "nothing").unwrap();
    directory
}

#[test]
fn missing_libibverbs_is_reported() {
    let name = "missing_libibverbs_is_reported";
    if std::env::var_os(ROLE).is_some() {
        return cannot_join(name, &[], &[]);
    }
    let directory = no_library();
    let path = directory.to_str().unwrap();
    cannot_join(name, &[("LD_LIBRARY_PATH", path)], &["libibverbs cannot be loaded", "install it"]);
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn locked_memory_limit_is_named_in_the_error() {
    use rustix::process::{Resource, getrlimit};
    let limit = getrlimit(Resource::Memlock).current;
    if skipped("locking memory") || limit.is_none_or(|limit| limit > 16 << 20) {
        return eprintln!("skipped: the limit of locked memory is {limit:?}; 4 MiB would do");
    }
    on_verbs(2, "locked_memory_limit_is_named_in_the_error", &[], |world| {
        let begun = Instant::now();
        let error = world.allocate::<u64>(4 << 20).map(drop).unwrap_err().to_string();
        assert!(error.contains("ulimit -l") || world.rank() == 1 && error.contains("rank 0"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(20));
        let mut small: Window<u64> = world.allocate(10).unwrap(); // a window within the limit can be made
        small.fence().unwrap();
    });
}

#[test]
fn device_error_keeps_its_source() {
    use std::error::Error;
    let source = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
    assert!(VerbsError::NoDevice { source: Some(source) }.source().is_some());
}

/// User memory of a rank on the same host is reached by the queue pair to that rank, its words by that to the rank
/// itself. A put must not be overtaken by its notification.
#[test]
fn puts_to_user_memory_precede_their_notification() {
    if skipped("lent memory of the same host") {
        return;
    }
    let name = "puts_to_user_memory_precede_their_notification";
    on_verbs(2, name, &[("TRANSOM_INTRANODE", "on")], |world| {
        const LEN: usize = 12_000;
        const ROUNDS: u64 = 15;
        let other = 1 - world.rank();
        let mut window: Window<u64> = world.window(Flavor::Create(vec![0; LEN + 1]), 1).unwrap();
        for round in 1..=ROUNDS {
            window.lock_all().unwrap().target(other).unwrap().put_signal(0, &[round; LEN], 0, 1).unwrap();
            window.signals().wait_until(0, |signals| signals == round).unwrap();
            assert_eq!(window.local().read(0, LEN).unwrap(), [round; LEN], "by a signal");
            window.fence().unwrap();
            let epoch = window.fence().unwrap();
            epoch.target(other).unwrap().put(0, &[100 + round; LEN]).unwrap();
            window.fence().unwrap();
            assert_eq!(window.local().read(0, LEN).unwrap(), [100 + round; LEN], "by a fence");
            meet(&world).unwrap(); // the next round's puts come after it was read
            let epoch = window.lock_exclusive(0).unwrap();
            let so_far = epoch.get_one(LEN).unwrap();
            epoch.put(LEN, &[so_far + 1]).unwrap();
            epoch.unlock().unwrap();
        }
        for _ in 0..ROUNDS {
            window.lock_all().unwrap().target(0).unwrap().accumulate(LEN, Op::Sum, &[1]).unwrap();
        }
        let mine = window.free().unwrap();
        assert!(world.rank() > 0 || mine[LEN] == 4 * ROUNDS, "{} additions found, expected {}", mine[LEN], 4 * ROUNDS);
    });
}

/// The operations of a job on any hosts: `tests/soft-roce/verbs` starts it on two.
#[test]
fn operations_across_hosts_are_exact() {
    if skipped("a job on several hosts") {
        return;
    }
    on_verbs(4, "operations_across_hosts_are_exact", &[("TRANSOM_INTRANODE", "on")], |world| {
        let (me, n) = (world.rank(), world.size());
        const EACH: u64 = 50;
        let mut window: Window<u64> = world.allocate_with_signals(1000 * n + 1, 1).unwrap();
        window.fence().unwrap();
        let data = |from: usize, to: usize| (from as u64) << 32 | to as u64;
        for to in 0..n {
            let epoch = window.lock_shared(to).unwrap();
            epoch.put_signal(1000 * me, &[data(me, to); 1000], 0, 1).unwrap();
            epoch.unlock().unwrap();
        }
        window.signals().wait_until(0, |arrived| arrived == n as u64).unwrap();
        for from in 0..n {
            assert_eq!(window.local().read(1000 * from, 1000).unwrap(), [data(from, me); 1000], "from {from}");
        }
        // One word, from all hosts at once, including its own; and a lock that passes between them.
        let word = 1000 * n;
        for _ in 0..EACH {
            window.lock_shared(n - 1).unwrap().fetch_and_op(word, Op::Sum, 1).unwrap();
            let epoch = window.lock_exclusive(0).unwrap();
            let value = epoch.get_one(word).unwrap();
            epoch.put(word, &[value + 1]).unwrap();
            epoch.unlock().unwrap();
        }
        window.fence().unwrap();
        for rank in [0, n - 1] {
            assert_eq!(window.lock_shared(rank).unwrap().get_one(word).unwrap(), EACH * n as u64, "at {rank}");
        }
        // Large operations, some of whose packets may be sent again. The memory is the program's again when a call
        // returns. Buffers that were handed over and dropped are kept as long as needed.
        const LARGE: usize = 20_000;
        let mut large: Window<u64> = world.allocate(2 * LARGE).unwrap();
        let epoch = large.lock_shared((me + n / 2) % n).unwrap();
        let mut source: Vec<u64> = (0..LARGE).map(|at| data(me, at)).collect();
        drop(epoch.rput(LARGE, source.clone()).unwrap());
        let mut into = vec![0; LARGE]; // perhaps at the address of that one
        epoch.put(0, &source).unwrap();
        source.fill(0);
        epoch.flush().unwrap();
        let request = epoch.rget(0, LARGE).unwrap();
        epoch.get(LARGE, &mut into).unwrap();
        for got in [into, request.wait().unwrap()] {
            assert!(got.iter().enumerate().all(|(at, &got)| got == data(me, at)));
        }
        drop(epoch);
        meet(&world).unwrap();
        let (from, mine) = ((me + n - n / 2) % n, large.local().read(0, 2 * LARGE).unwrap());
        assert!(mine.iter().enumerate().all(|(at, &found)| found == data(from, at % LARGE)), "from {from}");
        // Between hosts ranks meet by their lanes: one notification to another rank in each of ceil(log2 n) steps.
        let meets = n.next_power_of_two().ilog2() as u64;
        if std::env::var_os("TEST_HOSTS_ARE_SEVERAL").is_some() {
            meet(&world).unwrap();
            let before = verbs(&world).work_requests_to_others();
            meet(&world).unwrap();
            let posted = verbs(&world).work_requests_to_others() - before;
            assert_eq!((posted.writes + posted.compare_and_swaps, posted.reads), (meets, 0), "{posted:?}");
        }
        let team = world.split(Some(me as u64 % 2), 0).unwrap().expect("a colour was named");
        let mut of_team: Window<u64> = team.allocate(1).unwrap();
        of_team.lock_exclusive(0).unwrap().fetch_and_op(0, Op::Sum, 1).unwrap();
        of_team.fence().unwrap();
        assert_eq!(of_team.lock_shared(0).unwrap().get_one(0).unwrap(), team.size() as u64);
        let shared = (0..n).filter(|&rank| window.local().of(rank).is_ok()).count();
        let pairs = verbs(&world).queue_pairs();
        // With packet loss a connection may break and be made again.
        let most = if std::env::var_os("TEST_LOSS").is_some() { 2 * n } else { n };
        assert!(pairs.to_others < most && pairs.to_itself == 1, "{pairs:?}: expected at most one queue pair per peer");
        println!("rank {me}: {shared} ranks here, {} queue pairs to others", pairs.to_others);
        window.fence().unwrap();
    });
}
