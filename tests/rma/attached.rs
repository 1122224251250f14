//! Memory that is attached to a window and detached again: slots; stale and forged addresses, and addresses of another
//! window. Nothing is leaked.

use crate::ranks;
use ranks::told;
use std::collections::HashSet;
use transom::shm_loopback::Loopback;
use transom::windows::Delayed;
use transom::{Address, Error, Flavor, Op, Rank, Window};

#[test]
fn attach_without_a_free_slot_is_refused() {
    ranks::on_all_sizes("attach_without_a_free_slot_is_refused", |world| {
        let me = world.rank();
        let mut window: Window<u64> = world.dynamic(me + 1).unwrap();
        let mut held: Vec<Address> = (0..=me).map(|len| window.attach(len).unwrap()).collect();
        let full = |outcome: Result<Address, Error>, has: usize| match outcome {
            Err(Error::NoSlot { rank, slots, .. }) => assert_eq!((rank, slots), (me, has)),
            other => panic!("{other:?}"),
        };
        full(window.attach(1), me + 1);
        window.detach(&held.remove(me / 2)).unwrap();
        held.push(window.attach(9).unwrap());
        full(window.attach(1), me + 1);
        assert!(matches!(window.attach(usize::MAX), Err(Error::Size { .. } | Error::NoSlot { .. })));
        window.detach(&held.pop().unwrap()).unwrap();
        for len in [usize::MAX, usize::MAX / 8 + 1, isize::MAX as usize / 8] {
            let error = window.attach(len).unwrap_err();
            assert!(matches!(error, Error::Size { .. } | Error::Fabric { .. }), "{error}");
        }
        window.attach(3).unwrap(); // the failed call took no slot
        for flavor in [Flavor::Allocate { len: 1 }, Flavor::Shared { len: 1 }, Flavor::Create(vec![1])] {
            if ranks::share_memory(&world) || !matches!(flavor, Flavor::Shared { .. }) {
                full(world.window(flavor, 0).unwrap().attach(1), 0);
            }
            world.barrier().unwrap();
        }
        // The window has no elements except attached ones.
        assert_eq!(window.local().len(), 0);
        assert!(matches!(window.lock_shared(0).unwrap().put(0, &[1]), Err(Error::OutOfBounds { size: 0, .. })));
        world.barrier().unwrap();
    });
}

#[test]
fn detached_address_never_resolves_again() {
    ranks::on_all_sizes("detached_address_never_resolves_again", |world| {
        let (me, n) = (world.rank(), world.size());
        let mut window: Window<u32> = world.dynamic(1).unwrap();
        let first = window.attach(3).unwrap();
        assert_eq!((first.rank(), first.len(), first.is_empty()), (me, 3, false));
        let firsts = told(&world, first);
        let reached: Vec<_> = firsts.iter().map(|address| window.reach(address).unwrap()).collect();
        let next = (me + 1) % n;
        let epoch = window.lock_shared(next).unwrap();
        let target = epoch.attached(&reached[next]).unwrap();
        target.put(0, &[1, 2, 3]).unwrap();
        assert!(matches!(target.put(2, &[1, 2]), Err(Error::OutOfBounds { size: 3, .. })));
        if n > 1 {
            assert!(matches!(epoch.attached(&reached[me]).map(drop), Err(Error::NotHere { rank, .. }) if rank == me));
        }
        epoch.unlock().unwrap();
        window.fence().unwrap();
        assert_eq!(window.local().attached(&first).unwrap().read(0, 3).unwrap(), [1, 2, 3]);

        window.detach(&first).unwrap();
        world.barrier().unwrap();
        let stale = |window: &mut Window<u32>| {
            let gone = |outcome: Result<(), Error>, of: Rank| match outcome {
                Err(Error::Detached { rank, slot: 0, .. }) => assert_eq!(rank, of),
                other => panic!("{other:?}"),
            };
            gone(window.reach(&firsts[next]).map(drop), next);
            gone(window.local().attached(&first).map(drop), me);
            gone(window.detach(&first), me);
            gone(window.lock_shared(next).unwrap().attached(&reached[next]).map(drop), next);
        };
        stale(&mut window);
        world.barrier().unwrap();
        // Again the same slot, the same size.
        let second = window.attach(3).unwrap();
        assert_eq!(
            window.local().attached(&second).unwrap().read(0, 3).unwrap(),
            [0; 3],
            "newly attached memory is not zeroed"
        );
        let seconds = told(&world, second);
        stale(&mut window);
        assert_eq!(window.reach(&seconds[next]).unwrap().address(), &seconds[next]);
        world.barrier().unwrap();
    });
}

