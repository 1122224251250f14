//! Mismatched or wrong collective calls, and operations that panic: errors on every rank, within seconds.

use crate::ranks;
use ranks::on;
use std::time::{Duration, Instant};
use transom::bytemuck::Pod;
use transom::collective::{Commutative, Grid, MaxLoc, Ragged, Reduction, ValueLoc};
use transom::messages::{Error, Source, Tag};
use transom::{Op, Section, World};

fn mismatch(
    name: &str,
    one: impl Fn(&World) -> Result<(), Error> + Sync,
    other: impl Fn(&World) -> Result<(), Error> + Sync,
) {
    mismatch_that_says(name, "", one, other);
}

/// Each rank fails within seconds, and so does every later call.
fn mismatch_that_says(
    name: &str,
    says: &str,
    one: impl Fn(&World) -> Result<(), Error> + Sync,
    other: impl Fn(&World) -> Result<(), Error> + Sync,
) {
    let body = |world: World| {
        let begun = Instant::now();
        world.all_reduce_one(1, Op::Sum).unwrap();
        // A rank that is still in the barrier when another rank fails may get its error there.
        world.barrier().unwrap();
        let odd = world.rank() == world.size() / 2;
        let first = if odd { other(&world) } else { one(&world) };
        // A rank whose call waits for no other gets the error from the next call.
        let second = world.all_reduce_one(1, Op::Sum);
        let error = first.and(second.map(drop)).unwrap_err();
        let told = matches!(error, Error::Mismatch { .. }) || odd && matches!(error, Error::Misuse { .. });
        assert!(told && error.to_string().contains(says), "{error}");
        assert!(begun.elapsed() < ranks::within(Duration::from_secs(6)), "{:?}", begun.elapsed());
        let again = world.all_reduce_one(1, Op::Sum).unwrap_err();
        assert!(matches!(again, Error::Mismatch { .. }), "{again}");
        // No rank leaves before all have their error.
        (0..world.size()).for_each(|rank| world.send(rank, Tag::new(1), &[1_u8]).unwrap());
        (0..world.size()).for_each(|_| drop(world.recv(Source::Any, Tag::<u8>::new(1)).unwrap()));
    };
    for variables in ranks::each(&[&[][..], ranks::BY_MESSAGES]) {
        ranks::on_with(variables, &[2, 3, 5], name, body);
    }
}

#[test]
fn different_lengths_are_reported() {
    mismatch(
        "different_lengths_are_reported",
        |w| w.all_reduce(&mut [1, 2], Op::Sum),
        |w| w.all_reduce(&mut [1, 2, 3], Op::Sum),
    );
}

fn split(world: &World) -> Result<(), Error> {
    world.split(Some(0), 0).map(drop).map_err(|error| Error::Mismatch { why: error.to_string() })
}

#[test]
fn split_beside_another_collective_is_reported() {
    mismatch_that_says("split_beside_another_collective_is_reported", "calls split", World::barrier, split);
}

#[test]
fn split_beside_a_started_collective_is_reported() {
    mismatch_that_says("split_beside_a_started_collective_is_reported", "calls split", split, |w| {
        w.iall_reduce(vec![1], Op::Sum).wait().map(drop).map_err(Error::from)
    });
}

/// The first window of a team makes the team's window space, by messages.
#[test]
fn first_window_beside_a_collective_is_reported() {
    on(&[2, 3], "first_window_beside_a_collective_is_reported", |world| {
        let begun = Instant::now();
        let team = world.split(Some(0), 0).unwrap().unwrap();
        let error = match world.rank() {
            0 => team.allocate::<u64>(1).map(drop).unwrap_err().to_string(),
            _ => team.barrier().unwrap_err().to_string(),
        };
        assert!(error.contains("rank 0 calls the creation of a window or value, rank 1 calls barrier"), "{error}");
        assert!(begun.elapsed() < ranks::within(Duration::from_secs(6)), "{:?}", begun.elapsed());
        world.barrier().unwrap();
    });
}

