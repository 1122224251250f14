//! Collectives over several hosts: shared memory within each host, messages between the host leaders.

use super::group::{Member, Turn};
use super::history::CallId;
use super::memory::CallBuffers;
use super::reduction::Fold;
use super::running::Running;
use super::shm::Buffers;
use super::signature::Signature;
use super::{at_board, carry_out};
use crate::messages::{Error, hold};
use crate::provider;
use crate::world::World;
use bytemuck::Pod;
use std::sync::Arc;
use transom_collective::{Hierarchical, Stage};
use transom_shm_loopback::Loopback;
use transom_shm_loopback::collective::ShmCollective;
use transom_windows::OobExchange as _;

impl World {
    /// Executes the stages of a call and returns when this rank has done its part. `host` is the shared memory to use;
    /// `None` selects that of this rank's host.
    pub(super) fn carry_by_hosts<T: Pod, F: Fold>(
        &self,
        (Hierarchical { stages, scratch }, host): (Hierarchical, Option<&Loopback>),
        call: Signature,
        given: &[T],
        data: &mut [T],
        fold: F,
    ) -> Result<(), Error> {
        let group = self.group()?;
        let scratch = group.take_scratch::<T>(scratch).map_err(|error| group.refuse(error))?;
        let mut turn = group.enter()?;
        let made = group.begin(&mut turn, call)?;
        // All ranks of a host open their board in the same call.
        if cfg!(debug_assertions) || turn.board.is_none() {
            self.compare(group, made)?;
        }
        let history = turn.history;
        let board = self.board_of_host(group, &mut turn, (made, host))?;
        // SAFETY: each stage returns, also by a panic, only when no part of the memory is lent.
        let (given, data) = unsafe { (hold::lend(given), hold::lend_mut(data)) };
        let mut memory = CallBuffers::new(given, data, size_of::<T>(), scratch);
        for stage in stages {
            match stage {
                Stage::Inside { call, given, data } => memory.pair(data, given, |data, given| {
                    at_board(
                        group,
                        board,
                        (made, history),
                        call,
                        Buffers { given, data, element: size_of::<T>(), fold: &fold },
                    )
                })?,
                Stage::Between(plan) => {
                    let mut running = Running::new(group.clone(), made, plan, memory, &fold);
                    carry_out(group, made, &mut running)?;
                    memory = running.into_memory();
                }
            }
        }
        Ok(())
    }

