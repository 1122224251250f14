//! Limits of a host that jobs meet.

use super::finding::Finding;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::io::IoSliceMut;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Open files of a launcher: those of each rank, and others.
const FILES_OF_RANK: u64 = 3;
const FILES: u64 = 48;
/// Processes of a job on a host, where this program starts the ranks: those of each rank, and others. The kernel counts
/// threads too; a rank over a network has two beside its own.
const PROCESSES_OF_RANK: u64 = 3;
const PROCESSES: u64 = 3;
/// Bytes in /dev/shm for the output and the input of a rank on a host.
const ROOM_OF_RANK: u64 = 3 * (64 << 10);
/// Age from which a folder of a launcher is a leftover: jobs remove theirs once their ranks have started.
const LEFTOVER: Duration = Duration::from_secs(120);
/// Bits of capabilities in /proc/self/status.
const CAP_IPC_LOCK: u32 = 14;
const CAP_SYS_PTRACE: u32 = 19;

/// Checks all limits. `has_rdma`: the host has an RDMA device, which locks memory.
pub fn all(has_rdma: bool) -> Vec<Finding> {
    let (allowed, online) = cores();
    let ranks = allowed as u64;
    let limit = |resource| getrlimit(resource);
    let mut findings = vec![
        Finding::ok("system", system()),
        of_cores(allowed, online),
        open_files(limit(Resource::Nofile).maximum, ranks),
        processes(limit(Resource::Nproc).current.filter(|_| !is_root()), cgroup_processes(), ranks),
        locked_memory(limit(Resource::Memlock).current.filter(|_| !may(CAP_IPC_LOCK)), has_rdma),
        room(Path::new("/dev/shm"), ranks),
        copies(read("/proc/sys/kernel/yama/ptrace_scope"), may(CAP_SYS_PTRACE), copies_here()),
        taskset(std::env::var_os("PATH").is_some_and(|path| is_in("taskset", &path))),
    ];
    findings.extend(leftovers(Path::new("/dev/shm")));
    findings
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns whether this process has a capability.
fn may(capability: u32) -> bool {
    let status = read("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    effective.is_some_and(|effective| effective >> capability & 1 == 1)
}

fn system() -> String {
    let name = rustix::system::uname();
    let text = [name.sysname(), name.release(), name.machine()].map(|part| part.to_string_lossy());
    text.join(" ")
}

/// Cores that this process may use, by its affinity and cgroup, and cores of the host.
fn cores() -> (usize, usize) {
    let online = read("/proc/stat").unwrap_or_default();
    let of_core =
        |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let online = online.lines().filter(of_core).count();
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    (allowed, online.max(allowed))
}

fn of_cores(allowed: usize, online: usize) -> Finding {
    let found = format!("{allowed} of {online} allowed by cgroup and affinity");
    match allowed {
        1 if online > 1 => Finding::warning(
            "cores",
            found,
            "if ranks are to use more: ask the batch system for them (Slurm: --cpus-per-task, srun --cpu-bind=none)",
        ),
        _ => Finding::ok("cores", found),
    }
}

fn open_files(maximum: Option<u64>, ranks: u64) -> Finding {
    let need = FILES + FILES_OF_RANK * ranks;
    match maximum {
        None => Finding::ok("open files", "unlimited"),
        Some(files) if files < need => Finding::warning(
            "open files",
            format!("{files} at most; a launcher of {ranks} ranks needs {need}"),
            format!("add `* - nofile {}` to /etc/security/limits.conf", need.next_power_of_two().max(65536)),
        ),
        Some(files) => {
            let ranks = files.saturating_sub(FILES) / FILES_OF_RANK;
            Finding::ok("open files", format!("{files} at most, enough for a launcher of {ranks} ranks"))
        }
    }
}

/// `user` is the limit of this user, `cgroup` that of the cgroup and its parents.
fn processes(user: Option<u64>, cgroup: Option<u64>, ranks: u64) -> Finding {
    let need = PROCESSES + PROCESSES_OF_RANK * ranks;
    let limits = [user.map(|most| (most, "ulimit -u")), cgroup.map(|most| (most, "pids.max of the cgroup"))];
    match limits.into_iter().flatten().min() {
        None => Finding::ok("processes", "unlimited"),
        Some((most, name)) if most < need => Finding::warning(
            "processes",
            format!("{most} at most ({name}); {ranks} ranks with --hosts need {need}, with their threads"),
            "add `* - nproc 65536` to /etc/security/limits.conf, or raise the limit of the cgroup (systemd: TasksMax=)",
        ),
        Some((most, name)) => Finding::ok("processes", format!("{most} at most ({name})")),
    }
}

/// The least number of processes that the cgroup of this process, or one above it, may have.
fn cgroup_processes() -> Option<u64> {
    let groups = read("/proc/self/cgroup")?;
    let of_group = |line: &str| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let top = match controllers {
            "" => PathBuf::from("/sys/fs/cgroup"),
            "pids" => PathBuf::from("/sys/fs/cgroup/pids"),
            _ => return None,
        };
        let group = top.join(path.trim_start_matches('/'));
        let limits = group.ancestors().take_while(|folder| folder.starts_with(&top));
        limits.filter_map(|folder| read(folder.join("pids.max"))?.parse::<u64>().ok()).min()
    };
    groups.lines().filter_map(of_group).min()
}

/// `limit` in bytes; `None` if memory may be locked without limit.
fn locked_memory(limit: Option<u64>, has_rdma: bool) -> Finding {
    match limit {
        None => Finding::ok("memlock", "unlimited"),
        Some(bytes) if has_rdma => Finding::warning(
            "memlock",
            format!("{} KiB; RDMA locks windows and buffers in memory", bytes >> 10),
            "add `* - memlock unlimited` to /etc/security/limits.conf, or LimitMEMLOCK=infinity to the service (sshd, slurmd)",
        ),
        Some(bytes) => Finding::ok("memlock", format!("{} KiB; only RDMA needs more", bytes >> 10)),
    }
}

fn room(folder: &Path, ranks: u64) -> Finding {
    let subject = folder.display().to_string();
    let need = ROOM_OF_RANK * ranks;
    let advice = |what: &str| format!("{what}; without it ranks on hosts use TMPDIR, or lose output");
    match rustix::fs::statvfs(folder) {
        Err(error) => Finding::warning(&subject, error.to_string(), advice("mount a tmpfs there")),
        Ok(_) if rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).is_err() => {
            Finding::warning(&subject, "not writable", advice(&format!("`chmod 1777 {subject}`")))
        }
        Ok(found) => {
            let [free, all] = [found.f_bavail, found.f_blocks].map(|blocks| blocks.saturating_mul(found.f_frsize));
            let text = format!("{} of {} MiB free", free >> 20, all >> 20);
            match free < need {
                true => Finding::warning(
                    &subject,
                    format!("{text}; the output of {ranks} ranks needs {} MiB", need.div_ceil(1 << 20)),
                    advice(&format!("`mount -o remount,size=1G {subject}`, or remove files")),
                ),
                false => Finding::ok(&subject, text),
            }
        }
    }
}

