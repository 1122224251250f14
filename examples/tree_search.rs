//! A search of a tree whose branches are of very different sizes: in how many ways n queens stand on a board of n x n without
//! attacking each other. Ranks that run out of work take it from others, who go on meanwhile. The numbers are known.

use clap::Parser;
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;
use transom::{Distribution, GlobalMutex, Op, World};

/// Counts the solutions of the n queens problem; ranks steal work from each other.
#[derive(Parser)]
#[command(after_help = "Examples:\n  cargo run --release --example tree_search -- --ranks 4\n  \
                        cargo run --release --example tree_search -- --ranks 2 -n 14")]
struct Args {
    /// How many ranks to start
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=32767))]
    ranks: u16,
    /// Queens
    #[arg(short, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=16))]
    n: u32,
}

/// Of 1 queen and so on: OEIS A000170.
const SOLUTIONS: [u64; 16] = [1, 0, 0, 2, 10, 4, 40, 92, 352, 724, 2680, 14200, 73712, 365596, 2279184, 14772512];

/// A board: columns that are taken, diagonals that are in the next row, and how many rows are left.
type Board = [u32; 4];
/// What a rank lets others take: how many there are, in the first number of the first, and the boards.
type Shared = [Board; 1 + CHUNK];
const CHUNK: usize = 32;
/// Boards of so few rows are searched at once.
const SMALL: u32 = 6;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tree_search: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<bool, Box<dyn Error>> {
    let world = transom::start(args.ranks.into())?;
    let begun = Instant::now();
    let [solutions, boards, stolen] = search(&world, args.n)?;
    let right = SOLUTIONS[args.n as usize - 1];
    if world.rank() == 0 {
        let (seconds, verdict) = (begun.elapsed().as_secs_f64(), if solutions == right { "right" } else { "WRONG" });
        println!(
            "{} queens: {solutions} solutions, which is {verdict}; {boards} boards, {stolen} stolen, {seconds:.3} s, {:.1} million/s",
            args.n,
            boards as f64 / seconds / 1e6
        );
    }
    Ok(solutions == right)
}

/// The solutions, boards looked at, and how many of these were stolen.
fn search(world: &World, n: u32) -> Result<[u64; 3], transom::Error> {
    let (me, ranks) = (world.rank(), world.size());
    // One at each rank, which is its home.
    let queues: Vec<GlobalMutex<Shared>> = world.mutexes(ranks, |_| [[0; 4]; 1 + CHUNK])?;
    // How many each rank has to be taken, as a hint; then how many ranks are idle; then the results.
    let (idle, results) = (ranks, ranks + 1);
    let mut words = world.array::<u64, 1>([ranks + 4], Distribution::Cyclic)?;
    let all = words.lock_all()?;
    let mut stack: Vec<Board> = if me == 0 { vec![[0, 0, 0, n]] } else { Vec::new() };
    let (mut found, mut victim) = ([0; 3], me);
    loop {
        while let Some(board) = stack.pop() {
            found[1] += 1;
            if board[3] <= SMALL {
                found[0] += count(n, board, &mut found[1]);
                continue;
            }
            stack.extend(next(n, board));
            // The oldest, which are the largest, for others; if these took the last.
            if stack.len() > 2 && all.fetch_and_op(me, Op::NoOp, 0)? == 0 {
                let many = (stack.len() / 2).min(CHUNK);
                let mut queue = queues[me].lock()?;
                queue[0][0] = many as u32;
                queue[1..=many].copy_from_slice(&stack[..many]);
                stack.drain(..many);
                all.fetch_and_op(me, Op::Replace, many as u64)?;
                queue.unlock()?;
            }
        }
        // Not by an attempt: who leaves this loop must have nothing left for others.
        let mut queue = queues[me].lock()?;
        let left = take(&mut stack, &mut queue);
        all.fetch_and_op(me, Op::Replace, left)?;
        queue.unlock()?;
        if !stack.is_empty() {
            continue;
        }
        // Nothing is left here, and what others have, they say. Who takes is not idle: if all are, there is nothing anywhere.
        all.fetch_and_op(idle, Op::Sum, 1)?;
        while stack.is_empty() {
            victim = (victim + 1) % ranks;
            if all.fetch_and_op(victim, Op::NoOp, 0)? > 0 {
                all.fetch_and_op(idle, Op::Sum, u64::MAX)?; // one less
                // If another is at it, there are more to ask.
                if let Some(mut queue) = queues[victim].try_lock()? {
                    let left = take(&mut stack, &mut queue);
                    all.fetch_and_op(victim, Op::Replace, left)?;
                    queue.unlock()?;
                    found[2] += stack.len() as u64;
                }
                if stack.is_empty() {
                    all.fetch_and_op(idle, Op::Sum, 1)?;
                }
            } else if all.fetch_and_op(idle, Op::NoOp, 0)? == ranks as u64 {
                for (at, found) in found.into_iter().enumerate() {
                    all.fetch_and_op(results + at, Op::Sum, found)?;
                }
                all.unlock()?;
                let mut sums = [0; 3];
                words.fence()?.get(results..results + 3, &mut sums)?;
                words.fence()?;
                return Ok(sums);
            } else {
                std::thread::yield_now();
            }
        }
    }
}

/// Takes half of what is shared, or all of one; how many are left.
fn take(stack: &mut Vec<Board>, queue: &mut Shared) -> u64 {
    let many = queue[0][0] as usize;
    let left = many / 2;
    stack.extend(&queue[1 + left..=many]);
    queue[0][0] = left as u32;
    left as u64
}

/// The boards with a queen more.
fn next(n: u32, [columns, left, right, rows]: Board) -> impl Iterator<Item = Board> {
    let free = !(columns | left | right) & ((1 << n) - 1);
    let queens = (0..n).map(|at| 1 << at).filter(move |queen| free & queen != 0);
    queens.map(move |queen| [columns | queen, (left | queen) << 1, (right | queen) >> 1, rows - 1])
}

/// The solutions of a board; `boards` counts those looked at.
fn count(n: u32, board: Board, boards: &mut u64) -> u64 {
    if board[3] == 0 {
        return 1;
    }
    let mut solutions = 0;
    for board in next(n, board) {
        *boards += 1;
        solutions += count(n, board, boards);
    }
    solutions
}