/// An operation in flight while its target detaches comes too late, and changes no other memory.
#[test]
fn operations_racing_detach_change_no_other_memory() {
    ranks::on(&[2, 3], "operations_racing_detach_change_no_other_memory", |world| {
        let me = world.rank();
        let mut window: Window<u64> = world.dynamic(1).unwrap();
        let address = window.attach(500).unwrap();
        let addresses = told(&world, address);
        if me == 0 {
            world.barrier().unwrap();
            window.detach(&address).unwrap();
            let again = window.attach(500).unwrap();
            world.barrier().unwrap();
            let part = window.local().attached(&again).unwrap().read(0, 500).unwrap();
            assert_eq!(part, [0; 500], "put to detached memory reached new memory");
        } else {
            let memory = window.reach(&addresses[0]).unwrap();
            let epoch = window.lock_shared(0).unwrap();
            let target = epoch.attached(&memory).unwrap();
            world.barrier().unwrap();
            for value in 0..200 {
                target.put(0, &[value; 500]).unwrap();
                target.fetch_and_op(0, Op::Sum, 1).unwrap();
            }
            world.barrier().unwrap();
        }
        world.barrier().unwrap();
    });
}

#[test]
fn empty_memory_can_be_attached() {
    ranks::on_all_sizes("empty_memory_can_be_attached", |world| {
        let mut window: Window<[u8; 5]> = world.dynamic(2).unwrap();
        let mine = window.attach(0).unwrap();
        for address in told(&world, mine) {
            assert!(address.is_empty());
            let memory = window.reach(&address).unwrap();
            let epoch = window.lock_exclusive(address.rank()).unwrap();
            let target = epoch.attached(&memory).unwrap();
            assert!(target.is_empty() && target.put(0, &[]).is_ok());
            assert!(matches!(target.put(0, &[[1; 5]]), Err(Error::OutOfBounds { size: 0, .. })));
        }
        world.barrier().unwrap();
        window.detach(&mine).unwrap();
    });
}

