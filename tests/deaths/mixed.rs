//! Ranks that die while messages, collectives and operations on windows are waited for together.

use crate::overlap::Overlapping;
use crate::ranks;
use ranks::{IN_TIME, VICTIM, die};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use transom::messages::{Error, Tag};
use transom::shm_loopback::Loopback;
use transom::{Op, Requests, Status, Window, World, wait_all, wait_any, windows};

const NEVER: Tag<u64> = Tag::new(1);

fn with_a_death(name: &str, body: impl Fn(World)) {
    for size in [2, 3] {
        let Some(outcome) = ranks::outcome_of(size, name, &body) else { return };
        ranks::only_failed(&outcome, VICTIM, Status::Killed(9));
    }
}

fn names_the_victim<T>(ended: Result<T, impl Into<Error>>) {
    let error = ended.err().map(Into::into).expect("a request that needs a dead rank fails");
    assert_eq!(error.lost_rank(), Some(VICTIM), "{error}");
}

#[test]
fn mixed_wait_names_the_dead_rank() {
    with_a_death("mixed_wait_names_the_dead_rank", |world| {
        let mut window: Window<u64> = world.allocate(1).unwrap();
        window.fence().unwrap();
        if world.rank() == VICTIM {
            std::thread::sleep(std::time::Duration::from_millis(50));
            die();
        }
        // An operation that stays in flight: the wait polls.
        let held = Arc::new(AtomicBool::new(true));
        let fabric = Overlapping::holding(Loopback::alone().unwrap(), &held);
        let mut own = windows::Window::<u64, _>::allocate(&fabric, 0, 1).unwrap();
        let epoch = own.lock_shared(0).unwrap();
        let begun = Instant::now();
        let (mut coming, mut word) = (world.irecv(VICTIM, NEVER), epoch.rget(0, 1).unwrap());
        assert_eq!(wait_any(&mut [&mut word, &mut coming]), Some(1));
        names_the_victim(coming.wait());
        let mut set: Requests<'_, _> = [world.iall_reduce(vec![1_u64], Op::Sum), word.into()].into_iter().collect();
        let (number, ended) = set.wait_any().unwrap();
        assert_eq!(number, 0);
        names_the_victim(ended);
        assert!(begun.elapsed() < ranks::within(2 * IN_TIME), "it took {:?}", begun.elapsed());
        std::mem::forget(set);
        std::mem::forget(epoch);
        // All requests end. Some operations succeed: the memory of the dead may be there.
        let epoch = match window.lock_all() {
            Ok(epoch) => epoch,
            // Its memory is not there.
            Err(error) if ranks::over_network() => return assert_eq!(error.lost_rank(), Some(VICTIM), "{error}"),
            Err(error) => panic!("{error}"),
        };
        let target = epoch.target(VICTIM).unwrap();
        let mut coming = world.irecv(VICTIM, NEVER);
        match target.rget(0, 1) {
            Ok(mut word) => {
                let ended = wait_all(&mut [&mut word, &mut coming]);
                assert!(matches!(ended, Err(Error::Request { .. })), "the receive fails");
                names_the_victim(ended);
                let _ = word.wait();
            }
            Err(_) => names_the_victim(wait_all(&mut [&mut coming])),
        }
        names_the_victim(coming.wait());
        assert!(begun.elapsed() < ranks::within(3 * IN_TIME), "it took {:?}", begun.elapsed());
        drop(epoch);
    });
}
