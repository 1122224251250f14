//! Messages and bytes that collectives send, of all ranks together, compared with the textbook. docs/results/rdma.md
//! has the table.
//!
//! Tests that need an RDMA device are skipped, with a message, on machines without one. `tests/soft-roce/verbs` runs
//! them in guests, and the last one on two hosts with 2 ranks each.

use crate::adapter;
use adapter::*;
use transom::collective::Rules;
use transom::messages::Error;
use transom::{Op, World};

/// Elements of 8 bytes: a quarter of them is a message that uses rendezvous, so that bytes are counted.
const LONG: usize = 8192;

/// A collective of ranks with as many elements each, or in each block, as the argument says. The root is rank 1.
type Call = fn(&World, usize) -> Result<(), Error>;
/// Messages and elements of `n` ranks, or hosts, of `m` elements.
type Formula = fn(usize, usize) -> (usize, usize);

const BARRIER: Call = |team, _| team.barrier();
const BROADCAST: Call = |team, m| team.broadcast(1, &mut of(m));
const REDUCE: Call = |team, m| team.reduce(1, &mut of(m), Op::Sum);
const ALL_REDUCE: Call = |team, m| team.all_reduce(&mut of(m), Op::Sum);
const REDUCE_SCATTER: Call = |team, m| team.reduce_scatter(&of(m * team.size()), &mut of(m), Op::Sum);
const SCAN: Call = |team, m| team.scan(&mut of(m), Op::Sum);
const GATHER: Call = |team, m| team.gather(1, &of(m)).map(drop);
const SCATTER: Call = |team, m| team.scatter(1, &of(m * team.size()), &mut of(m));
const ALL_GATHER: Call = |team, m| team.all_gather(&of(m)).map(drop);
const ALL_TO_ALL: Call = |team, m| team.all_to_all(&of(m * team.size()), &mut of(m * team.size()));

fn of(elements: usize) -> Vec<u64> {
    vec![1; elements]
}

/// Messages and bytes of all ranks together, in a call of `team`.
fn sent(world: &World, team: &World, call: Call, m: usize) -> (usize, usize) {
    let counts = || {
        let now = world.counters().unwrap();
        [now.eager + now.rendezvous, now.copied_bytes + now.written_bytes + now.read_bytes]
    };
    meet(world).unwrap();
    let before = counts();
    call(team, m).unwrap();
    let now = counts();
    let mut all = [now[0] - before[0], now[1] - before[1]];
    meet(world).unwrap();
    world.all_reduce(&mut all, Op::Sum).unwrap();
    // Builds with checks compare the calls of all ranks first, by a dissemination.
    let ranks = team.size();
    let compared = if cfg!(debug_assertions) { ranks * log(ranks) } else { 0 };
    (all[0] as usize - compared, all[1] as usize)
}

fn tell(world: &World, what: &str, m: usize, messages: usize, elements: usize) {
    if world.rank() == 0 {
        println!("\n| {what} | {m} | {messages} | {} |", 8 * elements);
    }
}

fn log(n: usize) -> usize {
    n.ilog2() as usize
}