/// Only bytes that an owner wrote down are an address.
#[test]
fn forged_addresses_are_refused() {
    ranks::on(&[1, 2, 3], "forged_addresses_are_refused", |world| {
        let (me, n) = (world.rank(), world.size());
        let mut window: Window<u64> = world.dynamic(4).unwrap();
        let mine = window.attach(64).unwrap();
        let others = window.attach(64).unwrap(); // the same size, at another place
        let all = told(&world, mine);
        let mut tried = 0;
        let mut leads_nowhere = |window: &mut Window<u64>, forged: Address| {
            tried += 1;
            let outcomes =
                [window.reach(&forged).map(drop), window.local().attached(&forged).map(drop), window.detach(&forged)];
            for outcome in outcomes {
                match outcome {
                    Err(Error::NotHere { .. } | Error::Detached { .. } | Error::NoSuchRank { .. }) => {}
                    other => panic!("{forged:?}: {other:?}"),
                }
            }
        };
        let bytes_of = |address: &Address| -> [u8; size_of::<Address>()] { bytemuck::cast(*address) };
        let address_of = |bytes: [u8; size_of::<Address>()]| -> Address { bytemuck::cast(bytes) };
        let mut random = fastrand::Rng::with_seed(me as u64);
        for _ in 0..2000 {
            leads_nowhere(&mut window, address_of(std::array::from_fn(|_| random.u8(..))));
        }
        leads_nowhere(&mut window, address_of([0; size_of::<Address>()]));
        leads_nowhere(&mut window, address_of([0xff; size_of::<Address>()]));
        // One with the right beginning and another window's key, or with a few other bytes.
        for at in 0..size_of::<Address>() {
            for bit in [1, 0x80, 0xff] {
                let mut bytes = bytes_of(&all[me]);
                bytes[at] ^= bit;
                leads_nowhere(&mut window, address_of(bytes));
            }
            for other in [bytes_of(&others), bytes_of(&all[(me + 1) % n])] {
                let (mut head, mut tail) = (bytes_of(&mine), bytes_of(&mine));
                head[..at].copy_from_slice(&other[..at]);
                tail[at..].copy_from_slice(&other[at..]);
                for mixed in [head, tail] {
                    if ![mine, others, all[(me + 1) % n]].contains(&address_of(mixed)) {
                        leads_nowhere(&mut window, address_of(mixed));
                    }
                }
            }
        }
        // The memory of a process by its number, as windows on user memory use it: this process's own.
        let secret = [42u64; 64];
        let mut bytes = bytes_of(&mine);
        let key = bytes.len() - 32;
        bytes[key - 4..key].copy_from_slice(&12u32.to_ne_bytes());
        bytes[key..].fill(0);
        bytes[key..key + 4].copy_from_slice(&std::process::id().to_le_bytes());
        bytes[key + 4..key + 12].copy_from_slice(&(secret.as_ptr() as u64).to_le_bytes());
        leads_nowhere(&mut window, address_of(bytes));
        assert!(tried > 2000);
        // True addresses still lead to their memory.
        for address in &all {
            window.reach(address).unwrap();
        }
        window.local().attached(&mine).unwrap();
        world.barrier().unwrap();
    });
}

#[test]
fn address_of_another_window_is_refused() {
    ranks::on_all_sizes("address_of_another_window_is_refused", |world| {
        let me = world.rank();
        let mut one: Window<u64> = world.dynamic(1).unwrap();
        let mut other: Window<u64> = world.dynamic(1).unwrap();
        let (in_one, in_other) = (one.attach(8).unwrap(), other.attach(8).unwrap());
        let memory = one.reach(&in_one).unwrap();
        let not_here =
            |outcome: Result<(), Error>| assert!(matches!(outcome, Err(Error::NotHere { .. })), "{outcome:?}");
        not_here(other.reach(&in_one).map(drop));
        not_here(one.reach(&in_other).map(drop));
        not_here(other.detach(&in_one));
        not_here(other.local().attached(&in_one).map(drop));
        not_here(other.lock_shared(me).unwrap().attached(&memory).map(drop));
        one.lock_shared(me).unwrap().attached(&memory).unwrap();
        // Nor is one of another job's window of the same number.
        let team = world.split(Some(me as u64), 0).unwrap().unwrap();
        let mut theirs: Vec<Window<u64>> = (0..8).map(|_| team.dynamic(1).unwrap()).collect();
        for window in &mut theirs {
            let address = window.attach(8).unwrap();
            assert!(one.reach(&address).is_err());
        }
        world.barrier().unwrap();
    });
}