#[test]
fn different_roots_are_reported() {
    mismatch("different_roots_are_reported", |w| w.broadcast(0, &mut [1]), |w| w.broadcast(1, &mut [1]));
}

#[test]
fn different_reduction_roots_are_reported() {
    let reduce = |root| move |w: &World| w.reduce(root, &mut [1], Op::Sum);
    mismatch("different_reduction_roots_are_reported", reduce(0), reduce(1));
}

#[test]
fn different_operators_are_reported() {
    mismatch(
        "different_operators_are_reported",
        |w| w.all_reduce(&mut [1], Op::Sum),
        |w| w.all_reduce(&mut [1], Op::Max),
    );
}

/// A sum of the program's own.
struct Own<const COMMUTES: bool>;

impl<const COMMUTES: bool> Reduction<u64> for Own<COMMUTES> {
    const COMMUTES: bool = COMMUTES;

    fn apply(&self, left: u64, right: u64) -> u64 {
        left + right
    }
}

/// Long data is reduced in another order.
#[test]
fn different_commutativity_is_reported() {
    mismatch(
        "different_commutativity_is_reported",
        |w| w.reduce(0, &mut [1], Own::<true>),
        |w| w.reduce(0, &mut [1], Own::<false>),
    );
}

#[test]
fn different_types_are_reported() {
    mismatch("different_types_are_reported", |w| w.broadcast(0, &mut [1_u64; 2]), |w| w.broadcast(0, &mut [1_u32; 2]));
}

/// Composite types of one length: ranks compare the names of the types.
#[test]
fn composite_types_of_equal_size_are_reported() {
    let name = "composite_types_of_equal_size_are_reported";
    let broadcast = |w: &World| w.broadcast(0, &mut [[1.0_f32; 2]]);
    mismatch_that_says(name, "type name hash", broadcast, |w| w.broadcast(0, &mut [[1_u16; 4]]));
}

/// The same in a started collective.
#[test]
fn started_composite_types_are_reported() {
    let gather = |w: &World| Ok(w.iall_gather(vec![[1.0_f32; 2]]).wait().map(drop)?);
    mismatch("started_composite_types_are_reported", gather, |w| {
        Ok(w.iall_gather(vec![[1_u16; 4]]).wait().map(drop)?)
    });
}

/// Both types have one size.
#[test]
fn number_types_of_equal_size_are_reported() {
    let sum = |w: &World| w.all_reduce(&mut [1.0_f64], Op::Sum);
    mismatch("number_types_of_equal_size_are_reported", sum, |w| w.all_reduce(&mut [1_u64], Op::Sum));
}

/// Both types of the values have one size, behind a place.
#[test]
fn different_maxloc_types_are_reported() {
    fn most<T: Pod + PartialOrd>(world: &World, value: T) -> Result<(), Error> {
        world.all_reduce_one(ValueLoc::new(value, 1), MaxLoc).map(drop)
    }
    let says = "calls all_reduce of 1 element of 16 bytes, by MaxLoc of ";
    mismatch_that_says("different_maxloc_types_are_reported", says, |w| most(w, 1.0_f64), |w| most(w, 1_u64));
}

#[test]
fn different_collectives_are_reported() {
    mismatch("different_collectives_are_reported", |w| w.all_gather(&[1]).map(drop), |w| w.scan(&mut [1], Op::Sum));
}

#[test]
fn barrier_beside_a_broadcast_is_reported() {
    mismatch("barrier_beside_a_broadcast_is_reported", World::barrier, |w| w.broadcast(0, &mut [1]));
}

#[test]
fn different_grids_are_reported() {
    let on_grid =
        |around| move |w: &World| w.neighbours(&Grid::new([w.size()], [around]).unwrap(), &[1, 2], &mut [0, 0]);
    let says = "calls neighbours of 1 i32, on another grid, as collective number";
    mismatch_that_says("different_grids_are_reported", says, on_grid(true), on_grid(false));
}

