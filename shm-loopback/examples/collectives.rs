//! Measures collectives of processes on one machine. Each time is compared with a cache line ping-pong or with a copy
//! in private memory, measured in the same run. Run it with the number of processes (default 2): `cargo run --release
//! -p transom-shm-loopback --example collectives -- 4`.

use std::hint::black_box;
use std::process::Command;
use std::time::Instant;
use transom_collective::Order;
use transom_shm_loopback::collective::{Failure, ShmCollective};
use transom_shm_loopback::{Invitation, Job, Loopback};
use transom_windows::{Fabric, OobExchange};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(invitation) = Invitation::from_env()? {
        return Ok(rank(&invitation.join()?)?);
    }
    let ranks = std::env::args().nth(1).map_or(Ok(2), |ranks| ranks.parse())?;
    let job = Job::create(ranks)?;
    let start = |rank| Command::new(std::env::current_exe()?).envs(job.environment(rank)).spawn();
    let children = (0..ranks).map(start).collect::<Result<Vec<_>, _>>()?;
    for (rank, mut child) in children.into_iter().enumerate() {
        job.ended(rank, child.wait()?.success());
    }
    Ok(())
}

/// Returns the median and the minimum of several runs, in nanoseconds per round.
fn time(rounds: usize, mut round: impl FnMut() -> Result<(), Failure>) -> Result<(f64, f64), Failure> {
    let mut times = Vec::new();
    for _ in 0..25 {
        let begun = Instant::now();
        (0..rounds).try_for_each(|_| round())?;
        times.push(begun.elapsed().as_nanos() as f64 / rounds as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok((times[times.len() / 2], times[0]))
}

fn add(into: &mut [u8], with: &[u8], _: Order) {
    let (into, _) = into.as_chunks_mut::<8>();
    for (into, with) in into.iter_mut().zip(with.as_chunks::<8>().0) {
        *into = (f64::from_ne_bytes(*into) + f64::from_ne_bytes(*with)).to_ne_bytes();
    }
}

fn rank(team: &Loopback) -> Result<(), Failure> {
    let (me, ranks) = (team.rank(), team.size());
    bind(me);
    let mut board = ShmCollective::open(team)?;
    let report = |what: &str, (median, least): (f64, f64), beside: &str, unit: f64| {
        if me == 0 {
            let ratio = median / unit;
            println!("{what:<26} {:>10.3} us, at best {:>10.3}; {ratio:>7.2} x {beside}", median / 1e3, least / 1e3);
        }
    };
    let crossing = if ranks == 2 { crossing(team)? } else { (f64::NAN, f64::NAN) };
    report("bare crossing, one way", crossing, "itself", crossing.0);
    let few = if ranks > 2 { 200 } else { 5000 };
    let own = time(few, || Ok(team.barrier()?))?;
    report("barrier of the exchange", own, "a crossing", crossing.0);
    report("barrier", time(few, || board.barrier(1))?, "a crossing", crossing.0);
    let mut eight = 0_u64.to_ne_bytes();
    report("all_reduce 8 B", time(few, || board.all_reduce(2, &mut eight, 8, &mut add))?, "a crossing", crossing.0);
    report("broadcast 8 B", time(few, || board.broadcast(3, 0, &mut eight))?, "a crossing", crossing.0);
    for len in [64, 1 << 10, 4 << 10, 8 << 10, 16 << 10, 64 << 10, 1 << 20, 4 << 20] {
        let rounds = (if ranks > 2 { 4_000_000 } else { 20_000_000 } / (len + 4000)).clamp(4, 1000);
        let (mut data, mut other) = (vec![0_u8; len], vec![1_u8; len]);
        let copy = time(rounds, || {
            black_box(&mut other[..]).copy_from_slice(black_box(&data));
            Ok(())
        })?;
        let pass = time(rounds, || {
            add(black_box(&mut other), black_box(&data), Order::After);
            Ok(())
        })?;
        let kib = len as f64 / 1024.0;
        report(&format!("memcpy {kib:.3} KiB"), copy, "itself", copy.0);
        report("  a local add pass", pass, "memcpy", copy.0);
        board.barrier(4)?;
        report("  broadcast", time(rounds, || board.broadcast(5, 0, &mut data))?, "memcpy", copy.0);
        board.barrier(4)?;
        let both = time(rounds, || {
            board.broadcast(5, 0, &mut data)?;
            board.barrier(4)
        })?;
        report("  broadcast, barrier", both, "memcpy", copy.0);
        report("  all_to_all", time(rounds, || board.all_to_all(6, &data, &mut other))?, "memcpy", copy.0);
        report("  reduce", time(rounds, || board.reduce(7, 0, &mut data, 8, &mut add))?, "memcpy", copy.0);
        let reduced = time(rounds, || board.all_reduce(8, &mut data, 8, &mut add))?;
        report("  all_reduce", reduced, "memcpy", copy.0);
    }
    Ok(())
}

/// Binds each rank to a core of its own, as long as there are enough cores.
fn bind(rank: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(rank % std::thread::available_parallelism().map_or(1, |cores| cores.get()));
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Measures a ping-pong of two cache lines, and returns the time of one direction.
fn crossing(team: &Loopback) -> Result<(f64, f64), Failure> {
    let (me, other) = (team.rank(), 1 - team.rank());
    let (region, key) = team.allocate(64)?;
    let keys = team.all_gather(&key)?;
    let there = team.attach(other, &keys[other], 64)?;
    let word = |view| team.words(view, 0, 1).map(|words| &words[0]).expect("a word is there");
    let (mine, theirs) = (word(region.view()), word(&there));
    team.barrier()?;
    use std::sync::atomic::Ordering::*;
    let mut turn = 0;
    let (median, least) = time(20_000, || {
        turn += 1;
        if me == 0 {
            theirs.store(turn, Release);
        }
        while mine.load(Acquire) != turn {
            std::hint::spin_loop();
        }
        if me == 1 {
            theirs.store(turn, Release);
        }
        Ok(())
    })?;
    team.barrier()?;
    Ok((median / 2.0, least / 2.0))
}
