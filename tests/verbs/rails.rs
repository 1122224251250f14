//! Several rails: large messages, puts and gets are divided among the devices that TRANSOM_VERBS_DEVICE names.
//!
//! Tests that need two RDMA devices are skipped, with a message, on machines without them. `tests/soft-roce/verbs`
//! runs them in guests.

use crate::adapter;
use adapter::*;
use transom::messages::Tag;
use transom::{Window, World};

const TAG: Tag<u8> = Tag::new(1);

/// The first two, as the variable names them.
fn two_devices() -> Option<String> {
    if let Ok(named) = std::env::var("TRANSOM_VERBS_DEVICE") {
        return Some(named);
    }
    let listed = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let mut names: Vec<_> = listed.filter_map(|device| device.file_name().into_string().ok()).collect();
    names.sort();
    if names.len() < 2 {
        eprintln!("skipped: needs two RDMA devices, and there are {}", names.len());
        return None;
    }
    Some(names[..2].join(","))
}

/// Both ranks send and receive messages of these lengths, repeatedly.
fn exchange(world: &World, lengths: &[usize], times: usize) {
    let (me, other) = (world.rank(), 1 - world.rank());
    let bytes = |rank: usize, time: usize, len: usize| -> Vec<u8> {
        (0..len).map(|at| (at / 4096 * 31 + at * 7 + time * 13 + rank) as u8).collect()
    };
    for time in 0..times {
        for &len in lengths {
            let mut came = vec![0; len];
            let status = world.sendrecv(other, TAG, &bytes(me, time, len), other, TAG, &mut came).unwrap();
            assert_eq!((status.from, status.len), (other, len));
            assert!(came == bytes(other, time, len), "{len} bytes, time {time}");
        }
    }
}

/// Messages of a job of two by two rails. Each rail moves at least this part of the divided bytes.
fn divided(name: &str, stripe: &str, least: impl Fn(u64) -> u64) {
    let Some(devices) = two_devices() else { return };
    let variables = [("TRANSOM_VERBS_DEVICE", &*devices), ("TRANSOM_MESSAGES", stripe)];
    on_verbs(2, name, &variables, |world| {
        exchange(&world, &[1, 5000, 100_000], 3);
        meet(&world).unwrap();
        let verbs = verbs(&world);
        assert_eq!((verbs.queue_pairs().to_others, moved(&world).1), (1, 0), "short messages were striped");
        // Fewer rails are used until all are connected.
        exchange(&world, &[1 << 20], 20);
        meet(&world).unwrap();
        assert_eq!(verbs.queue_pairs().to_others, 2);
        let (all, others) = moved(&world);
        exchange(&world, &[262_144, 1_500_003, 4 << 20], 3);
        let (all, others) = (moved(&world).0 - all, moved(&world).1 - others);
        let least = least(all);
        assert!(others >= least && others <= all - least, "second rail carried {others} of {all} bytes, {stripe}");
        meet(&world).unwrap();
        assert_eq!(verbs.registrations().refused, 0);
    });
}

#[test]
fn large_messages_are_striped_evenly() {
    divided("large_messages_are_striped_evenly", "stripe=even", |all| all * 49 / 100);
}

/// Measured times vary, so the test knows only the smallest part of a rail.
#[test]
fn large_messages_are_striped_by_measured_rate() {
    // A rail that other work has delayed has the smallest part, which was found to be a 71st of the bytes.
    divided("large_messages_are_striped_by_measured_rate", "stripe=adaptive", |all| all / 100);
}

/// A buffer that is sent repeatedly stays registered with both.
#[test]
fn persistent_buffer_is_registered_once_per_rail() {
    const LEN: usize = 4 << 20;
    let Some(devices) = two_devices() else { return };
    let variables =
        [("TRANSOM_VERBS_DEVICE", &*devices), ("TRANSOM_MESSAGES", "stripe=even"), ("TRANSOM_INTRANODE", "off")];
    on_verbs(2, "persistent_buffer_is_registered_once_per_rail", &variables, |world| {
        // Only one rail is used until both are connected.
        exchange(&world, &[1 << 20], 20);
        let mut sending = world.send_init(1, TAG, vec![0; LEN]).unwrap();
        for step in 0..6 {
            let (before, others) = (world.counters().unwrap(), moved(&world).1);
            if world.rank() == 0 {
                sending.buffer().unwrap().fill(step);
                sending.start().unwrap().wait().unwrap();
                let now = world.counters().unwrap();
                let counts = [now.registered - before.registered, now.found_registered - before.found_registered];
                assert_eq!(counts, if step == 0 { [2, 0] } else { [0, 2] }, "message {step}: made, found");
                assert_eq!(now.registered_bytes, 2 * LEN as u64);
            } else {
                let mut came = vec![9; LEN];
                world.recv_into(0, TAG, &mut came).unwrap();
                assert!(came.iter().all(|byte| *byte == step), "message {step}");
            }
            meet(&world).unwrap();
            let others = moved(&world).1 - others;
            println!("rank {}, message {step}: {others} bytes by the second rail", world.rank());
        }
        drop(sending);
        assert_eq!(world.counters().unwrap().registered_bytes, 0);
        meet(&world).unwrap();
    });
}