#[test]
fn different_section_lengths_are_reported() {
    let of = |first: usize| {
        move |w: &World| {
            let len = |rank: usize| if rank == 0 { first } else { 1 };
            let given: Vec<_> = (0..w.size()).map(|rank| Section::Contiguous { offset: 0, len: len(rank) }).collect();
            let taken = vec![Section::Contiguous { offset: 0, len: len(w.rank()) }; w.size()];
            w.all_to_all_sections(&[1, 2, 3], &given, &mut [0; 3], &taken)
        }
    };
    mismatch("different_section_lengths_are_reported", of(1), of(2));
}

/// A block of no elements at one rank, and of some at another, in all calls whose lengths only two ranks know, or that
/// take a list.
#[test]
fn one_sided_block_lengths_are_reported() {
    type Call = fn(&World, bool) -> Result<(), Error>;
    let calls: [(&str, &str, Call); 9] = [
        ("all_to_all_v, one rank expects an element", "0, and rank 1 expects length 1", |w, odd| {
            let n = w.size();
            let taken: Vec<usize> = (0..n).map(|from| usize::from(odd && from == 0)).collect();
            w.all_to_all_v_into::<u8>(&[], &vec![0; n], &mut vec![0; taken.iter().sum()], &taken)
        }),
        ("all_to_all_v, one rank expects no element", "3, and rank 1 expects length 0", |w, _| {
            let n = w.size();
            let given: Vec<usize> = (0..n).map(|to| if w.rank() == 0 && to == n / 2 { 3 } else { 0 }).collect();
            w.all_to_all_v_into(&vec![1_u8; given.iter().sum()], &given, &mut [], &vec![0; n])
        }),
        ("gather_v, the root expects an element", "0, and rank 1 expects length 1", |w, odd| {
            let counts: Vec<usize> = (0..w.size()).map(|rank| usize::from(rank == 0)).collect();
            w.gather_v_into(w.size() / 2, &[0_u8; 0], &counts, &mut vec![0; usize::from(odd)])
        }),
        ("gather_v, the root expects no element", "1, and rank 1 expects length 0", |w, odd| {
            w.gather_v_into(w.size() / 2, &vec![1_u8; usize::from(!odd)], &vec![0; w.size()], &mut [])
        }),
        ("scatter_v, one rank expects an element", "0, and rank 1 expects length 1", |w, odd| {
            w.scatter_v_into(0, &[0_u8; 0], &vec![0; w.size()], &mut vec![0; usize::from(odd)])
        }),
        ("scatter_v, one rank expects no element", "1, and rank 1 expects length 0", |w, _| {
            let counts: Vec<usize> = (0..w.size()).map(|rank| usize::from(rank == w.size() / 2)).collect();
            let data = vec![1_u8; usize::from(w.rank() == 0)];
            w.scatter_v_into(0, &data, &counts, &mut [])
        }),
        ("all_gather_v", "1, and rank ", |w, odd| {
            // The total number of elements is the same.
            let whose = if odd { w.size() / 2 } else { 0 };
            let counts: Vec<usize> = (0..w.size()).map(|rank| usize::from(rank == whose)).collect();
            w.all_gather_v_into(&vec![1_u8; counts[w.rank()]], &counts, &mut [0])
        }),
        ("reduce_scatter_v", "0, and rank ", |w, odd| {
            let whose = if odd { w.size() / 2 } else { 0 };
            let counts: Vec<usize> = (0..w.size()).map(|rank| usize::from(rank == whose)).collect();
            w.reduce_scatter_v(&[1_u8], &counts, &mut vec![0; counts[w.rank()]], Op::Sum)
        }),
        ("iall_to_all_v", "0, and rank 1 expects length 1", |w, odd| {
            let n = w.size();
            let taken: Vec<usize> = (0..n).map(|from| usize::from(odd && from == 0)).collect();
            w.iall_to_all_v(Ragged::new(Vec::<u8>::new(), &vec![0; n]), &taken).wait().map(drop).map_err(Error::from)
        }),
    ];
    on(&[2, 3], "one_sided_block_lengths_are_reported", |world| {
        for (name, says, call) in calls {
            let begun = Instant::now();
            let team = world.split(Some(0), 0).unwrap().unwrap();
            // A rank whose call waits for no other gets the error from the next call.
            let called = call(&team, world.rank() == world.size() / 2);
            let error = called.and_then(|()| team.all_reduce_one(1, Op::Sum).map(drop)).expect_err(name);
            let call = name.split(',').next().unwrap();
            let says = [format!("in {call}, collective number 1, rank "), format!("a block of length {says}")];
            let text = error.to_string();
            assert!(
                matches!(error, Error::Mismatch { .. }) && says.iter().all(|says| text.contains(says)),
                "{name}: {text}"
            );
            assert!(begun.elapsed() < ranks::within(Duration::from_secs(6)), "{name}: {:?}", begun.elapsed());
            // No rank leaves before all have their error.
            world.barrier().unwrap();
        }
    });
}

