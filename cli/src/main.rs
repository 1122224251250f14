//! The `transom` program: starts jobs, describes this machine, checks hosts, measures, and checks mixes of lock requests.

mod bench;
mod doctor;
mod host_agent;
mod info;
mod run;
mod verify;

use clap::{Parser, Subcommand};
use std::io::{self, Write};
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
    Doctor(doctor::Doctor),
    Bench(Box<bench::Bench>),
    Verify(verify::Verify),
    #[command(hide = true)]
    BenchWorker(bench::worker::Worker),
    #[command(hide = true)]
    DoctorRank(doctor::Rank),
    #[command(hide = true)]
    HostAgent(host_agent::HostAgent),
    #[command(hide = true)]
    LocalShell(bench::LocalShell),
}

const EXAMPLES: &str = "\
Examples:
  transom run -n 4 ./program        four ranks of a program on this machine
  transom run -n 4 --output-prefix ./program
                                    as above, and also lines of stdout begin with their rank
  transom info                      providers, limits, and all TRANSOM_ variables
  transom doctor --hosts a,b        checks both hosts and the networks between them
  transom bench --quick             latency, bandwidth, locks and more, compared with the machine's limits
  transom bench compare             compares with every Open MPI and MPICH found here
  transom verify 'W W | R R | TW'   checks the lock under every schedule of these requests";

fn main() -> ExitCode {
    let mut words: Vec<_> = std::env::args_os().collect();
    let mut parsed = Cli::try_parse_from(&words);
    while parsed.is_err() && run::rewrite_for_mpirun(&mut words) {
        parsed = Cli::try_parse_from(&words);
    }
    let Cli { command } = parsed.unwrap_or_else(|error| error.exit());
    let logging = transom::log_from_env();
    let result = match (command, logging) {
        // `info` itself shows mistakes in variables.
        (Command::Info(info), _) => info.execute(),
        (_, Err(error)) => Err(error.into()),
        (Command::Run(run), Ok(())) => run.execute(),
        (Command::Doctor(doctor), Ok(())) => doctor.execute(),
        (Command::DoctorRank(rank), Ok(())) => rank.execute(),
        (Command::Bench(bench), Ok(())) => bench.execute(),
        (Command::Verify(verify), Ok(())) => verify.execute(),
        (Command::BenchWorker(worker), Ok(())) => worker.execute(),
        (Command::HostAgent(agent), Ok(())) => agent.execute(),
        (Command::LocalShell(shell), Ok(())) => shell.execute(),
    };
    result.unwrap_or_else(|error| {
        // The error, and each cause that its message does not repeat.
        let causes = std::iter::successors(error.source(), |cause| cause.source()).map(ToString::to_string);
        let all = causes.fold(error.to_string(), |all, cause| match all.contains(&cause) {
            true => all,
            false => format!("{all}: {cause}"),
        });
        complain(&all);
        ExitCode::from(run::exit_code(error.as_ref()))
    })
}

/// Prints an error on stderr. Ignores write errors; `eprintln!` would panic if the reader has closed stderr.
fn complain(what: &str) {
    let _ = writeln!(io::stderr(), "transom: {what}");
}
