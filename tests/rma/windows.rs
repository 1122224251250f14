//! Every call on every kind of memory, in every kind of epoch; and the properties of each kind of memory.

use crate::overlap;
use crate::ranks;
use overlap::Overlapping;
use ranks::told;
use transom::provider::Provider;
use transom::shm_loopback::Loopback;
use transom::windows::{Attached, Request, Target};
use transom::{Address, Assert, Error, Flavor, Local, Mode, Op, Rank, Section, Window, World};

type At<'e> = Target<'e, u64, Provider>;

const KINDS: [&str; 4] = ["allocate", "shared", "create", "dynamic"];

/// The kinds that exist here: `shared` needs memory that all ranks share.
fn kinds(world: &World) -> impl Iterator<Item = &'static str> {
    let shared = ranks::share_memory(world);
    KINDS.into_iter().filter(move |&kind| shared || kind != "shared")
}

/// A window, and the memory that each rank has attached to it.
struct Made {
    window: Window<u64>,
    attached: Vec<Attached<Provider>>,
    mine: Option<Address>,
}

fn make(world: &World, kind: &str, len: usize) -> Made {
    let flavor = match kind {
        "allocate" => Flavor::Allocate { len },
        "shared" => Flavor::Shared { len },
        "create" => Flavor::Create(vec![0; len]),
        _ => Flavor::Dynamic { slots: 1 },
    };
    let mut window = world.window(flavor, 1).unwrap();
    let mine = (kind == "dynamic").then(|| window.attach(len).unwrap());
    let addresses = mine.map_or(Vec::new(), |mine| told(world, mine));
    let attached = addresses.iter().map(|address| window.reach(address).unwrap()).collect();
    Made { window, attached, mine }
}

impl Made {
    /// Calls `each` on every target in every kind of epoch, one kind after the other; returns how many kinds there are.
    fn in_every_epoch(&mut self, world: &World, each: impl Fn(&str, &At<'_>)) -> usize {
        let (window, attached) = (&mut self.window, &self.attached);
        let all: Vec<Rank> = (0..world.size()).collect();
        let on = |epoch: &str, target: &At<'_>| match attached.get(target.rank()) {
            Some(memory) => each(epoch, &target.attached(memory).unwrap()),
            None => each(epoch, target),
        };
        let epoch = window.fence().unwrap();
        all.iter().for_each(|&rank| on("fence", &epoch.target(rank).unwrap()));
        window.fence().unwrap();

        window.post(&all).unwrap();
        let epoch = window.start(&all).unwrap();
        all.iter().for_each(|&rank| on("start", &epoch.target(rank).unwrap()));
        epoch.complete().unwrap();
        window.wait().unwrap();

        for &rank in &all {
            let epoch = window.lock_exclusive(rank).unwrap();
            on("lock_exclusive", &epoch);
            epoch.unlock().unwrap();
            let epoch = window.lock_shared(rank).unwrap();
            on("lock_shared", &epoch);
            epoch.unlock().unwrap();
        }
        let epoch = window.lock_all().unwrap();
        all.iter().for_each(|&rank| on("lock_all", &epoch.target(rank).unwrap()));
        epoch.flush_all().and(epoch.flush_local_all()).unwrap();
        epoch.unlock().unwrap();

        // No rank locks exclusively from here on.
        world.barrier().unwrap();
        for &rank in &all {
            let epoch = window.lock_with(rank, Mode::Shared, Assert::NOCHECK).unwrap();
            on("lock_with", &epoch);
            epoch.unlock().unwrap();
        }
        let epoch = window.lock_all_with(Assert::NOCHECK).unwrap();
        all.iter().for_each(|&rank| on("lock_all_with", &epoch.target(rank).unwrap()));
        epoch.unlock().unwrap();
        world.barrier().unwrap();
        7
    }

    /// This rank's own part.
    fn part(&self) -> Vec<u64> {
        let local = self.window.local();
        let local = self.mine.map_or(local, |mine| self.window.local().attached(&mine).unwrap());
        local.read(0, local.len()).unwrap()
    }
}