#[test]
fn collective_traffic_matches_the_formulas() {
    if skipped("messages of collectives") {
        return;
    }
    let rows: [(&str, Call, usize, Formula); 19] = [
        ("barrier = dissemination", BARRIER, 0, |n, _| (n * log(n), 0)),
        ("broadcast = direct", BROADCAST, LONG, |n, m| (n - 1, (n - 1) * m)),
        ("broadcast = binomial", BROADCAST, LONG, |n, m| (n - 1, (n - 1) * m)),
        ("reduce = binomial", REDUCE, LONG, |n, m| (n - 1, (n - 1) * m)),
        ("all_reduce = recursive_doubling", ALL_REDUCE, LONG, |n, m| (n * log(n), n * log(n) * m)),
        ("all_reduce = pairwise", ALL_REDUCE, LONG, |n, m| (2 * n * (n - 1), 2 * (n - 1) * m)),
        ("all_reduce = rabenseifner", ALL_REDUCE, LONG, |n, m| (2 * n * log(n), 2 * (n - 1) * m)),
        ("all_reduce = ring", ALL_REDUCE, LONG, |n, m| (2 * n * (n - 1), 2 * (n - 1) * m)),
        ("reduce_scatter = pairwise", REDUCE_SCATTER, LONG, |n, m| (n * (n - 1), n * (n - 1) * m)),
        ("scan = recursive_doubling", SCAN, LONG, |n, m| (n * log(n), n * log(n) * m)),
        ("gather = direct", GATHER, LONG, |n, m| (n - 1, (n - 1) * m)),
        // A block passes as many edges as its rank has ones in binary.
        ("gather = binomial", GATHER, LONG, |n, m| (n - 1, n / 2 * log(n) * m)),
        ("scatter = direct", SCATTER, LONG, |n, m| (n - 1, (n - 1) * m)),
        ("scatter = binomial", SCATTER, LONG, |n, m| (n - 1, n / 2 * log(n) * m)),
        ("all_gather = direct", ALL_GATHER, LONG, |n, m| (n * (n - 1), n * (n - 1) * m)),
        ("all_gather = ring", ALL_GATHER, LONG, |n, m| (n * (n - 1), n * (n - 1) * m)),
        ("all_gather = bruck", ALL_GATHER, LONG, |n, m| (n * log(n), n * (n - 1) * m)),
        ("all_to_all = pairwise", ALL_TO_ALL, LONG, |n, m| (n * (n - 1), n * (n - 1) * m)),
        ("all_to_all = bruck", ALL_TO_ALL, LONG, |n, m| (n * log(n), n * log(n) * (n / 2) * m)),
    ];
    on_verbs(4, "collective_traffic_matches_the_formulas", &[("TRANSOM_INTRANODE", "off")], |world| {
        for (rule, call, m, formula) in rows {
            let team = world.split(Some(0), 0).unwrap().expect("every rank should be in the team");
            team.collectives_by(&rule.parse::<Rules>().unwrap()).unwrap();
            let (messages, elements) = formula(world.size(), m);
            assert_eq!(sent(&world, &team, call, m), (messages, 8 * elements), "{rule}, {m} elements");
            tell(&world, rule, m, messages, elements);
        }
    });
}

/// Each host acts as one rank: the blocks of its ranks go together.
#[test]
fn inter_host_traffic_matches_the_formulas() {
    if skipped("messages of collectives") {
        return;
    }
    // Counts on h hosts with 2 ranks each.
    let rows: [(&str, Call, usize, Formula); 11] = [
        ("barrier", BARRIER, 0, |h, _| (h * log(h), 0)),
        ("broadcast", BROADCAST, LONG, |h, m| (h - 1, (h - 1) * m)),
        // Shares; the root gets those of the other ranks.
        ("reduce", REDUCE, LONG, |h, m| (h * (h - 1) + h - 1, (h - 1) * m + (h - 1) * m / h)),
        ("all_reduce", ALL_REDUCE, LONG, |h, m| (2 * h * (h - 1), 2 * (h - 1) * m)),
        ("reduce_scatter", REDUCE_SCATTER, LONG, |h, m| (h * (h - 1), 2 * h * (h - 1) * m)),
        ("scan", SCAN, LONG, |h, m| (h * log(h), h * log(h) * m)),
        ("gather", GATHER, LONG, |h, m| (h - 1, 2 * (h - 1) * m)),
        ("scatter", SCATTER, LONG, |h, m| (h - 1, 2 * (h - 1) * m)),
        ("all_gather", ALL_GATHER, LONG, |h, m| (h * (h - 1), 2 * h * (h - 1) * m)),
        // Short ones go together.
        ("all_to_all", ALL_TO_ALL, 128, |h, m| (h * (h - 1), 4 * h * (h - 1) * m)),
        // Long blocks go from rank to rank.
        ("all_to_all", ALL_TO_ALL, LONG, |h, m| (2 * h * (2 * h - 1), 2 * h * (2 * h - 1) * m)),
    ];
    on_verbs(4, "inter_host_traffic_matches_the_formulas", &[("TRANSOM_INTRANODE", "on")], |world| {
        let hosts = world.hosts().count();
        // Forced to the adapter on one host, each rank counts as a host.
        assert_eq!(hosts, if std::env::var_os("TEST_HOSTS_ARE_SEVERAL").is_some() { 2 } else { 1 });
        for (name, call, m, formula) in rows.into_iter().filter(|_| hosts == 2) {
            let (messages, elements) = formula(hosts, m);
            let found = sent(&world, &world, call, m);
            assert_eq!(found.0, messages, "{name}, {m} elements");
            assert!(m < LONG || found.1 == 8 * elements, "{name}, {m} elements: {found:?}");
            tell(&world, name, m, messages, elements);
        }
    });
}