/// Folders of launchers that were killed.
fn leftovers(folder: &Path) -> Option<Finding> {
    let is_old = |entry: &fs::DirEntry| {
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        modified.is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age > LEFTOVER))
    };
    let is_of_launcher = |entry: &fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.strip_prefix("transom.")
            .is_some_and(|rest| rest.len() == 16 && rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    let entries = fs::read_dir(folder).ok()?.flatten();
    let found = entries.filter(is_of_launcher).filter(is_old).count();
    let minutes = LEFTOVER.as_secs() / 60;
    let advice =
        format!("`find {} -maxdepth 1 -name 'transom.*' -mmin +{minutes} -exec rm -r {{}} +`", folder.display());
    (found > 0).then(|| {
        Finding::warning("leftovers", format!("{found} folders of killed launchers in {}", folder.display()), advice)
    })
}

/// Copies between processes. `scope` is that of Yama, if the kernel has it; `tried` is a copy within this process.
fn copies(scope: Option<String>, is_tracer: bool, tried: Result<(), String>) -> Finding {
    let subject = "copies";
    let limits = "windows on memory of the program, and long messages, then fail or are slow";
    let scope = scope.unwrap_or_else(|| "none".into());
    match tried {
        Err(why) => Finding::warning(
            subject,
            format!("process_vm_readv: {why}; {limits}"),
            "allow process_vm_readv and process_vm_writev (seccomp profile of a container; docker: --cap-add SYS_PTRACE)",
        ),
        // Ranks permit each other what the scope 1 forbids.
        Ok(()) if matches!(scope.as_str(), "2" | "3") && !(scope == "2" && is_tracer) => Finding::warning(
            subject,
            format!("ptrace_scope is {scope}, which forbids copies between ranks; {limits}"),
            "`sysctl kernel.yama.ptrace_scope=1`",
        ),
        Ok(()) => Finding::ok(subject, format!("between processes of this user (ptrace_scope {scope})")),
    }
}

