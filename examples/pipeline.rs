//! A wavefront over a 2-D grid, the pattern of the Parallel Research Kernel Synch_p2p. Each element needs its left,
//! upper and upper left neighbours, so ranks, which own groups of columns, work on the rows one after the other. Each
//! rank passes its last column on by put-with-signal, which combines data and notification; or, with `--messages`, by
//! send and receive.

use clap::Parser;
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;
use transom::messages::Tag;
use transom::{Window, World};

/// Computes A(i,j) = A(i-1,j) + A(i,j-1) - A(i-1,j-1) as a pipeline of ranks, and checks the last corner.
#[derive(Parser)]
#[command(after_help = "Examples:\n  cargo run --release --example pipeline -- --ranks 2\n  \
                        cargo run --release --example pipeline -- --ranks 4 --rows 2000 --columns 2000 --group 10\n  \
                        cargo run --release --example pipeline -- --ranks 2 --messages")]
struct Args {
    /// Number of ranks to start
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=32767))]
    ranks: u16,
    /// Rows of the grid
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..))]
    rows: u32,
    /// Columns of the grid, distributed over the ranks; at least two for each rank
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..))]
    columns: u32,
    /// Number of iterations over the grid
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// Rows that are passed on together: more rows mean less communication, but a later start of the last ranks
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    group: u32,
    /// Pass the columns on as messages instead of put-with-signal
    #[arg(long)]
    messages: bool,
}

/// Message with elements of a rank's last column, or with the corner.
const COLUMN: Tag<f64> = Tag::new(1);

fn main() -> ExitCode {
    let args = Args::parse();
    if args.columns < 2 * u32::from(args.ranks) {
        eprintln!(
            "pipeline: {} columns for {} ranks, expected at least two for each rank; use --columns {} or more",
            args.columns,
            args.ranks,
            2 * u32::from(args.ranks)
        );
        return ExitCode::from(2);
    }
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("pipeline: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<bool, Box<dyn Error>> {
    let world = transom::start(args.ranks.into())?;
    let (rows, columns) = (args.rows as usize, args.columns as usize);
    if columns < 2 * world.size() {
        return Err(format!("{columns} columns for {} ranks, expected at least two for each rank", world.size()).into());
    }
    // Elements from the left neighbour, one per row; the signal counts the rows received in all iterations.
    let mut window: Window<f64> = world.allocate_with_signals(rows, 1)?;
    world.barrier()?;
    let begun = Instant::now();
    let corner = sweep(&world, &mut window, args)?;
    world.barrier()?;
    let seconds = begun.elapsed().as_secs_f64();

    // Every element of the first row and column is its index; each iteration adds the corner's value.
    let expected = f64::from(args.iterations) * (rows + columns - 2) as f64;
    let right = corner.is_none_or(|corner| corner == expected);
    if let Some(corner) = corner {
        let flops = 2.0 * (rows - 1) as f64 * (columns - 1) as f64 * f64::from(args.iterations);
        println!("pipeline of {} ranks over {rows} x {columns}, {} times", world.size(), args.iterations);
        println!("  time    {seconds:.4} s");
        println!("  speed   {:.1} MFLOP/s", flops / seconds / 1e6);
        println!("  corner  {corner} ({})", if right { "right" } else { "WRONG" });
    }
    Ok(right)
}

/// Iterates over the grid; the last rank returns the corner.
fn sweep(world: &World, window: &mut Window<f64>, args: &Args) -> Result<Option<f64>, transom::Error> {
    let (me, ranks, rows, columns) = (world.rank(), world.size(), args.rows as usize, args.columns as usize);
    let mine = world.share(columns);
    // One additional column on the left: the neighbour's last.
    let width = mine.len() + 1;
    let mut grid = vec![0.0; rows * width];
    for (j, above) in grid[..width].iter_mut().enumerate() {
        *above = (mine.start + j) as f64 - 1.0;
    }
    if me == 0 {
        for (i, row) in grid.chunks_exact_mut(width).enumerate() {
            row[1] = i as f64;
        }
    }
    let epoch = window.lock_all()?;
    let mut column = vec![0.0; rows.min(args.group as usize)];
    let (next, start) = (epoch.target((me + 1) % ranks)?, epoch.target(0)?);
    for iteration in 0..args.iterations as usize {
        for group in (1..rows).step_by(args.group as usize) {
            let group = group..rows.min(group + args.group as usize);
            if me > 0 && args.messages {
                let column = &mut column[..group.len()];
                world.recv_into(me - 1, COLUMN, column)?;
                group.clone().zip(column).for_each(|(i, left)| grid[i * width] = *left);
            } else if me > 0 {
                // Rows are counted over all iterations, so that the signal need not be reset.
                let handed_on = iteration * (rows - 1) + group.end - 1;
                epoch.signals().wait_until(0, |rows| rows >= handed_on as u64)?;
                for i in group.clone() {
                    grid[i * width] = epoch.local().get(i)?;
                }
            }
            for i in group.clone() {
                let (above, row) = grid[(i - 1) * width..(i + 1) * width].split_at_mut(width);
                // The first column of rank 0 is given.
                let first = if me == 0 { 2 } else { 1 };
                let mut left = row[first - 1];
                for (x, above) in row[first..].iter_mut().zip(above[first - 1..].windows(2)) {
                    // Only one of the two additions depends on the previous element.
                    left += above[1] - above[0];
                    *x = left;
                }
            }
            if me + 1 < ranks {
                let last: Vec<f64> = group.clone().map(|i| grid[i * width + width - 1]).collect();
                match args.messages {
                    true => world.send(me + 1, COLUMN, &last)?,
                    false => next.put_signal(group.start, &last, 0, group.len() as u64)?,
                }
            }
        }
        // The corner is passed to rank 0: the next iteration starts from its negative.
        let corner = grid[rows * width - 1];
        if ranks == 1 {
            grid[1] = -corner;
        } else if me == ranks - 1 {
            match args.messages {
                true => world.send(0, COLUMN, &[-corner])?,
                false => start.put_signal(0, &[-corner], 0, 1)?,
            }
        } else if me == 0 && args.messages {
            world.recv_into(ranks - 1, COLUMN, &mut grid[1..2])?;
        } else if me == 0 {
            epoch.signals().wait_until(0, |corners| corners > iteration as u64)?;
            grid[1] = epoch.local().get(0)?;
        }
        if iteration + 1 == args.iterations as usize && me == ranks - 1 {
            return Ok(Some(corner));
        }
    }
    Ok(None)
}
