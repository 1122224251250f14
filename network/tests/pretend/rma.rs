//! Windows over two hosts.

use crate::network::{Pretend, on_hosts};
use transom_locks::Rank;
use transom_network::{Hybrid, Network};
use transom_windows::{Flavor, OobExchange, Op, Window};

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
        assert_eq!((team.inner().hosts().unwrap(), world.inner().hosts().unwrap()), (vec![1, 0, 1, 0], vec![0, 1, 0, 1]));
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
