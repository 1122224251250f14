//! Gets and puts under way on slices that the program lends, until a scope ends.

mod ranks;
use std::panic::{AssertUnwindSafe, catch_unwind};
use transom::{Error, Window, World, scope};

/// Short ones, those of middle length, and long ones, which each go another way over a network.
const LENGTHS: [usize; 5] = [0, 1, 100, 20_000, 200_000];

fn filled(world: &World) -> Window<u64> {
    let window: Window<u64> = world.allocate(LENGTHS[4]).unwrap();
    let mine: Vec<u64> = (0..LENGTHS[4]).map(|i| (1_000_000 * world.rank() + i) as u64).collect();
    window.local().write(0, &mine).unwrap();
    window
}

#[test]
fn what_was_got_is_there_when_the_scope_ends() {
    ranks::on_all_sizes("what_was_got_is_there_when_the_scope_ends", |world: World| {
        let n = world.size();
        let mut window = filled(&world);
        window.fence().unwrap();
        let epoch = window.lock_all().unwrap();
        let targets: Vec<_> = (0..n).map(|rank| epoch.target(rank).unwrap()).collect();
        let mut got: Vec<Vec<u64>> = (0..n * LENGTHS.len()).map(|i| vec![7; LENGTHS[i % LENGTHS.len()]]).collect();
        let place = |i: usize| (i / LENGTHS.len(), LENGTHS[4] - LENGTHS[i % LENGTHS.len()]);
        let right = |i: usize, got: &[u64]| {
            let (rank, first) = place(i);
            got.iter().enumerate().all(|(at, got)| *got == (1_000_000 * rank + first + at) as u64)
        };
        let waited: usize = scope(|scope| {
            let mut waited = 0;
            for (i, into) in got.iter_mut().enumerate() {
                let (rank, first) = place(i);
                let coming = scope.get(&targets[rank], first, into)?;
                // Some are waited for one by one.
                if i % 3 == 0 {
                    while !coming.test()? {}
                    assert!(right(i, coming.wait()?), "number {i}, waited for");
                    waited += 1;
                }
            }
            Ok::<usize, Error>(waited)
        })
        .unwrap();
        assert_eq!(waited, got.len().div_ceil(3));
        assert!(got.iter().enumerate().all(|(i, got)| got.len() == LENGTHS[i % LENGTHS.len()] && right(i, got)));
        epoch.unlock().unwrap();
        window.fence().unwrap();
    });
}

#[test]
fn sources_are_free_after_the_scope_and_seen_after_the_epoch() {
    ranks::on_all_sizes("sources_are_free_after_the_scope_and_seen_after_the_epoch", |world: World| {
        let (me, n) = (world.rank(), world.size());
        let mut window: Window<u64> = world.allocate(LENGTHS.iter().sum::<usize>()).unwrap();
        let epoch = window.fence().unwrap();
        let next = epoch.target((me + 1) % n).unwrap();
        let mut sources: Vec<Vec<u64>> =
            LENGTHS.iter().map(|&len| (0..len).map(|i| (i + me) as u64).collect()).collect();
        scope(|scope| {
            let mut first = 0;
            for source in &sources {
                scope.put(&next, first, source)?;
                first += source.len();
            }
            Ok::<(), Error>(())
        })
        .unwrap();
        sources.iter_mut().for_each(|source| source.fill(u64::MAX)); // nobody reads it any more
        window.fence().unwrap();
        let before = (me + n - 1) % n;
        let got = window.local().read(0, LENGTHS.iter().sum()).unwrap();
        let expected: Vec<u64> = LENGTHS.iter().flat_map(|&len| (0..len).map(|i| (i + before) as u64)).collect();
        assert!(got == expected);
        window.fence().unwrap();
    });
}

/// Whatever ends the body, what it had started is over when the scope is.
#[test]
fn what_is_not_waited_for_is_over_all_the_same() {
    ranks::on_all_sizes("what_is_not_waited_for_is_over_all_the_same", |world: World| {
        let (me, n) = (world.rank(), world.size());
        let mut window = filled(&world);
        window.fence().unwrap();
        let epoch = window.lock_all().unwrap();
        let next = epoch.target((me + 1) % n).unwrap();
        let first = (1_000_000 * ((me + 1) % n)) as u64;
        for len in LENGTHS {
            let mut into = vec![7; len];
            let get = |into: &mut Vec<u64>, end: fn() -> Result<(), Error>| {
                scope(|scope| {
                    scope.get(&next, 0, into)?;
                    end()
                })
            };
            let there = |into: &[u64]| into.iter().enumerate().all(|(i, one)| *one == first + i as u64);
            let failed = get(&mut into, || Err(Error::NoSuchRank { window: 0, rank: 99, size: 1 }));
            assert!(matches!(failed, Err(Error::NoSuchRank { rank: 99, .. })), "what the body says");
            assert!(there(&into), "after an error, {len}");
            into.fill(7);
            assert!(catch_unwind(AssertUnwindSafe(|| get(&mut into, || panic!("on purpose")))).is_err());
            assert!(there(&into), "after a panic, {len}");
            into.fill(7);
        }
        // What is outside is refused at once, and the rest goes on.
        let (mut good, mut bad) = ([0; 2], [7; 2]);
        scope(|scope| {
            scope.get(&next, 0, &mut good)?;
            assert!(matches!(scope.get(&next, LENGTHS[4] - 1, &mut bad), Err(Error::OutOfBounds { len: 2, .. })));
            assert!(matches!(scope.put(&next, usize::MAX, &[1]), Err(Error::OutOfBounds { .. })));
            Ok::<(), Error>(())
        })
        .unwrap();
        assert_eq!((good, bad), ([first, first + 1], [7; 2]));
        epoch.unlock().unwrap();
        window.fence().unwrap();
    });
}
