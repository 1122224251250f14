//! Windows over two hosts.

use crate::network::{Pretend, on_hosts};
use transom_locks::Rank;
use transom_network::{Hybrid, Network};
use transom_windows::{Fabric, FabricError, Flavor, OobExchange, Op, Window};

/// Ranks 0 and 2 are on one host, 1 and 3 on the other: host numbers differ from job ranks.
const HOSTS: [u32; 4] = [0, 1, 0, 1];

fn all_gather_team<N: Network>(world: &Hybrid<N>, members: &[Rank]) -> Hybrid<N> {
    let job = world.clone();
    let meet = &mut |mine: &[u8]| {
        let all = job.all_gather(mine)?;
        Ok(members.iter().map(|&rank| all[rank].clone()).collect())
    };
    world.team(members, meet).unwrap()
}

/// Every rank puts its number at every rank, and adds it to a sum there under the lock.
fn exchanges<N: Network>(world: &Hybrid<N>) {
    let (me, ranks) = (world.rank(), world.size());
    let mut window = Window::<u64, _>::allocate(world, 0, 1 + ranks).unwrap();
    for target in 0..ranks {
        let epoch = window.lock_exclusive(target).unwrap();
        let sum = epoch.get_one(0).unwrap();
        epoch.put(0, &[sum + 10 + me as u64]).unwrap();
        epoch.put(1 + me, &[100 + me as u64]).unwrap();
        epoch.unlock().unwrap();
    }
    window.fence().unwrap();
    let mut found = vec![0; 1 + ranks];
    for target in 0..ranks {
        window.lock_shared(target).unwrap().get(0, &mut found).unwrap();
        assert_eq!(found, [46, 100, 101, 102, 103], "memory of rank {target} as read by rank {me}");
    }
    window.fence().unwrap();
}

#[test]
fn exchange_between_hosts_reaches_all_ranks() {
    on_hosts(&HOSTS, |world: Hybrid<Pretend<false>>| exchanges(&world));
    on_hosts(&HOSTS, |world: Hybrid<Pretend<true>>| exchanges(&world));
}

#[test]
fn team_in_another_order_reaches_its_members() {
    on_hosts(&HOSTS, |world: Hybrid<Pretend<false>>| {
        let team = all_gather_team(&world, &[3, 2, 1, 0]);
        assert_eq!(team.rank(), 3 - world.rank());
        assert_eq!(
            (team.inner().hosts().unwrap(), world.inner().hosts().unwrap()),
            (vec![1, 0, 1, 0], vec![0, 1, 0, 1])
        );
        let (node, me) = (&team.network().node, team.rank());
        let here = [0, 1, 2, 3].map(|rank| node.here(rank));
        let expected = if me % 2 == 0 { [Some(0), None, Some(1), None] } else { [None, Some(0), None, Some(1)] };
        assert_eq!((here, node.here(me)), (expected, Some(node.memory().rank())));
        exchanges(&team);
    });
}

/// Checks the network operations of a put, a get and an accumulate at each rank.
fn costs<const ADAPTER: bool>(own: [u64; 3], neighbour: [u64; 3], other: [u64; 3]) {
    on_hosts(&HOSTS, |world: Hybrid<Pretend<ADAPTER>>| {
        let (me, counts) = (world.rank(), &world.network().counts);
        let mut window = Window::<u64, _>::allocate(&world, 0, 1).unwrap();
        window.fence().unwrap();
        world.barrier().unwrap();
        for (target, expected) in [(me, own), ((me + 2) % 4, neighbour), ((me + 1) % 4, other)] {
            let epoch = window.lock_shared(target).unwrap();
            counts.take();
            epoch.put(0, &[1]).unwrap();
            epoch.flush().unwrap();
            epoch.get_one(0).unwrap();
            let [puts, gets, _] = counts.take();
            epoch.fetch_and_op(0, Op::Sum, 1).unwrap();
            let [.., atomics] = counts.take();
            assert_eq!([puts, gets, u64::from(atomics > 0)], expected, "operations of rank {me} on rank {target}");
            epoch.unlock().unwrap();
        }
        window.fence().unwrap();
    });
}

