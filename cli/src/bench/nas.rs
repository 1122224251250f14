//! `transom bench nas`: the NAS kernels of the examples, with several configurations of messages, beside NPB itself.

use super::job::{self, JobError};
use super::machine::warn_of_circumstances;
use super::plain::config;
use super::progress::Progress;
use super::statistics::median;
use super::text::{Table, number};
use super::usage::Usage;
use clap::Args;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Runs NAS kernels with each configuration in turn, and compares their Mop/s.
///
/// The kernels are the example `nas`, which verifies each result. A result that is not verified is an error. With
/// several configurations, and with NPB's own programs, the jobs of a kernel alternate. A ratio compares two jobs of
/// the same round; the table shows the median of the rounds.
#[derive(Args)]
#[command(after_help = AFTER)]
pub struct Nas {
    /// Kernels to run: ep, is, cg, mg, ft [default: all; by one-sided and by pipes: is and ft]
    #[arg(value_name = "KERNEL", value_parser = KERNELS)]
    kernels: Vec<String>,
    /// Problem size
    #[arg(long, default_value = "W", value_parser = ["S", "W", "A"])]
    class: String,
    /// Form of communication
    #[arg(long, default_value = "messages", value_parser = ["messages", "one-sided", "pipes"])]
    by: String,
    /// Number of ranks of a job, a power of two
    #[arg(short = 'n', long, value_name = "RANKS", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=1024))]
    ranks: u16,
    /// Value of TRANSOM_MESSAGES, e.g. rings=0, or '' for the default (docs/configuration.md lists the fields). Jobs
    /// alternate between the values if the option is repeated
    #[arg(long = "config", value_name = "FIELDS", value_parser = config)]
    configs: Vec<String>,
    /// Number of jobs for each figure
    #[arg(long, value_name = "ROUNDS", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// The example `nas` [default: examples/nas beside this program]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Directory with NPB's programs, such as cg.W.2, which mpirun starts
    #[arg(long, value_name = "DIR")]
    npb: Option<PathBuf>,
    /// Program that starts NPB's programs
    #[arg(long, value_name = "FILE", default_value = "mpirun")]
    mpirun: PathBuf,
}

const KERNELS: [&str; 5] = ["ep", "is", "cg", "mg", "ft"];

const AFTER: &str = "\
Blocking collectives of ranks on one host use shared memory, not messages. There a configuration of messages affects mg,
cg on 4 or more ranks, and the pipes of is and ft.

Build the kernels first, with the same profile: cargo build --release -p transom-cli -p transom-examples --examples --bins

Examples:
  transom bench nas --class W
  transom bench nas mg cg -n 4 --config rings=8 --config rings=0 --config ring_slots=5
  transom bench nas --by pipes --config pipe=basic --config pipe=pipeline --config pipe=read
  transom bench nas --class A --npb NPB3.4-MPI/bin --mpirun mpirun.mpich";

/// Time limit of a job, for class A on a slow machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// A program that computes a kernel, by itself or with others in turn.
enum Turn {
    /// Our example, with a value of TRANSOM_MESSAGES.
    Ours(String),
    Npb,
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Job(#[from] JobError),
    #[error("its result is not verified:\n{0}")]
    Wrong(String),
    #[error("its output has no Mop/s, expected a number:\n{0}")]
    NoRate(String),
}

impl Nas {
    pub fn execute(self) -> Result<ExitCode, Box<dyn Error>> {
        let program = self.program()?;
        let mut turns: Vec<Turn> = match self.configs.is_empty() {
            true => vec![Turn::Ours(String::new())],
            false => self.configs.iter().cloned().map(Turn::Ours).collect(),
        };
        turns.extend(self.npb.as_ref().map(|_| Turn::Npb));
        let kernels = self.kernels();
        warn_of_circumstances();
        let progress = Progress::new(kernels.len() * turns.len() * usize::from(self.rounds));
        let mut table = Table::new(2, &["kernel", "by", "Mop/s", "min", "max", "x first"]);
        for kernel in &kernels {
            let mut rates = vec![Vec::new(); turns.len()];
            for _ in 0..self.rounds {
                for (turn, rates) in turns.iter().zip(&mut rates) {
                    let name = format!("{kernel} class {}, {}", self.class, turn.name());
                    progress.now(name.clone());
                    let rate = self.run(&program, kernel, turn).map_err(|why| format!("{name}: {why}"))?;
                    rates.push(rate);
                    progress.step(1);
                }
            }
            for (turn, other) in turns.iter().zip(&rates) {
                let ratios: Vec<f64> = other.iter().zip(&rates[0]).map(|(other, first)| other / first).collect();
                let [least, most] = [f64::min, f64::max].map(|of| other.iter().copied().reduce(of).unwrap_or(0.0));
                let numbers = [median(other), least, most, median(&ratios)].map(number);
                table.row([kernel.clone(), turn.name()].into_iter().chain(numbers).collect());
            }
        }
        progress.print(&table.to_string())?;
        Ok(ExitCode::SUCCESS)
    }

