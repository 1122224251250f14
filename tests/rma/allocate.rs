//! Collective creation of windows: if one rank fails, all ranks get an error, none has the window, and the next
//! creation succeeds.

use crate::ranks;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::AsRawFd;
use transom::bytemuck::Pod;
use transom::collective::ValueLoc;
use transom::{Distribution, Error, Status, Window, World};

/// All ranks go on.
fn another_window_works(world: &World) {
    let mut window: Window<u64> = world.allocate(1).unwrap();
    let epoch = window.fence().unwrap();
    epoch.target((world.rank() + 1) % world.size()).unwrap().put(0, &[7]).unwrap();
    window.fence().unwrap();
    assert_eq!(window.local().get(0).unwrap(), 7);
}

#[test]
fn invalid_size_is_refused_at_all_ranks() {
    ranks::on_all_sizes("invalid_size_is_refused_at_all_ranks", |world: World| {
        assert!(matches!(world.allocate::<u64>(usize::MAX).map(drop), Err(Error::Size { window: 0, .. })));
        assert!(matches!(world.allocate::<()>(5).map(drop), Err(Error::Size { .. })));
        for (rank, len) in [(0, usize::MAX / 8), (world.size() - 1, usize::MAX)] {
            let len = if world.rank() == rank { len } else { 1 };
            let error = world.allocate::<u64>(len).map(drop).unwrap_err();
            assert!(len > 1 || error.to_string().contains(&format!("rank {rank} ")), "{error}");
        }
        assert!(matches!(world.allocate_with_signals::<u8>(1, usize::MAX / 8), Err(Error::Size { .. })));
        another_window_works(&world);
    });
}

#[test]
fn mismatched_windows_are_refused_at_all_ranks() {
    ranks::on(&[2, 3, 4, 8], "mismatched_windows_are_refused_at_all_ranks", |world| {
        let outcome = match world.rank() {
            0 => world.allocate::<u64>(4).map(drop),
            _ => world.allocate::<[u8; 3]>(4).map(drop),
        };
        assert!(matches!(outcome, Err(Error::Mismatch { rank: 1, .. })), "{outcome:?}");
        let outcome = match world.rank() {
            0 => world.allocate::<u64>(4).map(drop),
            _ => world.allocate::<f64>(4).map(drop),
        };
        let error = outcome.unwrap_err().to_string();
        assert!(
            error.starts_with("rank 0 makes window 1 (allocate) of u64, rank 1 makes window 1 (allocate) of f64"),
            "{error}"
        );
        another_window_works(&world);
    });
}

/// Types of one size are distinguished by name, but not by their path in a program.
#[test]
fn element_types_of_equal_size_are_distinguished() {
    mod ocean {
        #[derive(Clone, Copy, transom::bytemuck::Pod, transom::bytemuck::Zeroable)]
        #[bytemuck(crate = "transom::bytemuck")]
        #[repr(C)]
        pub struct Cell(pub [f64; 2]);
    }
    mod air {
        #[derive(Clone, Copy, transom::bytemuck::Pod, transom::bytemuck::Zeroable)]
        #[bytemuck(crate = "transom::bytemuck")]
        #[repr(C)]
        pub struct Cell(pub [f64; 2]);
    }
    fn made<T: Pod>(world: &World, how: u32) -> Result<(), Error> {
        let value = T::zeroed;
        match how {
            0 => world.allocate::<T>(4).map(drop),
            1 => world.array::<T, 1>([10], Distribution::Block).map(drop),
            2 => world.mutex(0, value()).map(drop),
            _ => world.rw_locks(10, |_| value()).map(drop),
        }
    }
    ranks::on(&[2, 3, 4], "element_types_of_equal_size_are_distinguished", |world| {
        let first = world.rank() == 0;
        for how in 0..4 {
            let made = if first { made::<ValueLoc<f64>>(&world, how) } else { made::<ValueLoc<u64>>(&world, how) };
            let error = made.unwrap_err().to_string();
            assert!(error.contains("of ValueLoc<f64> (16 B)") && error.contains("of ValueLoc<u64> (16 B)"), "{error}");
        }
        let cells = match first {
            true => world.mutex(0, ocean::Cell([1.0, 2.0])).map(|cell| cell.lock().map(|cell| cell.0)),
            false => world.mutex(0, air::Cell([0.0, 0.0])).map(|cell| cell.lock().map(|cell| cell.0)),
        };
        assert_eq!(cells.unwrap().unwrap(), [1.0, 2.0]);
        world.barrier().unwrap();
        another_window_works(&world);
    });
}

/// Rank 0 can open no further file than its own part, so it cannot map the others' parts.
#[test]
fn rank_out_of_descriptors_leaves_others_working() {
    for size in [2, 3, 4, 8] {
        let name = "rank_out_of_descriptors_leaves_others_working";
        let ran = ranks::outcome_of(size, name, |world| {
            let before = getrlimit(Resource::Nofile);
            if world.rank() == 0 {
                // Descriptors are numbered from below: the limit admits the rank's own part and no more.
                let most = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64 + 1;
                setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..before }).unwrap();
            }
            let error = world.allocate::<u64>(1).map(drop).unwrap_err();
            assert!(world.rank() == 0 || error.to_string().contains("rank 0 "), "{error}");
            setrlimit(Resource::Nofile, before).unwrap();
            another_window_works(&world);
        });
        let Some(outcome) = ran else { return };
        for (rank, status) in outcome.statuses().iter().enumerate() {
            let output = String::from_utf8_lossy(outcome.output(rank));
            assert_eq!(*status, Status::Exited(0), "{size} ranks, rank {rank}:\n{output}");
        }
    }
}

/// A window keeps memory but no descriptor: the descriptor is closed when all ranks have mapped the memory.
#[test]
fn many_windows_need_few_descriptors() {
    ranks::on(&[1, 2, 4], "many_windows_need_few_descriptors", |world| {
        let before = getrlimit(Resource::Nofile);
        let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
        setrlimit(Resource::Nofile, Rlimit { current: Some(next + 8 * world.size() as u64), ..before }).unwrap();
        let windows: Vec<Window<u64>> = (0..ranks::rounds(300)).map(|_| world.allocate(1).unwrap()).collect();
        let values: Vec<_> = (0..ranks::rounds(300)).map(|_| world.mutex(0, 1u8).unwrap()).collect();
        setrlimit(Resource::Nofile, before).unwrap();
        *values[values.len() - 1].lock().unwrap() += 1;
        drop((windows, values));
        another_window_works(&world);
    });
}

#[test]
fn descriptor_limit_is_named_in_the_error() {
    for size in [1, 2] {
        let ran = ranks::outcome_of(size, "descriptor_limit_is_named_in_the_error", |world| {
            let before = getrlimit(Resource::Nofile);
            let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
            setrlimit(Resource::Nofile, Rlimit { current: Some(next), ..before }).unwrap();
            let error = world.allocate::<u64>(1).map(drop).unwrap_err().to_string();
            setrlimit(Resource::Nofile, before).unwrap();
            assert!(error.contains(&format!("{next} files at once")) && error.contains("ulimit -n"), "{error}");
        });
        let Some(outcome) = ran else { return };
        let output = String::from_utf8_lossy(outcome.output(0));
        assert!(outcome.success(), "{size} ranks: {outcome}\n{output}");
    }
}
