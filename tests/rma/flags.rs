//! Waits for flags by all ranks, and for the value of an element.

use crate::ranks;
use std::time::Duration;
use transom::{Distribution, Error, World};

#[test]
fn flag_set_by_any_rank_is_seen_by_all() {
    ranks::on_all_sizes("flag_set_by_any_rank_is_seen_by_all", |world: World| {
        let (me, n) = (world.rank(), world.size());
        let flags = world.flags(n).unwrap();
        assert_eq!((flags.len(), flags.is_empty()), (n, false));
        for round in 0..ranks::rounds(50) {
            for flag in 0..n {
                if me == (flag + round) % n {
                    flags.set(flag).unwrap();
                }
                flags.wait(flag).unwrap();
            }
            world.barrier().unwrap();
            if me == round % n {
                (0..n).for_each(|flag| flags.clear(flag).unwrap());
            }
            world.barrier().unwrap();
            while (0..n).any(|flag| flags.is_set(flag).unwrap()) {
                assert!(
                    !ranks::share_memory(&world),
                    "clear before a barrier is not visible after it in shared memory"
                );
                std::thread::yield_now();
            }
            world.barrier().unwrap();
        }
        assert!(!flags.wait_for(0, Duration::from_millis(2)).unwrap());
        world.barrier().unwrap();
    });
}

#[test]
fn flag_set_wakes_ranks_that_sleep() {
    ranks::on(&[2, 3], "flag_set_wakes_ranks_that_sleep", |world: World| {
        let flags = world.flags(1).unwrap();
        if world.rank() == 0 {
            std::thread::sleep(Duration::from_millis(50));
            flags.set(0).unwrap();
        }
        flags.wait(0).unwrap();
        assert!(flags.is_set(0).unwrap());
        world.barrier().unwrap();
    });
}

#[test]
fn flag_misuse_is_an_error() {
    ranks::on_all_sizes("flag_misuse_is_an_error", |world: World| {
        let flags = world.flags(2).unwrap();
        let refused = [flags.set(2), flags.clear(7), flags.wait(2), flags.is_set(2).map(drop)];
        for result in refused {
            let error = result.unwrap_err();
            assert!(matches!(error, Error::NoSuchFlag { flags: 0, len: 2, .. }), "{error}");
        }
        let made = world.flags(if world.rank() == 0 { 3 } else { 4 });
        match made {
            Ok(flags) => assert_eq!((world.size(), flags.len()), (1, 3)),
            Err(error) => assert!(matches!(error, Error::Mismatch { rank: 1, .. }), "{error}"),
        }
        world.barrier().unwrap();
    });
}

#[test]
fn element_put_by_others_ends_the_wait() {
    ranks::on_all_sizes("element_put_by_others_ends_the_wait", |world: World| {
        let (me, n) = (world.rank(), world.size());
        let mut array = world.array::<u64, 1>([2 * n], Distribution::Block).unwrap();
        let (next, before) = ((me + 1) % n, (me + n - 1) % n);
        for round in 1..=ranks::rounds(30) as u64 {
            let epoch = array.lock_all().unwrap();
            // The data, then the word.
            epoch.put_one(2 * next + 1, 1000 * round + me as u64).unwrap();
            epoch.flush().unwrap();
            epoch.store(2 * next, round).unwrap();
            epoch.unlock().unwrap();
            let local = array.local();
            assert_eq!(local.wait_until(2 * me, |word| word >= round).unwrap(), round);
            assert_eq!(local.get_one(2 * me + 1).unwrap(), 1000 * round + before as u64);
            // The same, in another rank's memory.
            let epoch = array.lock_all().unwrap();
            assert_eq!(epoch.wait_until(2 * next, |word| word >= round).unwrap(), round);
            epoch.unlock().unwrap();
            world.barrier().unwrap();
        }
        let soon = Duration::from_millis(2);
        assert_eq!(array.local().wait_until_for(2 * me, soon, |word| word == u64::MAX).unwrap(), None);
        let epoch = array.lock_all().unwrap();
        assert_eq!(epoch.wait_until_for(2 * next, soon, |word| word == u64::MAX).unwrap(), None);
        assert!(matches!(epoch.wait_until(2 * n, |_| true), Err(Error::Array(_))));
        epoch.unlock().unwrap();
        world.barrier().unwrap();
    });
}

#[test]
fn wait_for_element_receives_messages() {
    // The sender sends a long message before it stores the word: it needs the receiver's engine to go on.
    ranks::on(&[2], "wait_for_element_receives_messages", |world: World| {
        const TAG: transom::messages::Tag<u64> = transom::messages::Tag::new(1);
        let mut window = world.allocate::<u64>(1).unwrap();
        let len = 1 << 18;
        if world.rank() == 0 {
            let got = world.irecv(1, TAG);
            assert_eq!(window.local().wait_until(0, |word| word != 0).unwrap(), 7);
            assert_eq!(got.wait().unwrap().len(), len);
        } else {
            world.send(0, TAG, &vec![1; len]).unwrap();
            window.lock_shared(0).unwrap().store(0, 7).unwrap();
        }
        world.barrier().unwrap();
    });
}
