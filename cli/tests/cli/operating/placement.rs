//! `-v`, `--bind-to` and `--report-bindings`: where each rank runs.

use super::*;
use crate::ranks::full_name;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const ROLE: &str = "RUST_TEST_ROLE";
const HERE_AND_THERE: [&[&str]; 2] = [&["-n", "1"], &["-n", "1", "--hosts", "a"]];
/// Prints the processors that the rank may use.
const ALLOWED: [&str; 4] = ["sed", "-n", "s/Cpus_allowed_list:[[:space:]]*//p", "/proc/self/status"];

/// The processors of a list in the kernel's form.
fn processors(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse().unwrap()..=last.parse().unwrap()
    };
    list.trim().split(',').flat_map(range).collect()
}

/// The processors that this thread may use. Unlike `available_parallelism`, they do not depend on quotas.
fn allowed() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor)).collect()
}

/// The allowed processors of the core, the node or the socket of the first allowed processor.
fn first(what: &str) -> Vec<usize> {
    let allowed = allowed();
    let first = allowed[0];
    let of = match what {
        "core" => {
            let list = format!("/sys/devices/system/cpu/cpu{first}/topology/thread_siblings_list");
            processors(&std::fs::read_to_string(list).unwrap())
        }
        "socket" => {
            let socket = |processor: usize| {
                let file = format!("/sys/devices/system/cpu/cpu{processor}/topology/physical_package_id");
                std::fs::read_to_string(file).unwrap()
            };
            allowed.iter().copied().filter(|&processor| socket(processor) == socket(first)).collect()
        }
        _ => {
            let nodes = std::fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
            let lists = nodes.filter_map(|node| std::fs::read_to_string(node.path().join("cpulist")).ok());
            // A kernel without nodes has one.
            lists.map(|list| processors(&list)).find(|list| list.contains(&first)).unwrap_or_else(|| allowed.clone())
        }
    };
    allowed.into_iter().filter(|processor| of.contains(processor)).collect()
}

#[test]
fn bound_rank_runs_on_its_processors() {
    for args in HERE_AND_THERE {
        let all = run(&[args, &ALLOWED].concat());
        assert_eq!(run(&[args, &["--bind-to", "none"], &ALLOWED].concat()).lines, all.lines);
        for what in ["core", "numa", "socket"] {
            let ended = run(&[args, &["--bind-to", what, "--report-bindings"], &ALLOWED].concat());
            assert_eq!(ended.code, Some(0), "{ended:?}");
            assert_eq!(processors(&ended.lines[0]), first(what), "{args:?} {what}");
            let (place, bound) = ended.stderr.trim().rsplit_once(" bound to processors ").unwrap();
            assert!(place.starts_with("transom: rank 0: host ") && place.ends_with(", local rank 0 of 1,"), "{place}");
            assert_eq!(processors(bound), first(what));
        }
    }
}

/// A rank has no processor that the launcher, or the login on a host, may not use.
#[test]
fn binding_is_within_the_allowed_processors() {
    for processor in allowed().into_iter().take(2) {
        for args in HERE_AND_THERE {
            for what in ["core", "numa", "socket"] {
                let bound = std::thread::scope(|scope| {
                    // The launcher inherits the set of this thread.
                    let limited = scope.spawn(|| {
                        let mut set = CpuSet::new();
                        set.set(processor);
                        sched_setaffinity(None, &set).unwrap();
                        run(&[args, &["--bind-to", what], &ALLOWED].concat())
                    });
                    limited.join().unwrap()
                });
                assert_eq!((bound.code, &bound.lines), (Some(0), &vec![processor.to_string()]), "{args:?} {bound:?}");
            }
        }
    }
}

#[test]
fn ranks_on_different_cores_do_not_share() {
    let cores = {
        let mut shown = run(&["-n", "1", "--bind-to", "core", "nproc"]).lines;
        let threads: usize = shown.remove(0).parse().unwrap();
        allowed().len() / threads
    };
    let ranks = cores.min(2).to_string();
    for hosts in [["--hosts", "none"], ["--hosts", "a"]] {
        let ended = run(&[&["-n", &ranks, "--bind-to", "core"], &hosts[..], &ALLOWED].concat());
        let mut seen: Vec<_> = ended.lines.iter().flat_map(|line| processors(line)).collect();
        let all = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!((ended.lines.len(), seen.len()), (cores.min(2), all), "{ended:?}");
    }
}

