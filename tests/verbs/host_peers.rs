//! In a job on several hosts, messages and collectives of ranks of one host use their shared memory, without work
//! requests. `tests/soft-roce/verbs` starts this on two hosts, of 2 ranks each.

use crate::adapter;
use adapter::*;
use std::io::{Read, Write};
use transom::messages::{Source, Tag};
use transom::{Op, World};

const DATA: Tag<u8> = Tag::new(1);

/// Number of work requests that this rank posts to others in a call.
fn posts(world: &World, act: impl FnOnce()) -> u64 {
    let before = verbs(world).work_requests_to_others();
    act();
    let posted = verbs(world).work_requests_to_others() - before;
    posted.writes + posted.told_writes + posted.sends + posted.reads
}

/// Exchanges short messages by each path in memory, longer ones that are read in place, and bytes of a pipe.
fn talk(world: &World, other: usize) {
    let (me, first) = (world.rank(), world.rank() < other);
    for round in 0..100_u8 {
        let told = vec![round; 1 + usize::from(round)];
        if first {
            world.send(other, DATA, &told).unwrap();
            assert_eq!(world.recv(other, DATA).unwrap().0, told);
        } else {
            assert_eq!(world.recv(other, DATA).unwrap().0, told);
            world.send(other, DATA, &told).unwrap();
        }
    }
    for length in [10_000, 100_000, 1_000_000] {
        let sent = world.isend(other, DATA, vec![me as u8; length]);
        assert_eq!(world.recv(other, DATA).unwrap().0, vec![other as u8; length]);
        sent.wait().unwrap();
    }
    let mut pipe = world.pipe(other).unwrap();
    if first {
        pipe.write_all(&[7; 200_000]).unwrap();
    } else {
        let mut came = Vec::new();
        pipe.read_to_end(&mut came).unwrap();
        assert_eq!(came, [7; 200_000]);
    }
}

#[test]
fn messages_of_host_peers_use_shared_memory() {
    if skipped("a job on several hosts") {
        return;
    }
    on_verbs(4, "messages_of_host_peers_use_shared_memory", &[("TRANSOM_INTRANODE", "on")], |world| {
        // Forced to the adapter on one host, ranks share no memory.
        let several = std::env::var_os("TEST_HOSTS_ARE_SEVERAL").is_some();
        let (me, n) = (world.rank(), world.size());
        let posted = posts(&world, || talk(&world, me ^ 1));
        assert_eq!(posted == 0, several, "{posted} to a neighbour");
        // A rank that gets a message from another host answers there; these messages go one way.
        meet(&world).unwrap();
        let posted = posts(&world, || talk(&world, me ^ 2));
        assert!(posted > 0, "{posted} to another host");
        // A receive from any source gets the messages of all ranks on all paths, each source in order.
        const EACH: u64 = 50;
        let others: Vec<usize> = (0..n).filter(|rank| *rank != me).collect();
        let tag = Tag::<u64>::new(2);
        let mut next = vec![0; n];
        let mut sent = Vec::new();
        for number in 0..EACH {
            sent.extend(others.iter().map(|to| world.isend(*to, tag, vec![number])));
            for _ in &others {
                let (got, status) = world.recv(Source::Any, tag).unwrap();
                assert_eq!(got, [next[status.from]], "from {}", status.from);
                next[status.from] += 1;
            }
        }
        sent.into_iter().for_each(|sent| drop(sent.wait().unwrap()));
        next[me] = EACH;
        assert_eq!(next, vec![EACH; n]);
        // Collectives of a team of one host go straight through its memory, and not by messages.
        let team = world.split(Some(world.hosts().host(me) as u64), 0).unwrap().expect("a colour was named");
        let sums = |rounds: std::ops::Range<u64>| {
            for round in rounds {
                assert_eq!(team.all_reduce_one(round, Op::Sum).unwrap(), round * team.size() as u64);
                assert_eq!(team.all_gather(&[round; 5000]).unwrap(), vec![round; 5000 * team.size()]);
            }
        };
        sums(0..1); // they meet before the first
        let messages = || world.counters().map(|count| (count.eager, count.rendezvous)).unwrap();
        let before = messages();
        sums(1..20);
        assert!(!several || (team.size(), messages()) == (2, before), "{before:?}, {:?}", messages());
    });
}
