//! A search of a tree with branches of very different sizes: the number of ways to place n queens on an n x n board so
//! that none attacks another. Ranks that run out of work steal from other ranks, which continue meanwhile. The results
//! are compared with known numbers.

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
    /// Number of ranks to start
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=32767))]
    ranks: u16,
    /// Number of queens, and of rows and columns of the board
    #[arg(short, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=16))]
    n: u32,
}

/// Number of solutions for 1 queen, 2 queens and so on: OEIS A000170.
const SOLUTIONS: [u64; 16] = [1, 0, 0, 2, 10, 4, 40, 92, 352, 724, 2680, 14200, 73712, 365596, 2279184, 14772512];

/// A board: occupied columns, attacked diagonals of the next row (two words), and number of rows left.
type Board = [u32; 4];
/// Boards that a rank offers to thieves: their number, in the first word of entry 0, then the boards.
type Shared = [Board; 1 + CHUNK];
const CHUNK: usize = 32;
/// Boards with at most this many rows left are searched without stealing.
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

/// Returns the numbers of solutions, of boards searched and of boards stolen.
fn search(world: &World, n: u32) -> Result<[u64; 3], transom::Error> {
    let (me, ranks) = (world.rank(), world.size());
    // One mutex per rank, with that rank as its home.
    let queues: Vec<GlobalMutex<Shared>> = world.mutexes(ranks, |_| [[0; 4]; 1 + CHUNK])?;
    // A hint of the number of boards that each rank offers; then the number of idle ranks.
    let idle = ranks;
    let mut words = world.array::<u64, 1>([ranks + 1], Distribution::Cyclic)?;
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
            // Offers the oldest boards, which have the largest subtrees, once the previous offer is used up.
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
        // Not `try_lock`: a rank that leaves this loop must have no board left to offer.
        let mut queue = queues[me].lock()?;
        let left = take(&mut stack, &mut queue);
        all.fetch_and_op(me, Op::Replace, left)?;
        queue.unlock()?;
        if !stack.is_empty() {
            continue;
        }
        // This rank has no work; the hints show the offers of others. A rank that steals is not idle, so if all ranks
        // are idle no work is left.
        all.fetch_and_op(idle, Op::Sum, 1)?;
        while stack.is_empty() {
            victim = (victim + 1) % ranks;
            if all.fetch_and_op(victim, Op::NoOp, 0)? > 0 {
                all.fetch_and_op(idle, Op::Sum, u64::MAX)?; // one less
                // If another thief holds the lock, this rank tries the next victim.
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
                all.unlock()?;
                world.all_reduce(&mut found, Op::Sum)?;
                return Ok(found);
            } else {
                std::thread::yield_now();
            }
        }
    }
}

/// Takes half of the offered boards, rounded up; returns the number left.
fn take(stack: &mut Vec<Board>, queue: &mut Shared) -> u64 {
    let many = queue[0][0] as usize;
    let left = many / 2;
    stack.extend(&queue[1 + left..=many]);
    queue[0][0] = left as u32;
    left as u64
}

/// The boards with one more queen.
fn next(n: u32, [columns, left, right, rows]: Board) -> impl Iterator<Item = Board> {
    let free = !(columns | left | right) & ((1 << n) - 1);
    let queens = (0..n).map(|at| 1 << at).filter(move |queen| free & queen != 0);
    queens.map(move |queen| [columns | queen, (left | queen) << 1, (right | queen) >> 1, rows - 1])
}

/// Number of solutions of a board; `boards` counts the boards searched.
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
