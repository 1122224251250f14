//! Kernels of the NAS Parallel Benchmarks (NPB 3.4): EP, IS, CG, MG and FT. Each is verified by the values that NPB
//! publishes, and counts operations as NPB does. Each file shows another way to communicate:
//!
//! | kernel | computes | communicates by |
//! |---|---|---|
//! | [`ep`] | Gaussian random pairs | `all_reduce` at the end |
//! | [`is`] | ranks of integer keys | `all_to_all_v`; or puts between fences; or [`pipes`] |
//! | [`cg`] | an eigenvalue of a sparse matrix | teams of rows and columns: `reduce_scatter_v`, `sendrecv`, `all_gather_v` |
//! | [`mg`] | a Poisson equation by multigrid | `sendrecv` of faces; `all_gather` of coarse grids |
//! | [`ft`] | a heat equation by 3-D FFT | `all_to_all_sections`; or puts of each row that is ready; or [`pipes`] |

mod cg;
mod ep;
mod fft;
mod ft;
mod is;
mod mg;
mod pipes;
mod problem;
mod random;

use clap::{Parser, ValueEnum};
use problem::{By, Class, Outcome};
use std::error::Error;
use std::process::ExitCode;
use transom::World;

/// Runs a kernel of the NAS Parallel Benchmarks, verifies the result and prints Mop/s.
///
/// Exits with an error if a result differs from the published one.
#[derive(Parser)]
#[command(after_help = "Examples:\n  cargo run --release --example nas -- cg --class S\n  \
                        cargo run --release --example nas -- ft --class W --ranks 2 --by one-sided\n  \
                        transom run -n 4 target/release/examples/nas mg --class A")]
struct Args {
    /// Kernel to run
    kernel: Kernel,
    /// Problem size
    #[arg(long, default_value = "S", ignore_case = true)]
    class: Class,
    /// Form of communication; IS and FT have all
    #[arg(long, default_value = "messages")]
    by: By,
    /// Number of ranks to start: a power of two, or any number for EP
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=32767))]
    ranks: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kernel {
    /// Embarrassingly parallel: Gaussian random pairs
    Ep,
    /// Integer sort: ranks of keys
    Is,
    /// Conjugate gradient: an eigenvalue of a sparse matrix
    Cg,
    /// Multigrid: a Poisson equation
    Mg,
    /// Fourier transform: a heat equation
    Ft,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Err(wrong) = args.check(args.ranks.into()) {
        eprintln!("nas: {wrong}");
        return ExitCode::from(2);
    }
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("nas: {error}");
            ExitCode::FAILURE
        }
    }
}

impl Args {
    /// Refuses a number of ranks, or a form, that the kernel does not have.
    fn check(&self, ranks: usize) -> Result<(), String> {
        let kernel = name(self.kernel);
        if self.by != By::Messages && !matches!(self.kernel, Kernel::Is | Kernel::Ft) {
            return Err(format!("{kernel} has no form by {}, only is and ft have; use --by messages", name(self.by)));
        }
        let most = match self.kernel {
            Kernel::Ep => return Ok(()),
            Kernel::Is => is::MOST_RANKS,
            Kernel::Cg => cg::MOST_RANKS,
            Kernel::Mg => mg::MOST_RANKS,
            Kernel::Ft => ft::most_ranks(self.class),
        };
        if ranks.is_power_of_two() && ranks <= most {
            return Ok(());
        }
        let class = self.class;
        Err(format!(
            "{kernel} class {class:?} on {ranks} ranks, expected a power of two from 1 to {most}; use --ranks 4"
        ))
    }
}

fn run(args: &Args) -> Result<bool, Box<dyn Error>> {
    let world = transom::start(args.ranks.into())?;
    // `transom run` may have started another number of ranks.
    args.check(world.size())?;
    let outcome = match args.kernel {
        Kernel::Ep => ep::run(&world, args.class),
        Kernel::Is => is::run(&world, args.class, args.by),
        Kernel::Cg => cg::run(&world, args.class),
        Kernel::Mg => mg::run(&world, args.class),
        Kernel::Ft => ft::run(&world, args.class, args.by),
    }?;
    let right = outcome.checks.iter().all(|check| check.right);
    if world.rank() == 0 {
        report(args, &world, &outcome);
    }
    Ok(right)
}

/// The name of a value on the command line.
fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().expect("no value is hidden").get_name().into()
}

fn report(args: &Args, world: &World, outcome: &Outcome) {
    let Outcome { iterations, seconds, mop, checks } = outcome;
    let (kernel, form) = (name(args.kernel).to_uppercase(), name(args.by));
    println!(
        "{kernel} class {:?} by {form}, ranks {}: {iterations} iterations, {seconds:.4} s, {:.2} Mop/s",
        args.class,
        world.size(),
        mop / seconds
    );
    for check in checks {
        println!("  {}{}", check.text, if check.right { "" } else { ": WRONG" });
    }
    let verdict = if checks.iter().all(|check| check.right) { "SUCCESSFUL" } else { "FAILED" };
    println!("VERIFICATION {verdict}");
}