/// All ranks make the same call, under different rules.
#[test]
fn different_rules_are_reported() {
    on(&[2, 3, 5], "different_rules_are_reported", |world| {
        for common in ["", "all_reduce bytes>=8 = binomial, all_reduce = recursive_doubling, "] {
            let begun = Instant::now();
            let team = world.split(Some(0), 0).unwrap().unwrap();
            let odd = if world.rank() == world.size() / 2 { "all_gather = ring" } else { "all_gather = bruck" };
            team.collectives_by(&format!("{common}{odd}").parse().unwrap()).unwrap();
            let error = team.all_reduce_one(1, Op::Sum).unwrap_err().to_string();
            assert!(error.contains("by different rules"), "{error}");
            assert!(begun.elapsed() < ranks::within(Duration::from_secs(6)), "{:?}", begun.elapsed());
        }
    });
}

#[test]
fn locally_refused_call_fails_at_all_ranks() {
    mismatch(
        "locally_refused_call_fails_at_all_ranks",
        |w| w.all_reduce(&mut [1.0], Op::Sum),
        |w| w.all_reduce(&mut [1.0], Op::Xor),
    );
}

#[test]
fn different_started_collectives_are_reported() {
    let wait = |request: transom::messages::Request<'static, Vec<i32>>| request.wait().map(drop).map_err(Error::from);
    mismatch(
        "different_started_collectives_are_reported",
        move |w| wait(w.iall_gather(vec![1])),
        move |w| wait(w.iall_reduce(vec![1], Op::Sum)),
    );
}

#[test]
fn blocking_beside_started_form_is_reported() {
    mismatch(
        "blocking_beside_started_form_is_reported",
        |w| w.all_reduce(&mut [1], Op::Sum),
        |w| w.iall_reduce(vec![1], Op::Sum).wait().map(drop).map_err(Error::from),
    );
}

/// Each rank is the root, and sends more than it can send before a receive.
#[test]
fn mismatched_long_root_sends_are_reported() {
    let call = |w: &World| w.ibroadcast(w.rank(), vec![0_u8; 1 << 20]).wait().map(drop).map_err(Error::from);
    mismatch("mismatched_long_root_sends_are_reported", call, call);
}

/// Each rank is the root of its own broadcast and waits for no other: a barrier at the end reports the mismatch.
#[test]
fn mismatched_last_call_is_reported_by_a_barrier() {
    on(&[2, 3], "mismatched_last_call_is_reported_by_a_barrier", |world| {
        let team = world.split(Some(0), 0).unwrap().unwrap();
        team.barrier().unwrap();
        let last = team.broadcast(team.rank(), &mut [1]);
        let error = last.and_then(|()| team.barrier()).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        if ranks::share_memory(&world) {
            assert!(error.to_string().contains("or has made one before: rank "), "{error}");
        }
        world.barrier().unwrap();
    });
}