/// A call on elements from `at` on, which were [`BEFORE`]: the number of elements that it touches, the values that it
/// returns, and the values that it leaves.
struct Call {
    name: &'static str,
    touches: usize,
    call: fn(&At<'_>, usize) -> Result<Vec<u64>, Error>,
    gives: &'static [u64],
    leaves: [u64; 4],
}

const BEFORE: [u64; 4] = [10, 20, 30, 40];
const TWO: [u64; 2] = [1, 2];

fn calls() -> Vec<Call> {
    let plain = |name, touches, call, gives, leaves| Call { name, touches, call, gives, leaves };
    vec![
        plain("put", 2, |t, at| t.put(at, &TWO).map(|()| vec![]), &[], [1, 2, 30, 40]),
        plain("put_signal", 2, |t, at| t.put_signal(at, &TWO, 0, 3).map(|()| vec![]), &[], [1, 2, 30, 40]),
        plain(
            "put_section, contiguous",
            2,
            |t, at| t.put_section(&Section::Contiguous { offset: at, len: 2 }, &TWO).map(|()| vec![]),
            &[],
            [1, 2, 30, 40],
        ),
        plain(
            "put_section, strided",
            3,
            |t, at| {
                let strided = Section::Strided { offset: at, count: 2, block: 1, stride: 2 };
                t.put_section(&strided, &TWO).map(|()| vec![])
            },
            &[],
            [1, 20, 2, 40],
        ),
        plain(
            "put_section, tile",
            4,
            |t, at| {
                let tile = Section::Tile { offset: at, rows: 2, columns: 1, row_length: 3 };
                t.put_section(&tile, &TWO).map(|()| vec![])
            },
            &[],
            [1, 20, 30, 2],
        ),
        plain(
            "put_section, indexed",
            4,
            |t, at| {
                let offsets = [at.saturating_add(3), at];
                t.put_section(&Section::Indexed { offsets: &offsets, block: 1 }, &TWO).map(|()| vec![])
            },
            &[],
            [2, 20, 30, 1],
        ),
        plain("rput", 2, |t, at| t.rput(at, TWO.to_vec())?.wait(), &[1, 2], [1, 2, 30, 40]),
        plain(
            "get",
            3,
            |t, at| {
                let mut into = vec![0; 3];
                t.get(at, &mut into).map(|()| into)
            },
            &[10, 20, 30],
            BEFORE,
        ),
        plain("get_one", 1, |t, at| t.get_one(at).map(|one| vec![one]), &[10], BEFORE),
        plain(
            "get_section",
            3,
            |t, at| {
                let (strided, mut into) = (Section::Strided { offset: at, count: 2, block: 1, stride: 2 }, vec![0; 2]);
                t.get_section(&strided, &mut into).map(|()| into)
            },
            &[10, 30],
            BEFORE,
        ),
        plain("rget", 4, |t, at| t.rget(at, 4)?.wait(), &BEFORE, BEFORE),
        plain("accumulate", 2, |t, at| t.accumulate(at, Op::Sum, &TWO).map(|()| vec![]), &[], [11, 22, 30, 40]),
        plain(
            "accumulate, replace",
            2,
            |t, at| t.accumulate(at, Op::Replace, &TWO).map(|()| vec![]),
            &[],
            [1, 2, 30, 40],
        ),
        plain(
            "get_accumulate",
            2,
            |t, at| {
                let mut was = vec![0; 2];
                t.get_accumulate(at, Op::Max, &[15, 15], &mut was).map(|()| was)
            },
            &[10, 20],
            [15, 20, 30, 40],
        ),
        plain("fetch_and_op", 1, |t, at| t.fetch_and_op(at, Op::Sum, 5).map(|was| vec![was]), &[10], [15, 20, 30, 40]),
        plain("fetch_and_op, no op", 1, |t, at| t.fetch_and_op(at, Op::NoOp, 5).map(|was| vec![was]), &[10], BEFORE),
        plain(
            "compare_and_swap",
            1,
            |t, at| t.compare_and_swap(at, 10, 7).map(|was| vec![was]),
            &[10],
            [7, 20, 30, 40],
        ),
        plain("raccumulate", 2, |t, at| t.raccumulate(at, Op::Xor, TWO.to_vec())?.wait(), &[1, 2], [11, 22, 30, 40]),
        plain(
            "rget_accumulate",
            2,
            |t, at| t.rget_accumulate(at, Op::Prod, TWO.to_vec())?.wait(),
            &[10, 20],
            [10, 40, 30, 40],
        ),
    ]
}

/// On parts of different sizes, one of them empty: each rank works on elements of its own.
fn every_call(world: &World, kind: &str) {
    let (me, n) = (world.rank(), world.size());
    let size = |rank: Rank| if n > 1 && rank == n - 1 { 0 } else { 4 * n + rank };
    let mut made = make(world, kind, size(me));
    let epochs = made.in_every_epoch(world, |epoch, target| {
        assert_eq!((target.len(), target.is_empty()), (size(target.rank()), size(target.rank()) == 0));
        for Call { name, touches, call, gives, leaves } in calls() {
            let what = format!("{name} on {kind} of {} in {epoch}", target.rank());
            let refused = |at: usize| match call(target, at) {
                Err(Error::OutOfBounds { rank, size, .. }) => assert_eq!((rank, size), (target.rank(), target.len())),
                other => panic!("{what} from {at} of {}: {other:?}", target.len()),
            };
            [target.len(), target.len() + 1, usize::MAX / 2].into_iter().for_each(refused);
            if target.is_empty() {
                continue;
            }
            refused(target.len() - touches + 1);
            target.put(4 * me, &BEFORE).unwrap();
            target.flush().and(target.flush_local()).unwrap();
            let given = call(target, 4 * me);
            target.flush().unwrap();
            let mut left = [0; 4];
            target.get(4 * me, &mut left).unwrap();
            assert_eq!((given.unwrap(), left), (gives.to_vec(), leaves), "{what}");
        }
        // Empty accesses, anywhere inside.
        for at in 0..=target.len() {
            target.put(at, &[]).and(target.get(at, &mut [])).and(target.accumulate(at, Op::Sum, &[])).unwrap();
            assert_eq!(target.rget(at, 0).unwrap().wait().unwrap(), [0u64; 0]);
        }
    });
    made.window.fence().unwrap();
    let part = made.part();
    assert_eq!(part.len(), size(me));
    // The last call leaves the same values in each epoch; elements behind those of the ranks are untouched.
    assert!(part.iter().skip(4 * n).all(|&element| element == 0), "{part:?}");
    let given = if part.is_empty() { 0 } else { 3 * epochs * n };
    assert_eq!(made.window.signals().read(0).unwrap(), given as u64, "signal count differs from the put_signal calls");
    let back = made.window.free().unwrap();
    assert_eq!(back, if kind == "create" { part } else { vec![] });
}

#[test]
fn every_call_works_on_every_kind_of_memory() {
    ranks::on_all_sizes("every_call_works_on_every_kind_of_memory", |world| {
        kinds(&world).for_each(|kind| every_call(&world, kind));
    });
}

#[test]
fn every_call_works_on_team_windows() {
    ranks::on(&[3, 4], "every_call_works_on_team_windows", |world| {
        let team = world.split(Some(world.rank() as u64 % 2), (world.size() - world.rank()) as u64).unwrap().unwrap();
        kinds(&team).for_each(|kind| every_call(&team, kind));
    });
}

#[test]
fn missing_target_is_refused_in_every_epoch() {
    ranks::on_all_sizes("missing_target_is_refused_in_every_epoch", |world| {
        let n = world.size();
        for kind in kinds(&world) {
            let mut window = make(&world, kind, 2).window;
            let none = |outcome: Result<(), Error>| match outcome {
                Err(Error::NoSuchRank { rank, size, .. }) => assert_eq!((rank, size), (n, n)),
                other => panic!("{other:?}"),
            };
            none(window.lock_exclusive(n).map(drop));
            none(window.lock_shared(n).map(drop));
            none(window.lock_with(n, Mode::Exclusive, Assert::NOCHECK).map(drop));
            none(window.lock_all().unwrap().target(n).map(drop));
            none(window.start(&[]).unwrap().target(n).map(drop));
            none(window.local().of(n).map(drop));
            none(window.fence().unwrap().target(n).map(drop));
            window.fence().unwrap();
        }
    });
}

#[test]
fn mismatched_flavors_are_refused_at_all_ranks() {
    ranks::on(&[2, 3, 4], "mismatched_flavors_are_refused_at_all_ranks", |world| {
        let kind = |odd: bool| if odd { Flavor::Allocate { len: 1 } } else { Flavor::Create(vec![1u64]) };
        let made = world.window(kind(world.rank() == 1), 0);
        let error = made.map(drop).unwrap_err().to_string();
        let named = "rank 0 makes window 0 (create) of u64, rank 1 makes window 0 (allocate) of u64";
        assert!(error.starts_with(named), "{error}");
        world.barrier().unwrap();
    });
}

#[test]
fn window_beside_a_split_is_refused() {
    ranks::on(&[2, 3, 4], "window_beside_a_split_is_refused", |world| {
        let splits = world.rank() == 1;
        let error = match splits {
            true => world.split(Some(0), 0).map(drop).unwrap_err().to_string(),
            false => world.allocate::<u64>(3).map(drop).unwrap_err().to_string(),
        };
        let says: &[&str] = match splits {
            true => &["split: ", " makes a window or value, rank 1 calls split, as collective number 1"],
            false => &["rank 1 makes a different collective call, perhaps a team"],
        };
        assert!(says.iter().all(|says| error.contains(says)), "{error}");
        // Collectives of the world have failed for good; windows can still be made.
        assert!(world.split(Some(0), 0).is_err());
        let mut window: Window<u64> = world.allocate(1).unwrap();
        window.fence().unwrap();
    });
}

#[test]
fn shared_window_parts_are_loaded_and_stored() {
    ranks::on_all_sizes("shared_window_parts_are_loaded_and_stored", |world| {
        let (me, n) = (world.rank(), world.size());
        if !ranks::share_memory(&world) {
            assert!(matches!(world.allocate_shared::<u64>(n + me).map(drop), Err(Error::NotShared { .. })));
        }
        for kind in kinds(&world).filter(|kind| ["shared", "allocate"].contains(kind)) {
            let mut window = make(&world, kind, n + me).window;
            // If not all ranks share memory, the ranks of one host do.
            let here: Vec<Rank> = (0..n).filter(|&rank| window.local().of(rank).is_ok()).collect();
            assert!(here.len() == n || here.contains(&me) && !ranks::share_memory(&world), "{here:?}");
            for &rank in &here {
                let part = window.local().of(rank).unwrap();
                assert_eq!((part.len(), part.is_empty()), (n + rank, false));
                part.set(me, (10 * me + rank) as u64).unwrap();
                assert!(matches!(part.set(n + rank, 1), Err(Error::OutOfBounds { rank: named, .. }) if named == rank));
                assert!(part.read(1, n + rank).is_err() && part.write(usize::MAX, &[1]).is_err());
            }
            assert_eq!((window.counters().puts, window.counters().locks), (0, 0));
            window.fence().unwrap();
            for &rank in &here {
                let stored = |origin| if here.contains(&origin) { (10 * origin + rank) as u64 } else { 0 };
                let expected: Vec<u64> = (0..n).map(stored).collect();
                assert_eq!(window.local().of(rank).unwrap().read(0, n).unwrap(), expected);
            }
            window.fence().unwrap();
        }
        for kind in ["create", "dynamic"] {
            let window = make(&world, kind, 2).window;
            window.local().of(me).unwrap();
            let other = (me + 1) % n;
            if kind == "create" && other != me {
                let error = window.local().of(other).err().unwrap();
                assert!(matches!(error, Error::NotShared { rank, .. } if rank == other), "{error}");
            }
            world.barrier().unwrap();
        }
    });
}

#[test]
fn slices_alias_the_window_memory() {
    ranks::on_all_sizes("slices_alias_the_window_memory", |world| {
        let (me, n) = (world.rank(), world.size());
        for kind in kinds(&world).filter(|kind| ["shared", "create"].contains(kind)) {
            let mut window = make(&world, kind, 4 + me).window;
            // SAFETY: until the next fence nobody touches another's part.
            let mine = unsafe { window.local().as_mut_slice(1, 2) }.unwrap();
            mine.copy_from_slice(&[me as u64, 7]);
            window.fence().unwrap();
            for rank in (0..n).filter(|_| kind == "shared") {
                // SAFETY: until the next fence nobody writes.
                assert_eq!(unsafe { window.local().of(rank).unwrap().as_slice(0, 4) }.unwrap(), [0, rank as u64, 7, 0]);
            }
            let mut got = [0; 3];
            window.lock_shared((me + 1) % n).unwrap().get(1, &mut got).unwrap();
            assert_eq!(got, [((me + 1) % n) as u64, 7, 0]);
            window.fence().unwrap();
            let local = window.local();
            // SAFETY: there are no elements in them.
            let (none, outside) =
                unsafe { (local.as_slice(4 + me, 0), [local.as_slice(3 + me, 2), local.as_slice(5 + me, 0)]) };
            assert!(none.unwrap().is_empty());
            // SAFETY: as above.
            let huge = unsafe { [local.as_mut_slice(1, usize::MAX), local.as_mut_slice(usize::MAX, 1)] };
            let outside = outside.into_iter().map(Result::err).chain(huge.into_iter().map(Result::err));
            for error in outside {
                assert!(matches!(error, Some(Error::OutOfBounds { rank, .. }) if rank == me), "{error:?}");
            }
        }
    });
}

/// `Fabric` is a safe trait: its answers are checked before they become a slice.
#[test]
fn slice_from_an_incorrect_provider_is_refused() {
    for (fabric, right) in [(Overlapping::counting as fn(_) -> _, true), (Overlapping::halving, false)] {
        let fabric = fabric(Loopback::alone().unwrap());
        let window = transom::windows::Window::<u64, _>::allocate(&fabric, 0, 8).unwrap();
        for local in [window.local(), window.local().of(0).unwrap()] {
            // SAFETY: nobody else is there, and one slice lives at a time.
            let found = unsafe { [local.as_slice(0, 8).map(<[u64]>::len), local.as_mut_slice(2, 6).map(|s| s.len())] };
            match found {
                [Ok(8), Ok(6)] => assert!(right, "slice is longer than the memory of the provider"),
                [Err(Error::NotShared { .. }), Err(Error::NotShared { .. })] => assert!(!right),
                found => panic!("{found:?}"),
            }
        }
    }
}

/// Synchronises by own words and `sync`, as a program on shared memory does.
#[test]
fn sync_orders_loads_and_stores() {
    ranks::on(&[2, 3], "sync_orders_loads_and_stores", |world| {
        let me = world.rank();
        if !ranks::share_memory(&world) {
            return;
        }
        let window = make(&world, "shared", 2).window;
        for round in 1..=500 {
            if me == 0 {
                window.local().set(0, round).unwrap();
                window.sync();
                window.local().set(1, round).unwrap();
            } else {
                let theirs = window.local().of(0).unwrap();
                while theirs.get(1).unwrap() < round {
                    std::thread::yield_now();
                }
                window.sync();
                assert!(theirs.get(0).unwrap() >= round);
            }
        }
        world.barrier().unwrap();
    });
}

/// Two ranks each set a word of their own, then read the other's: at least one must find it set. Without `sync` a
/// processor lets a load pass an earlier store. x86 reorders only that.
#[test]
fn sync_keeps_loads_behind_earlier_stores() {
    const ROUNDS: usize = 20_000;
    const LINE: usize = 8;
    ranks::on(&[2], "sync_keeps_loads_behind_earlier_stores", |world| {
        if !ranks::share_memory(&world) {
            return;
        }
        let (me, rounds) = (world.rank(), ranks::rounds(ROUNDS));
        // A line for each round: its word, and the value that its rank found. The last line has this rank's round.
        let window = make(&world, "shared", LINE * (ROUNDS + 1)).window;
        let (mine, theirs) = (window.local(), window.local().of(1 - me).unwrap());
        for round in 0..rounds {
            mine.set(LINE * ROUNDS, round as u64 + 1).unwrap();
            // Both ranks run at once. With less than a core each they take turns, which finds nothing.
            for look in 0.. {
                match theirs.get(LINE * ROUNDS).unwrap() {
                    there if there > round as u64 => break,
                    _ if look > 1_000 => std::thread::yield_now(),
                    _ => std::hint::spin_loop(),
                }
            }
            mine.set(LINE * round, 1).unwrap();
            window.sync();
            let found = theirs.get(LINE * round).unwrap();
            mine.set(LINE * round + 1, found).unwrap();
        }
        world.barrier().unwrap();
        let saw = |part: &Local<'_, u64>, round| part.get(LINE * round + 1).unwrap() == 1;
        let neither = (0..rounds).filter(|&round| !saw(&mine, round) && !saw(&theirs, round)).count();
        assert_eq!(neither, 0, "rounds of {rounds} in which neither saw the other");
    });
}

/// `wait_any` and its siblings behave the same on memory of every kind.
#[test]
fn requests_work_on_every_kind_of_memory() {
    ranks::on_all_sizes("requests_work_on_every_kind_of_memory", |world| {
        for kind in kinds(&world) {
            let mut made = make(&world, kind, 4);
            let (window, attached) = (&mut made.window, &made.attached);
            let epoch = window.lock_exclusive(0).unwrap();
            let inner = attached.first().map(|memory| epoch.attached(memory).unwrap());
            let target: &At<'_> = inner.as_ref().unwrap_or(&epoch);
            target.rput(0, vec![1, 2, 3, 4]).unwrap().wait().unwrap();
            target.flush().unwrap();
            let gets: Vec<_> = (0..4).map(|at| target.rget(at, 4 - at).unwrap()).collect();
            let got = Request::wait_all(gets).unwrap();
            assert_eq!(got, [&[1, 2, 3, 4][..], &[2, 3, 4], &[3, 4], &[4]]);
            epoch.unlock().unwrap();
            window.fence().unwrap();
        }
    });
}
