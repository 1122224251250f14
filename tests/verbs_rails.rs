//! Several rails: large messages are divided among the devices that TRANSOM_VERBS_DEVICE names.
//!
//! What needs two RDMA devices says so and is skipped where there are not; `tests/soft-roce/verbs` runs it where there are.
#![cfg(feature = "verbs")]

mod adapter;
use adapter::*;
use transom::World;
use transom::messages::Tag;

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

/// Both ranks send and receive messages of these lengths, so often.
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

/// What this rank has written and read of messages, and how much of that not by the first rail.
fn moved(world: &World) -> (u64, u64) {
    let counters = world.counters().unwrap();
    (counters.written_bytes + counters.read_bytes, counters.other_rails_bytes)
}

/// Messages of a job of two, by two rails; of what is divided the second rail has this part at least, and the first.
fn divided(name: &str, stripe: &str, least: impl Fn(u64) -> u64) {
    let Some(devices) = two_devices() else { return };
    let variables = [("TRANSOM_VERBS_DEVICE", &*devices), ("TRANSOM_MESSAGES", stripe)];
    on_verbs(2, name, &variables, |world| {
        exchange(&world, &[1, 5000, 100_000], 3);
        world.barrier().unwrap();
        let verbs = verbs(&world);
        assert_eq!((verbs.queue_pairs().to_others, moved(&world).1), (1, 0), "nothing was divided");
        // Until all rails are connected less are used.
        exchange(&world, &[1 << 20], 20);
        world.barrier().unwrap();
        assert_eq!(verbs.queue_pairs().to_others, 2);
        let (all, others) = moved(&world);
        exchange(&world, &[262_144, 1_500_003, 4 << 20], 3);
        let (all, others) = (moved(&world).0 - all, moved(&world).1 - others);
        let least = least(all);
        assert!(others >= least && others <= all - least, "{others} bytes of {all}, {stripe}");
        world.barrier().unwrap();
        assert_eq!(verbs.registrations().refused, 0);
    });
}

#[test]
fn large_messages_are_divided_evenly() {
    divided("large_messages_are_divided_evenly", "stripe=even", |all| all * 49 / 100);
}

/// Of what is measured only the least is known.
#[test]
fn large_messages_are_divided_by_what_the_last_took() {
    divided("large_messages_are_divided_by_what_the_last_took", "stripe=adaptive", |all| all / 70);
}

#[test]
fn rails_of_which_one_is_not_there_are_told() {
    let Some(devices) = two_devices() else { return };
    if std::env::var_os(ROLE).is_some_and(|_| std::env::var_os("TEST_HOSTS_ARE_SEVERAL").is_some()) {
        return;
    }
    let first = devices.split(',').next().unwrap();
    let named = format!("{first},mlx5_77");
    let name = "rails_of_which_one_is_not_there_are_told";
    let outcome = run(2, name, &[("TRANSOM_FABRIC", "verbs"), ("TRANSOM_VERBS_DEVICE", &named)], || {
        let error = transom::init().err().expect("there is no such device").to_string();
        println!("told: {error}");
        assert!(error.contains("TRANSOM_VERBS_DEVICE=mlx5_77"), "{error}");
    });
    if let Some(outcome) = outcome {
        assert!(outcome.success(), "{outcome}\n{}", outputs(&outcome));
    }
}