/// More ranks than cores: nothing is refused, and nothing is bound.
#[test]
fn more_ranks_than_cores_are_not_bound() {
    let ranks = (allowed().len() + 1).to_string();
    for hosts in [["--hosts", "none"], ["--hosts", "a"]] {
        let unbound = run(&[&["-n", "1"], &hosts[..], &ALLOWED].concat());
        let args = [&["-n", &ranks, "--bind-to", "core", "--report-bindings"], &hosts[..], &ALLOWED].concat();
        let ended = run(&args);
        assert_eq!((ended.code, ended.lines.len().to_string()), (Some(0), ranks.clone()), "{ended:?}");
        assert!(ended.lines.iter().all(|line| *line == unbound.lines[0]), "{ended:?}");
        assert_eq!(ended.stderr.matches(", not bound\n").count().to_string(), ranks, "{ended:?}");
    }
}

#[test]
fn verbose_job_reports_its_start() {
    let mut verbose = job(&["-v", "-n", "3", "--hosts", "a,b", "true"]);
    verbose.command.env_remove("TRANSOM_AGENT");
    let ended = verbose.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let provider = "transom: provider: auto: shm on one machine; on several, the first network of the list that all ranks can use \
                    (TRANSOM_FABRIC)\n";
    let rest = ended.stderr.strip_prefix(provider).unwrap();
    let meet = rest.lines().next().unwrap();
    assert!(meet.starts_with("transom: 3 ranks on 2 hosts meet at TCP port ") && meet.ends_with(" of this machine"));
    for said in [
        concat!("transom: host a: reached; ", env!("CARGO_BIN_EXE_transom"), " starts ranks 0, 1\n"),
        concat!("transom: host b: reached; ", env!("CARGO_BIN_EXE_transom"), " starts rank 2\n"),
        "[a] transom: rank 0: host a, local rank 0 of 2, not bound\n",
        "[a] transom: rank 1: host a, local rank 1 of 2, not bound\n",
        "[b] transom: rank 2: host b, local rank 0 of 1, not bound\n",
    ] {
        assert!(ended.stderr.contains(said), "{said} in {ended:?}");
    }
    let ended = job(&["--verbose", "-n", "2", "true"]).env("TRANSOM_FABRIC", "shm").end();
    let rest = ended.stderr.strip_prefix("transom: provider: shm (TRANSOM_FABRIC)\n").unwrap();
    assert!(rest.starts_with("transom: 2 ranks on this machine meet in shared memory\n"), "{ended:?}");
    assert!(ended.stderr.ends_with(", local rank 1 of 2, not bound\n"), "{ended:?}");
}

#[test]
fn verbose_job_reports_the_provider_of_each_host() {
    let name = "verbose_job_reports_the_provider_of_each_host";
    if std::env::var_os(ROLE).is_some() {
        return drop(transom::init().unwrap());
    }
    let program = std::env::current_exe().unwrap().display().to_string();
    let test = [&program, "--exact", &full_name(name), "--nocapture", "--test-threads=1"];
    let reports = |verbose: &[&str], hosts: &[&str]| {
        let ended = job(&[verbose, &["-n", "3"], hosts, &test].concat()).env(ROLE, "rank").end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let reports = ended.stderr.lines().filter_map(|line| line.strip_prefix("[0] transom: host "));
        reports.map(str::to_owned).collect::<Vec<_>>()
    };
    let hosts = &["--hosts", "a,b"];
    let reported = reports(&["-v"], hosts);
    assert_eq!(reported.len(), 2, "{reported:?}");
    for (report, host, ranks) in
        [(&reported[0], "a: tcp listens at ", "(ranks 0-1)"), (&reported[1], "b: tcp listens at ", "(rank 2)")]
    {
        assert!(report.starts_with(host) && report.ends_with(ranks), "{report}");
        assert!(report.contains(" (lo, MTU "), "{report}");
    }
    assert_eq!(reports(&[], hosts), [""; 0]);
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    assert_eq!(reports(&["-v"], &["--hosts", "none"]), [format!("{own}: shm (ranks 0-2)")]);
}

#[test]
fn unknown_binding_is_refused() {
    let ended = run(&["-n", "1", "--bind-to", "board", "true"]);
    assert!(ended.code == Some(2) && ended.stderr.contains("[possible values: none, core, numa, socket]"), "{ended:?}");
}