/// Tries the system call, which a sandbox may forbid.
fn copies_here() -> Result<(), String> {
    let (from, mut to) = ([7_u8], [0_u8]);
    let remote = RemoteIoVec { base: from.as_ptr().addr(), len: 1 };
    let read = process_vm_readv(Pid::this(), &mut [IoSliceMut::new(&mut to)], &[remote]);
    read.map(drop).map_err(|errno| errno.desc().to_owned())
}

fn is_in(program: &str, path: &std::ffi::OsStr) -> bool {
    std::env::split_paths(path).any(|folder| folder.join(program).is_file())
}

fn taskset(found: bool) -> Finding {
    match found {
        true => Finding::ok("taskset", "found, for --bind-to on hosts"),
        false => Finding::warning("taskset", "not found; --bind-to binds no rank on this host", "install util-linux"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict::{self, Ok as Good, Warning};

    #[test]
    fn limits_below_the_need_of_all_cores_are_warnings() {
        let verdicts = |findings: &[Finding]| findings.iter().map(|finding| finding.verdict).collect::<Vec<Verdict>>();
        let files = [open_files(None, 64), open_files(Some(240), 64), open_files(Some(239), 64)];
        assert_eq!(verdicts(&files), [Good, Good, Warning]);
        let processes = [
            processes(None, None, 64),
            processes(Some(195), None, 64),
            processes(Some(194), Some(1000), 64),
            processes(Some(1000), Some(194), 64),
        ];
        assert_eq!(verdicts(&processes), [Good, Good, Warning, Warning]);
        assert!(processes[3].found.contains("194 at most (pids.max of the cgroup)"), "{}", processes[3].found);
        assert_eq!(verdicts(&[of_cores(1, 1), of_cores(2, 64), of_cores(1, 2)]), [Good, Good, Warning]);
        let memory = [locked_memory(None, true), locked_memory(Some(65536), false), locked_memory(Some(65536), true)];
        assert_eq!(verdicts(&memory), [Good, Good, Warning]);
    }

    #[test]
    fn copies_are_refused_by_scope_or_sandbox() {
        let verdict = |scope: Option<&str>, is_tracer, tried: Result<(), &str>| {
            copies(scope.map(str::to_owned), is_tracer, tried.map_err(str::to_owned)).verdict
        };
        assert_eq!(verdict(None, false, Ok(())), Good);
        assert_eq!(verdict(Some("1"), false, Ok(())), Good);
        assert_eq!([verdict(Some("2"), false, Ok(())), verdict(Some("2"), true, Ok(()))], [Warning, Good]);
        assert_eq!(verdict(Some("3"), true, Ok(())), Warning);
        assert_eq!(verdict(None, true, Err("not permitted")), Warning);
        assert_eq!(copies_here(), Ok(()));
    }

    #[test]
    fn room_and_leftovers_are_found_in_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(room(folder.path(), 1).verdict, Good);
        assert_eq!(room(folder.path(), 1 << 40).verdict, Warning);
        assert_eq!(room(&folder.path().join("none"), 1).verdict, Warning);
        assert_eq!(leftovers(folder.path()), None);
        for name in ["transom.0123456789abcdef", "transom.fedcba9876543210", "transom.log", "transom.0123456789abcdeg"]
        {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        assert_eq!(leftovers(folder.path()), None, "too young");
        let old = std::time::SystemTime::now() - LEFTOVER - LEFTOVER;
        for entry in std::fs::read_dir(folder.path()).unwrap() {
            std::fs::File::open(entry.unwrap().path()).unwrap().set_modified(old).unwrap();
        }
        assert!(leftovers(folder.path()).unwrap().found.starts_with("2 folders"));
    }
}