#[test]
fn repeated_attach_and_detach_leaks_nothing() {
    fn open() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }
    fn mapped() -> usize {
        std::fs::read_to_string("/proc/self/maps").unwrap().matches("transom").count()
    }
    ranks::on(&[1, 2, 4], "repeated_attach_and_detach_leaks_nothing", |world| {
        let (me, n) = (world.rank(), world.size());
        let mut window: Window<u64> = world.dynamic(1).unwrap();
        let mut names: Window<Address> = world.allocate(1).unwrap();
        let mut numbers = HashSet::new();
        let mut cycle = |window: &mut Window<u64>| {
            let mine = window.attach(1000).unwrap();
            assert!(numbers.insert(bytemuck::bytes_of(&mine).to_vec()), "address was issued twice");
            names.local().set(0, mine).unwrap();
            names.fence().unwrap();
            let theirs = names.lock_shared((me + 1) % n).unwrap().get_one(0).unwrap();
            let memory = window.reach(&theirs).unwrap();
            window.lock_shared(theirs.rank()).unwrap().attached(&memory).unwrap().put(999, &[1]).unwrap();
            drop(memory);
            names.fence().unwrap();
            window.detach(&mine).unwrap();
        };
        cycle(&mut window);
        // One rank after the other, because a lookup takes a descriptor.
        let count = || {
            let looks = (0..n).map(|rank| {
                world.barrier().unwrap();
                (rank == me).then(|| (open(), mapped()))
            });
            let looked: Vec<_> = looks.collect();
            world.barrier().unwrap();
            looked[me]
        };
        let before = count();
        for _ in 0..ranks::rounds(200) {
            cycle(&mut window);
        }
        assert_eq!(count(), before);
    });
}

/// Dropping is not collective: a rank that still has the window and the address finds that the address is not valid.
#[test]
fn dropped_window_detaches_its_memory() {
    ranks::on(&[1, 2, 4], "dropped_window_detaches_its_memory", |world| {
        let (me, n) = (world.rank(), world.size());
        let mut window: Window<u32> = world.dynamic(2).unwrap();
        let mine = window.attach(3).unwrap();
        let addresses = told(&world, mine);
        let owner = n - 1;
        let reached = window.reach(&addresses[owner]).unwrap();
        world.barrier().unwrap();
        if me == owner {
            drop((reached, window));
            return world.barrier().unwrap();
        }
        world.barrier().unwrap();
        let gone =
            |outcome: Result<(), Error>| assert!(matches!(outcome, Err(Error::Detached { rank, .. }) if rank == owner));
        gone(window.reach(&addresses[owner]).map(drop));
        let epoch = window.lock_shared(owner).unwrap();
        gone(epoch.attached(&reached).map(drop));
        epoch.unlock().unwrap();
        // All other calls go on.
        let next = (me + 1) % (n - 1);
        let reached = window.reach(&addresses[next]).unwrap();
        let epoch = window.lock_shared(next).unwrap();
        epoch.attached(&reached).unwrap().put(0, &[me as u32]).unwrap();
        epoch.unlock().unwrap();
        // A rank that ends before the others detaches the memory that they reach.
        world.team(&(0..owner).collect::<Vec<_>>()).unwrap().barrier().unwrap();
    });
}

/// An address may be sent by any means. A channel, for example, orders no operations in flight.
#[test]
fn attached_address_resolves_until_detached() {
    use transom::windows::Window;
    let (attached, address) = std::sync::mpsc::channel();
    let (detached, gone) = std::sync::mpsc::channel();
    let (found, tried) = std::sync::mpsc::channel();
    let mut ranks = Loopback::threads(2).unwrap();
    let (other, home) = (ranks.pop().unwrap(), ranks.pop().unwrap());
    let window = |fabric| {
        let fabric = Delayed::new(fabric).unwrap();
        Window::<u64, _>::new(&fabric, 0, Flavor::Dynamic { slots: 1 }, 0).unwrap()
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut window = window(home);
            let address = window.attach(8).unwrap();
            attached.send(address).unwrap();
            tried.recv().unwrap();
            window.detach(&address).unwrap();
            detached.send(()).unwrap();
            tried.recv().unwrap();
        });
        scope.spawn(move || {
            let (window, address) = (window(other), address.recv().unwrap());
            let reached = window.reach(&address).map(drop);
            found.send(()).unwrap();
            gone.recv().unwrap();
            let then = window.reach(&address).map(drop);
            found.send(()).unwrap();
            reached.unwrap();
            assert!(matches!(then, Err(Error::Detached { rank: 0, slot: 0, .. })), "{then:?}");
        });
    });
}