    fn kernels(&self) -> Vec<String> {
        let all = if self.by == "messages" { &KERNELS[..] } else { &["is", "ft"] };
        match self.kernels.is_empty() {
            true => all.iter().map(|&kernel| kernel.into()).collect(),
            false => self.kernels.clone(),
        }
    }

    fn program(&self) -> Result<PathBuf, Box<dyn Error>> {
        let beside = std::env::current_exe()?.with_file_name("examples").join("nas");
        let program = self.program.clone().unwrap_or(beside);
        match program.is_file() {
            true => Ok(program),
            false => {
                let text =
                    format!("{} is no file; build the example `nas`, or name it by --program", program.display());
                Err(Usage(text).into())
            }
        }
    }

    /// Runs a kernel and returns its Mop/s.
    fn run(&self, program: &Path, kernel: &str, turn: &Turn) -> Result<f64, Failure> {
        let ranks = self.ranks.to_string();
        let mut command = match (turn, &self.npb) {
            (Turn::Npb, Some(npb)) => {
                let mut command = Command::new(&self.mpirun);
                command.args(["-np", &ranks]).arg(npb.join(format!("{kernel}.{}.{ranks}", self.class)));
                command
            }
            _ => {
                let mut command = job::launch(self.ranks.into(), 1).map_err(JobError::Watch)?;
                command.arg(program).args([kernel, "--class", &self.class, "--by", &self.by]);
                command
            }
        };
        if let Turn::Ours(config) = turn
            && !config.is_empty()
        {
            command.env("TRANSOM_MESSAGES", config);
        }
        let (status, out, stderr) = job::execute(&mut command, PATIENCE)?;
        // Ours says VERIFICATION SUCCESSFUL, NPB's CG and MG too; each of NPB's programs says Verification = SUCCESSFUL.
        let verified = out.contains("SUCCESSFUL") && !out.contains("UNSUCCESSFUL");
        if !status.success() && !out.contains("FAILED") {
            return Err(JobError::Failed { status, stderr }.into());
        }
        match rate(&out) {
            _ if !verified => Err(Failure::Wrong(out)),
            Some(rate) => Ok(rate),
            None => Err(Failure::NoRate(out)),
        }
    }
}

impl Turn {
    fn name(&self) -> String {
        match self {
            Turn::Ours(config) if config.is_empty() => "default".into(),
            Turn::Ours(config) => config.clone(),
            Turn::Npb => "NPB".into(),
        }
    }
}

/// The number in `12.34 Mop/s`, or in NPB's line `Mop/s total     =        12.34`.
fn rate(output: &str) -> Option<f64> {
    output.lines().find_map(|line| {
        let (before, after) = line.split_once("Mop/s")?;
        let word = match after.trim_start().strip_prefix("total") {
            Some(after) => after.trim_start().strip_prefix('=')?.trim(),
            None => before.split_whitespace().last()?,
        };
        word.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::rate;

    #[test]
    fn rate_is_read_from_both_programs() {
        assert_eq!(rate("CG class S by messages, ranks 2: 15 iterations, 0.1 s, 12.50 Mop/s\n  zeta 8"), Some(12.5));
        assert_eq!(
            rate(" Time in seconds =  0.28\n Mop/s total     =       1402.67\n Mop/s/process = 7"),
            Some(1402.67)
        );
        assert_eq!(rate("VERIFICATION SUCCESSFUL\n"), None);
    }
}
