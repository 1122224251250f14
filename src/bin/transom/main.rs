//! The `transom` program: starts jobs on this machine, tells what transom finds here, and measures.

mod bench;
mod info;
mod run;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// One-sided RMA and PGAS: runs programs as jobs of ranks that put, get and lock each other's memory.
#[derive(Parser)]
#[command(version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Run),
    Info(info::Info),
    Bench(Box<bench::Bench>),
    #[command(hide = true)]
    BenchWorker(bench::worker::Worker),
}

const EXAMPLES: &str = "\
Examples:
  transom run -n 4 ./program        four ranks of a program on this machine
  transom run -n 4 --tag ./program  the same, each line with the rank that wrote it
  transom info                      what works here, limits, and all TRANSOM_ variables
  transom bench --quick             latency, bandwidth, locks and more, beside the machine's limits
  transom bench compare             the same against every Open MPI and MPICH found here";

fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    let result = transom::log_from_env().map_err(Into::into).and_then(|()| match command {
        Command::Run(run) => run.execute(),
        Command::Info(info) => info.execute(),
        Command::Bench(bench) => bench.execute(),
        Command::BenchWorker(worker) => worker.execute(),
    });
    result.unwrap_or_else(|error| {
        // A line for what failed and for each cause that it does not name itself.
        let causes = std::iter::successors(error.source(), |cause| cause.source()).map(ToString::to_string);
        let all = causes.fold(error.to_string(), |all, cause| match all.contains(&cause) {
            true => all,
            false => format!("{all}: {cause}"),
        });
        eprintln!("transom: {all}");
        ExitCode::from(run::exit_code(error.as_ref()))
    })
}