/// Divided puts and gets of both ranks at once, by each call. A signal, an unlock or a flush completes all their
/// parts.
fn puts_and_gets(world: &World, rounds: u64) {
    const LEN: usize = 3 << 20;
    let (me, other) = (world.rank(), 1 - world.rank());
    let bytes = |rank: usize, round: u64, len: usize| -> Vec<u8> {
        (0..len).map(|at| (at / 4096 * 13 + at * 3 + round as usize * 29 + rank * 5) as u8).collect()
    };
    let mut window: Window<u8> = world.allocate_with_signals(LEN, 1).unwrap();
    window.fence().unwrap();
    for round in 1..=rounds {
        let len = LEN - round as usize * 1013;
        let mine = bytes(me, round, len);
        let buffer = {
            let mut buffer = world.buffer::<u8>(len).unwrap();
            buffer.copy_from_slice(&mine);
            buffer
        };
        let epoch = window.lock_shared(other).unwrap();
        // Only the signal behind the put waits for it.
        match round % 4 {
            0 => drop(epoch.rput(0, mine.clone()).unwrap()),
            1 => std::mem::forget(epoch.rput(0, mine.clone()).unwrap()),
            2 => epoch.put(0, &mine).unwrap(),
            _ => epoch.put(0, &buffer).unwrap(),
        }
        epoch.put_signal(len, &[round as u8], 0, 1).unwrap();
        epoch.signals().wait_until(0, |told| told >= round).unwrap();
        let mut came = vec![0; len];
        epoch.local().read_into(0, &mut came).unwrap();
        assert!(came == bytes(other, round, len), "round {round}: signal arrived before its put");
        // A get returns the last put, also by rails that did not bring it.
        let mut back = vec![0; len];
        epoch.get(0, &mut back).unwrap();
        assert!(back == mine, "round {round}: a get");
        assert!(epoch.rget(0, len).unwrap().wait().unwrap() == mine, "round {round}: an rget");
        drop(epoch);
        meet(world).unwrap();
        // The holder of the lock sees all puts that were made under it.
        let again = bytes(me, round + 100, len);
        let epoch = window.lock_exclusive(other).unwrap();
        drop(epoch.rput(0, again.clone()).unwrap());
        let get = epoch.rget(0, len).unwrap();
        let last = epoch.rput(0, mine).unwrap();
        assert!(get.wait().unwrap() == again, "round {round}: a get between two puts");
        last.wait().unwrap();
        epoch.put(7, &[1, 2, 3]).unwrap();
        epoch.unlock().unwrap();
        meet(world).unwrap();
        let epoch = window.lock_shared(me).unwrap();
        epoch.get(0, &mut came).unwrap();
        let mut expected = bytes(other, round, len);
        expected[7..10].copy_from_slice(&[1, 2, 3]);
        assert!(came == expected, "round {round}: unlock arrived before its put");
        drop(epoch);
        meet(world).unwrap();
    }
}

