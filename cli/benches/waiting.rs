//! Cost of waiting on an otherwise idle machine, and beside a computing process: `cargo bench --bench waiting`.
//!
//! There are as many ranks as cores. Every barrier, fence and hand-over by put_signal is timed, for a second each;
//! then again beside a process that only computes. TRANSOM_SPIN_US sets how long ranks spin.

use std::process::{Child, Command};
use std::time::{Duration, Instant};
use transom::{Error, Window, World};

/// A name, the timed operation, and its number of hand-overs.
type Row = (&'static str, Call, usize);
type Call = fn(&World, &mut Window<u64>, &mut u64) -> Result<(), Error>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ranks = std::thread::available_parallelism()?.get().max(2);
    let world = transom::start(ranks)?;
    let mut window: Window<u64> = world.allocate_with_signals(1, 1)?;
    let rows: [Row; 3] = [
        ("barrier", |world, _, _| Ok(world.barrier()?), 1),
        ("fence", |_, window, _| window.fence().map(drop), 1),
        ("put_signal, a hop", hand_round, ranks),
    ];
    if world.rank() == 0 {
        println!("{ranks} ranks, us{:>28} {:>9} {:>9} {:>9}", "median", "mean", "99 %", "worst");
    }
    let mut rounds = 0;
    let mut quiet = Vec::new();
    for beside in [false, true] {
        let _busy = (beside && world.rank() == 0).then(Busy::start).transpose()?;
        for (number, (name, call, hops)) in rows.iter().enumerate() {
            let mut times = timed(&world, &mut window, &mut rounds, *call)?;
            times.iter_mut().for_each(|time| *time /= *hops as f64);
            times.sort_by(f64::total_cmp);
            let part = |of: f64| times[((times.len() - 1) as f64 * of) as usize];
            if world.rank() == 0 {
                let (median, mean) = (part(0.5), times.iter().sum::<f64>() / times.len() as f64);
                quiet.push(median);
                let how = if beside { "beside a busy process" } else { "quiet" };
                print!("{name:<17} {how:<21} {median:>6.2} {mean:>9.2} {:>9.2} {:>9.0}", part(0.99), part(1.0));
                println!("{}", if beside { format!("   {:.1} times", median / quiet[number]) } else { String::new() });
            }
        }
    }
    Ok(())
}

/// Calls it for a second, the same number of times at all ranks. Returns the microseconds of each call here.
fn timed(world: &World, window: &mut Window<u64>, rounds: &mut u64, call: Call) -> Result<Vec<f64>, Error> {
    const CALLS: usize = 1000;
    let (begun, mut times) = (Instant::now(), Vec::new());
    loop {
        for _ in 0..CALLS {
            let call_begun = Instant::now();
            call(world, window, rounds)?;
            times.push(call_begun.elapsed().as_secs_f64() * 1e6);
        }
        // Rank 0 decides whether to go on.
        window.local().set(0, u64::from(begun.elapsed() < Duration::from_secs(1)))?;
        window.fence()?;
        let go_on = window.lock_shared(0)?.get_one(0)? == 1;
        window.fence()?;
        if !go_on {
            return Ok(times);
        }
    }
}

/// A signal goes from rank to rank, once round, after `rounds` earlier rounds.
fn hand_round(world: &World, window: &mut Window<u64>, rounds: &mut u64) -> Result<(), Error> {
    let (me, next) = (world.rank(), (world.rank() + 1) % world.size());
    *rounds += 1;
    let (epoch, rounds) = (window.lock_all()?, *rounds);
    if me == 0 {
        epoch.target(next)?.put_signal(0, &[rounds], 0, 1)?;
    }
    epoch.signals().wait_until(0, |signals| signals >= rounds)?;
    if me != 0 {
        epoch.target(next)?.put_signal(0, &[rounds], 0, 1)?;
    }
    epoch.unlock()
}

/// A process that only computes, until this value is dropped.
struct Busy(Child);

impl Busy {
    fn start() -> std::io::Result<Self> {
        Command::new("sh").args(["-c", "while :; do :; done"]).spawn().map(Busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