/// More calls than the library remembers.
#[test]
fn mismatched_call_of_long_ago_is_reported() {
    const TOLD: Tag<u8> = Tag::new(2);
    on(&[2, 3], "mismatched_call_of_long_ago_is_reported", |world| {
        let (begun, team) = (Instant::now(), world.split(Some(0), 0).unwrap().unwrap());
        if world.rank() == 0 {
            // A root waits for no other rank.
            (0..100).for_each(|_| drop(team.ibroadcast(0, vec![1_u8]).wait().unwrap()));
            (1..world.size()).for_each(|rank| drop(world.recv(rank, TOLD).unwrap()));
        }
        let error = team.barrier().unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        assert!(begun.elapsed() < ranks::within(Duration::from_secs(6)), "{:?}", begun.elapsed());
        if world.rank() > 0 {
            world.send(0, TOLD, &[1]).unwrap();
        }
        world.barrier().unwrap();
    });
}

/// Rank 0 drops its team, and lives on; each other rank gets an error in the team within seconds.
fn left_by_rank_0(
    name: &str,
    leaves: impl Fn(World) + Sync,
    calls: impl Fn(&World) -> Error + Sync,
    is_right: fn(&Error) -> bool,
) {
    const TOLD: Tag<u8> = Tag::new(2);
    on(&[2, 3], name, |world| {
        let (begun, team) = (Instant::now(), world.split(Some(0), 0).unwrap().unwrap());
        if world.rank() == 0 {
            leaves(team);
            (1..world.size()).for_each(|rank| drop(world.recv(rank, TOLD).unwrap()));
        } else {
            let error = calls(&team);
            assert!(is_right(&error), "{error}");
            assert!(begun.elapsed() < ranks::within(Duration::from_secs(6)), "{:?}", begun.elapsed());
            world.send(0, TOLD, &[1]).unwrap();
        }
        world.barrier().unwrap();
    });
}

/// The call of the rank that left waited for no other.
#[test]
fn mismatched_call_of_departed_rank_is_reported() {
    left_by_rank_0(
        "mismatched_call_of_departed_rank_is_reported",
        |team| drop(team.ibroadcast(0, vec![1_u8]).wait().unwrap()),
        |team| team.ibroadcast(0, vec![1_u8, 2]).wait().unwrap_err().error,
        |error| matches!(error, Error::Mismatch { .. }),
    );
}

/// No collective was called in the team, and the panic is caught.
#[test]
fn team_dropped_in_a_panic_fails_others_barrier() {
    let panics = |team: World| {
        let panics = std::panic::AssertUnwindSafe(|| {
            let _team = team;
            panic!("intended panic, which drops the team");
        });
        std::panic::catch_unwind(panics).unwrap_err();
    };
    left_by_rank_0(
        "team_dropped_in_a_panic_fails_others_barrier",
        panics,
        |team| team.barrier().unwrap_err(),
        |error| matches!(error, Error::TeamDropped { .. } | Error::PeerDied { .. }),
    );
}

/// A rank that is asked about an earlier call that it has started, and that has not ended, answers that it makes the
/// same call.
#[test]
fn old_started_call_completes_when_last_rank_calls() {
    on(&[3], "old_started_call_completes_when_last_rank_calls", |world| {
        world.barrier().unwrap();
        if world.rank() == 2 {
            // The other ranks wait for this one meanwhile, and ask each other.
            std::thread::sleep(Duration::from_secs(3));
        }
        let sum = world.iall_reduce(vec![world.rank() as u64; 3], Op::Sum);
        let rest: Vec<_> = (0..100).map(|_| world.ibroadcast(2, vec![world.rank()])).collect();
        assert_eq!(sum.wait().unwrap(), [3; 3]);
        rest.into_iter().for_each(|value| assert_eq!(value.wait().unwrap(), [2]));
    });
}