/// Large puts and gets of a job of two by two rails, each of which moves at least this part.
fn windows_are_divided(name: &str, stripe: &str, least: impl Fn(u64) -> u64) {
    let Some(devices) = two_devices() else { return };
    let variables = [("TRANSOM_VERBS_DEVICE", &*devices), ("TRANSOM_MESSAGES", stripe), ("TRANSOM_INTRANODE", "off")];
    on_verbs(2, name, &variables, |world| {
        puts_and_gets(&world, 1); // fewer rails are used until all are connected
        let verbs = verbs(&world);
        let before = verbs.divided_bytes();
        puts_and_gets(&world, 8);
        let after = verbs.divided_bytes();
        let moved: Vec<u64> = before.iter().zip(&after).map(|(before, after)| after - before).collect();
        let all: u64 = moved.iter().sum();
        // Six of about 3 MiB in each round.
        assert!(moved.len() == 2 && all > 8 * 6 * ((3 << 20) - 9000), "{moved:?}");
        assert!(moved.iter().all(|moved| *moved >= least(all)), "{moved:?} bytes by the rails, {stripe}");
        assert_eq!(verbs.registrations().refused, 0);
        // One connection per rail. On a slow machine, a rail may have been taken for cut and connected again.
        assert!((2..=6).contains(&verbs.queue_pairs().to_others), "{:?}", verbs.queue_pairs());
        let mut window: Window<u8> = world.allocate(1 << 20).unwrap();
        let epoch = window.lock_shared(1 - world.rank()).unwrap();
        epoch.put(0, &[7; 100_000]).unwrap();
        assert_eq!(epoch.get_one(99_999).unwrap(), 7);
        assert_eq!(verbs.divided_bytes(), after, "short operations were striped");
        drop(epoch);
        meet(&world).unwrap();
    });
}

#[test]
fn large_puts_and_gets_are_striped_evenly() {
    windows_are_divided("large_puts_and_gets_are_striped_evenly", "stripe=even", |all| all * 49 / 100);
}

/// Measured times vary, so the test knows only the smallest part of a rail.
#[test]
fn large_puts_and_gets_are_striped_by_measured_rate() {
    let name = "large_puts_and_gets_are_striped_by_measured_rate";
    windows_are_divided(name, "stripe=adaptive", |all| all / 70);
}

/// A window is freed when all ranks have dropped theirs. It is not freed before a put that was never waited for is
/// complete, even if one rail is later than the first.
#[test]
fn dropped_put_completes_before_its_window_is_freed() {
    const LEN: usize = 4 << 20;
    let Some(devices) = two_devices() else { return };
    let variables =
        [("TRANSOM_VERBS_DEVICE", &*devices), ("TRANSOM_MESSAGES", "stripe=even"), ("TRANSOM_INTRANODE", "off")];
    on_verbs(2, "dropped_put_completes_before_its_window_is_freed", &variables, |world| {
        let (other, verbs) = (1 - world.rank(), verbs(&world));
        // Fewer rails are used until all are connected.
        let mut warm: Window<u8> = world.allocate(LEN).unwrap();
        let epoch = warm.lock_all().unwrap();
        while verbs.divided_bytes()[1] < LEN as u64 {
            let there = epoch.target(other).unwrap();
            there.put(0, &vec![1; LEN]).unwrap();
            there.flush().unwrap();
        }
        drop(epoch);
        meet(&world).unwrap();
        let (made, before) = (verbs.queue_pairs().to_others, verbs.divided_bytes()[1]);
        for round in 0..8_u8 {
            let mut window: Window<u8> = world.allocate(LEN).unwrap();
            let epoch = window.fence().unwrap();
            drop(epoch.target(other).unwrap().rput(0, vec![round; LEN]).unwrap());
            drop(window);
            // The memory is freed here.
            meet(&world).unwrap();
        }
        assert!(verbs.divided_bytes()[1] - before >= LEN as u64, "dropped puts were not striped");
        // The refused rank has no connection any more.
        let epoch = warm.lock_all().unwrap();
        let there = epoch.target(other).unwrap();
        there.put(0, &vec![9; LEN]).unwrap();
        there.flush().unwrap();
        drop(epoch);
        meet(&world).unwrap();
        assert_eq!(verbs.queue_pairs().to_others, made);
        assert!(warm.local().read(0, LEN).unwrap().iter().all(|byte| *byte == 9));
        meet(&world).unwrap();
    });
}

#[test]
fn missing_rail_device_is_refused() {
    let Some(devices) = two_devices() else { return };
    if std::env::var_os(ROLE).is_some_and(|_| std::env::var_os("TEST_HOSTS_ARE_SEVERAL").is_some()) {
        return;
    }
    let first = devices.split(',').next().unwrap();
    let named = format!("{first},mlx5_77");
    let name = "missing_rail_device_is_refused";
    let outcome = run(2, name, &[("TRANSOM_FABRIC", "verbs"), ("TRANSOM_VERBS_DEVICE", &named)], || {
        let error = transom::init().err().expect("joining with a missing device should fail").to_string();
        println!("error: {error}");
        assert!(error.contains("TRANSOM_VERBS_DEVICE=mlx5_77"), "{error}");
    });
    if let Some(outcome) = outcome {
        assert!(outcome.success(), "{outcome}\n{}", outputs(&outcome));
    }
}