    /// The board of this host, opened on first use. A failure to open it fails the group, because other hosts would not
    /// notice.
    fn board_of_host<'t>(
        &self,
        group: &Arc<Member>,
        turn: &'t mut Turn,
        (made, host): (CallId, Option<&Loopback>),
    ) -> Result<&'t mut ShmCollective, Error> {
        if turn.board.is_none() {
            let fabric = self.make_fabric(group, made)?;
            let host = host.or_else(|| provider::memory_of_host(fabric)).expect("a host's ranks share memory");
            let here = |place| group.on_board(place);
            let opened = self.meet(group, made, |meet| {
                ShmCollective::open_by(host, &mut |mine| {
                    let mut said = meet(mine)?;
                    Ok((0..host.size()).map(|place| std::mem::take(&mut said[here(place)])).collect())
                })
            });
            let opened = opened.map_err(|error| {
                let why = format!(
                    "rank {} cannot set up shared memory for collectives on its host: {error}",
                    group.comm.rank()
                );
                group.stopped(Some(Error::Mismatch { why }))
            })?;
            group.open(turn, opened);
        }
        Ok(turn.board.as_mut().expect("opened above"))
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::Op;
    use crate::collective::Commutative;
    use crate::collective::group::Group;
    use crate::collective::reduction::{Nothing, Typed};
    use crate::collective::signature::Kind;
    use std::marker::PhantomData;
    use transom_collective::{Call, Hosts, by_hosts};

    /// A thread rank of a test that is placed on a simulated host: `host` is the team of its ranks.
    struct Rank {
        world: World,
        host: World,
    }

    fn on(hosts: &'static [usize], body: impl Fn(&Rank) + Sync) {
        let ended = crate::threads(hosts.len(), |world| {
            let group = Group::enter_by(
                &world.collectives().control,
                &Default::default(),
                world.space().comm().unwrap().clone(),
                Some(Hosts::of(hosts)),
                None,
                false,
            )
            .unwrap();
            assert!(world.collectives().member.set(group).is_ok());
            let host = world.split(Some(hosts[world.rank()] as u64), 0).unwrap().unwrap();
            body(&Rank { world, host });
        });
        ended.unwrap();
    }

    impl Rank {
        fn call(&self, kind: Kind, what: Call, given: &[u64], data: &mut [u64], op: impl Fold) -> Result<(), Error> {
            let len = match what {
                Call::Gather { .. } | Call::AllGather => given.len(),
                Call::AllToAll => data.len() / self.world.size(),
                _ => data.len(),
            };
            let shape = self.world.shape::<u64>(self.world.group()?, len);
            let stages = by_hosts(what, shape, None).expect("the call has stages");
            let host = provider::shared_memory(self.host.fabric().unwrap());
            self.world.carry_by_hosts((stages, host), Signature::of::<u64>(kind, len), given, data, op)
        }

        fn all_reduce(&self, data: &mut [u64]) -> Result<(), Error> {
            self.call(Kind::AllReduce, Call::AllReduce { commutes: true }, &[], data, sum())
        }
    }

    /// Lengths around the thresholds at which the board and the message protocols change.
    const LENGTHS: [usize; 5] = [0, 1, 100, 3000, 20_000];

    fn sum() -> Typed<u64, Op> {
        Typed(Op::Sum, PhantomData)
    }

    fn number(rank: usize, index: usize) -> u64 {
        (rank * 1_000_003 + index) as u64
    }

    fn numbers(rank: usize, len: usize) -> Vec<u64> {
        (0..len).map(|index| number(rank, index)).collect()
    }

    fn leaders_do_what_the_collective_is(hosts: &'static [usize]) {
        on(hosts, |rank| {
            let (me, n) = (rank.world.rank(), rank.world.size());
            for (nth, len) in LENGTHS.into_iter().enumerate() {
                let root = (nth * 2 + 1) % n;
                let sums: Vec<u64> = (0..len).map(|index| (0..n).map(|rank| number(rank, index)).sum()).collect();
                let all: Vec<u64> = (0..n).flat_map(|rank| numbers(rank, len)).collect();

                let mut data = numbers(me, len);
                rank.all_reduce(&mut data).unwrap();
                assert!(data == sums, "all_reduce of {len}");
                let mut data = numbers(me, len);
                let what = Call::Reduce { root, commutes: true };
                rank.call(Kind::Reduce, what, &[], &mut data, sum()).unwrap();
                assert!(data == if me == root { sums } else { numbers(me, len) }, "reduce of {len}");
                let mut data = numbers(me, len);
                rank.call(Kind::Broadcast, Call::Broadcast { root }, &[], &mut data, Nothing).unwrap();
                assert!(data == numbers(root, len), "broadcast of {len}");
                let mut into = vec![0; n * len];
                rank.call(Kind::AllGather, Call::AllGather, &numbers(me, len), &mut into, Nothing).unwrap();
                assert!(into == all, "all_gather of {len}");
                let mut into = vec![0; if me == root { n * len } else { 0 }];
                rank.call(Kind::Gather, Call::Gather { root }, &numbers(me, len), &mut into, Nothing).unwrap();
                assert!(into == if me == root { all } else { vec![] }, "gather of {len}");
                let given = if me == root { numbers(7, n * len) } else { vec![] };
                let mut mine = vec![0; len];
                rank.call(Kind::Scatter, Call::Scatter { root }, &given, &mut mine, Nothing).unwrap();
                assert!(mine == numbers(7, n * len)[me * len..][..len], "scatter of {len}");

                if hosts.is_sorted() {
                    let of_all = |index: usize| (0..n).map(|rank| number(rank, index)).sum::<u64>();
                    let given = numbers(me, n * len);
                    rank.call(Kind::ReduceScatter, Call::ReduceScatter, &given, &mut mine, sum()).unwrap();
                    assert!(
                        mine == (me * len..(me + 1) * len).map(of_all).collect::<Vec<_>>(),
                        "reduce_scatter of {len}"
                    );
                    for (exclusive, ranks) in [(false, 0..me + 1), (true, 0..me)] {
                        let mut data = numbers(me, len);
                        rank.call(Kind::Scan, Call::Scan { exclusive }, &[], &mut data, sum()).unwrap();
                        let before = |index| ranks.clone().map(|rank| number(rank, index)).sum::<u64>();
                        let sums = (0..len).map(before).collect();
                        assert!(data == if ranks.is_empty() { numbers(me, len) } else { sums }, "scan of {len}");
                    }
                }
                if len <= 100 {
                    let mut into = vec![0; n * len];
                    rank.call(Kind::AllToAll, Call::AllToAll, &numbers(me, n * len), &mut into, Nothing).unwrap();
                    let block = |from| numbers(from, n * len)[me * len..][..len].to_vec();
                    assert!(into == (0..n).flat_map(block).collect::<Vec<_>>(), "all_to_all of {len}");
                }
            }
        });
    }

    #[test]
    fn hosts_of_equal_size_give_correct_results() {
        leaders_do_what_the_collective_is(&[0, 0, 1, 1]);
    }

    #[test]
    fn hosts_of_any_rank_order_give_correct_results() {
        leaders_do_what_the_collective_is(&[0, 1, 1, 0, 2, 0]);
    }

    /// Asserts that every rank of every host gets the error, and gets it again from later calls.
    fn fails(how: impl Fn(&Rank) -> Result<(), Error> + Sync, told: impl Fn(&Error) -> bool + Sync) {
        let told_all = std::sync::Barrier::new(5);
        on(&[0, 0, 1, 1, 2], |rank| {
            rank.all_reduce(&mut [1]).unwrap();
            // A rank that waits for no other rank learns of the failure in its next call.
            let error = how(rank).and_then(|()| rank.all_reduce(&mut [1])).unwrap_err();
            assert!(told(&error), "{error}");
            assert!(told(&rank.all_reduce(&mut [1]).unwrap_err()));
            // All ranks stay until every rank has its error.
            told_all.wait();
        });
    }

    #[test]
    fn mismatched_call_is_reported_on_all_hosts() {
        let mismatch = |error: &Error| matches!(error, Error::Mismatch { .. });
        fails(|rank| rank.all_reduce(&mut vec![1; if rank.world.rank() == 3 { 2 } else { 1 }]), mismatch);
    }

    #[test]
    fn operator_panic_is_reported_on_all_hosts() {
        // The operation panics at the leader of the second host, on the board.
        let panics =
            Commutative(|a: u64, b: u64| if a.max(b) == 7 { panic!("a seven (the test means it)") } else { a + b });
        let call = |rank: &Rank| {
            let (me, what) = (rank.world.rank(), Call::AllReduce { commutes: true });
            let mut data = [if me == 3 { 7 } else { 0 }];
            let call = || rank.call(Kind::AllReduce, what, &[], &mut data, Typed::<u64, _>(panics, PhantomData));
            let called = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
            assert_eq!(called.is_err(), me == 2, "its own goes on");
            called.unwrap_or(Ok(()))
        };
        fails(call, |error| matches!(error, Error::OperatorPanicked { rank: 2 }));
    }

    #[test]
    fn departed_rank_is_reported_on_all_hosts() {
        let hosts = &[0, 0, 1, 1, 2];
        let left = std::sync::Barrier::new(hosts.len() - 1);
        on(hosts, |rank| {
            rank.all_reduce(&mut [1]).unwrap();
            if rank.world.rank() != 3 {
                let error = rank.all_reduce(&mut [1]).unwrap_err();
                assert!(matches!(error, Error::PeerLeft { rank: 3 }), "{error}");
                left.wait();
            }
        });
    }
}