#[test]
fn data_on_one_host_moves_without_the_network() {
    costs::<false>([0, 0, 0], [0, 0, 0], [1, 1, 1]);
    // An adapter executes all atomics, including those on this rank's own words.
    costs::<true>([0, 0, 1], [0, 0, 1], [1, 1, 1]);
}

/// Puts to memory that a program lends to a window use the network, while ranks of the same host change the signal
/// themselves.
#[test]
fn put_to_lent_memory_precedes_its_signal() {
    on_hosts(&HOSTS, |world: Hybrid<Pretend<false>>| {
        let me = world.rank();
        let mut window = Window::<u64, _>::new(&world, 0, Flavor::Create(vec![0; 4]), 1).unwrap();
        let epoch = window.lock_all().unwrap();
        for round in 1..=100 {
            for target in 0..4 {
                epoch.target(target).unwrap().put_signal(me, &[round], 0, 1).unwrap();
            }
            epoch.signals().wait_until(0, |arrived| arrived == 4 * round).unwrap();
            assert_eq!([0, 1, 2, 3].map(|from| epoch.local().get(from).unwrap()), [round; 4]);
            world.barrier().unwrap();
        }
        epoch.unlock().unwrap();
        assert_eq!(window.free().unwrap(), [100; 4]);
    });
}

/// All ranks of a job on one host: `TRANSOM_INTRANODE` is off unless it is set, since the program has chosen a network.
#[test]
fn ranks_of_one_host_use_the_network_of_their_choice() {
    on_hosts(&[0, 0], |world: Hybrid<Pretend<false>>| {
        let (other, counts) = (1 - world.rank(), &world.network().counts);
        let mut window = Window::<u64, _>::allocate(&world, 0, 1).unwrap();
        let epoch = window.lock_shared(other).unwrap();
        counts.take();
        epoch.put(0, &[1]).unwrap();
        epoch.get_one(0).unwrap();
        assert_eq!(counts.take()[..2], [1, 1]);
        epoch.unlock().unwrap();
        window.fence().unwrap();
    });
}

/// The network delays each put until it must take effect.
#[test]
fn flushed_puts_are_visible_at_the_target() {
    on_hosts(&HOSTS, |world: Hybrid<Pretend<false>>| {
        let (me, ranks) = (world.rank(), world.size());
        let mut window = Window::<u64, _>::allocate(&world, 0, 2 * ranks).unwrap();
        let epoch = window.lock_all().unwrap();
        for target in 0..ranks {
            let target = epoch.target(target).unwrap();
            target.put(me, &[7]).unwrap();
            target.flush().unwrap();
        }
        world.barrier().unwrap();
        assert!((0..ranks).all(|from| epoch.local().get(from).unwrap() == 7), "after a flush of each target");
        (0..ranks).for_each(|target| epoch.target(target).unwrap().put(ranks + me, &[8]).unwrap());
        epoch.flush_all().unwrap();
        world.barrier().unwrap();
        assert!((0..ranks).all(|from| epoch.local().get(ranks + from).unwrap() == 8), "after a flush of all");
        epoch.unlock().unwrap();
    });
}

#[test]
fn keys_of_other_ranks_and_kinds_are_refused() {
    on_hosts(&[0, 1], |world: Hybrid<Pretend<false>>| {
        let (_region, key) = world.allocate(64).unwrap();
        let is_bad = |attached: Result<_, FabricError>| matches!(attached, Err(FabricError::BadKey { .. }));
        let me = world.rank();
        assert!(world.attach(me, &key, 64).is_ok());
        assert!(is_bad(world.attach(2, &key, 64)), "a rank that does not exist");
        // SAFETY: nothing is attached to.
        assert!(is_bad(unsafe { world.attach_user_memory(me, &key, 64) }), "memory that no program lent");
        let network = &key[1 + usize::from(key[0])..];
        assert!(is_bad(world.attach(1 - me, &[&[0], network].concat(), 64)), "memory that a program lent");
        world.barrier().unwrap();
    });
}