#[test]
fn invalid_arguments_are_refused() {
    on(&[1, 2], "invalid_arguments_are_refused", |world| {
        let n = world.size();
        let misuse = |result: Result<(), Error>, why: &str| {
            let error = result.unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        };
        misuse(world.broadcast(n, &mut [1]), "there is no rank");
        misuse(world.all_reduce(&mut [1.0], Op::And), "And is not defined for f64");
        misuse(world.all_reduce(&mut [1], Op::Replace), "Replace does not reduce");
        misuse(world.all_gather_into(&[1, 2], &mut vec![0; 2 * n + 1]), "all_gather: the buffer of all blocks has");
        misuse(world.all_to_all(&vec![1; n], &mut vec![0; 2 * n]), "all_to_all: the buffer of all blocks has");
        misuse(
            world.reduce_scatter(&vec![1; 3 * n], &mut [0; 2], Op::Sum),
            "reduce_scatter: the buffer of all blocks has",
        );
        misuse(world.all_gather_v_into(&[1], &vec![2; n + 1], &mut [1; 9]), "all_gather_v: `counts` has ");
        let one = vec![1; n];
        let (much, more) = (vec![1; n + 1], n + 1);
        let given = format!("all_to_all_v: `given` adds up to {n} elements, and `data` has {more}");
        misuse(world.all_to_all_v_into(&much, &one, &mut vec![0; n], &one), &given);
        let taken = format!("all_to_all_v: `taken` adds up to {n} elements, and `into` has {more}");
        misuse(world.all_to_all_v_into(&vec![1; n], &one, &mut vec![0; more], &one), &taken);
        let mut two = one.clone();
        two[world.rank()] = 2;
        let own =
            format!("all_to_all_v: `taken[{0}]`, the block of this rank itself, is 2, but `given` has 1", world.rank());
        misuse(world.all_to_all_v_into(&vec![1; n], &one, &mut vec![0; more], &two), &own);
        misuse(world.gather_v_into(world.rank(), &[1], &[9; 4], &mut [0; 36]), "gather_v: `counts` has 4 lengths");
        misuse(world.scatter_v_into(world.rank(), &[1; 4], &[1; 4], &mut [0]), "scatter_v: `counts` has 4 lengths");
        misuse(world.all_reduce_into(&[1, 2], &mut [0], Op::Sum), "`into` has 1 elements, expected 2");
        misuse(world.broadcast(0, &mut [(); 2]), "elements of 0 bytes");
        misuse(world.ibroadcast(n, vec![1]).wait().map(drop).map_err(Error::from), "there is no rank");
        if n > 1 {
            let other = (world.rank() + 1) % n;
            let error = world.scatter_init::<u8>(other, Vec::new(), usize::MAX).map(drop);
            misuse(error, "exceed the address space");
            let error = world.iscatter_v::<u8>(other, None, usize::MAX).wait().map(drop).map_err(Error::from);
            misuse(error, "cannot allocate");
        }
        // All ranks refused the same number of calls: the team goes on.
        assert_eq!(world.all_reduce_one(1, Op::Sum).unwrap(), n);
    });
}

#[test]
fn operator_panic_is_reported_to_all_ranks() {
    on(&[1, 2, 3, 5], "operator_panic_is_reported_to_all_ranks", |world| {
        let (me, n) = (world.rank(), world.size());
        if n == 1 {
            return;
        }
        let team = world.split(Some(0), 0).unwrap().unwrap();
        let refuses =
            Commutative(|a: u64, b: u64| if a.max(b) == 7 { panic!("a seven (the test means it)") } else { a + b });
        // The rank that folds the last rank's value panics.
        let value = if me == n - 1 { 7 } else { 0 };
        let called = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| team.all_reduce_one(value, refuses)));
        match called {
            Err(_) => {} // the panic of its own operation
            Ok(Err(Error::OperatorPanicked { rank })) => assert!(rank < n && rank != me),
            Ok(result) => panic!("{result:?}"),
        }
        assert!(matches!(team.all_reduce_one(1, Op::Sum), Err(Error::OperatorPanicked { .. })));
        // A started call is an error at every rank, also if the message arrives before a rank is in the team.
        for _ in 0..10 {
            let team = world.split(Some(0), 0).unwrap().unwrap();
            let error = team.iall_reduce(vec![value], refuses).wait().unwrap_err().error;
            assert!(matches!(error, Error::OperatorPanicked { .. }), "{error}");
        }
        // Collectives of the world still work.
        assert_eq!(world.all_reduce_one(1, Op::Sum).unwrap(), n);
    });
}
