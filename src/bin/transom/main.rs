//! The `transom` program: starts jobs on this machine, and tells what transom finds here.

mod info;
mod run;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use transom::variables::{self, VariableError};

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
}

const EXAMPLES: &str = "\
Examples:
  transom run -n 4 ./program        four ranks of a program on this machine
  transom run -n 4 --tag ./program  the same, each line with the rank that wrote it
  transom info                      what works here, limits, and all TRANSOM_ variables";

fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    let result = log().map_err(Into::into).and_then(|()| match command {
        Command::Run(run) => run.execute(),
        Command::Info(info) => info.execute(),
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

fn log() -> Result<(), VariableError> {
    if let Some(filter) = variables::get::<Targets>("TRANSOM_LOG")? {
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).without_time();
        // Nobody has set another one before: this is the program's first step.
        let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
    }
    Ok(())
}
