//! The launcher names the rank that failed first, and ends with its status, however many ranks follow before the
//! launcher looks.

#![allow(clippy::unit_arg, reason = "a call is one expression")]

use crate::copies::outside_batch_job;
use crate::ranks::{self, full_name, outcome_of, over_network};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::c_long;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use transom::messages::Tag;
use transom::{Error, Failure, Status, World};

/// Ranks with lower numbers fail after it.
const CULPRIT: usize = 2;
const CASE: &str = "TEST_CASE";
const TAG: Tag<u64> = Tag::new(1);
const LIMIT: Duration = Duration::from_secs(30);

type Call = fn(&World) -> Result<(), Error>;

/// Calls in which the followers notice the failure.
const CALLS: &[(&str, Call)] = &[
    ("barrier", |world| Ok(world.barrier()?)),
    ("the first send", |world| {
        loop {
            world.send(CULPRIT, TAG, &[1])?;
        }
    }),
    ("recv", |world| Ok(world.recv(CULPRIT, TAG).map(drop)?)),
    ("a long isend", |world| Ok(world.isend(CULPRIT, TAG, vec![1; 1_000_000]).wait().map(drop)?)),
    ("probes", |world| {
        loop {
            world.try_probe(CULPRIT, TAG)?;
        }
    }),
    ("a started collective", |world| Ok(world.iall_reduce(vec![1_u64], transom::Op::Sum).wait().map(drop)?)),
];

/// The state of a process, as the kernel shows it.
fn state(process: &str) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "{what} did not happen within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// `transom run` of copies of this program that run this test, and its ranks, once all have joined.
fn launched(test: &str, case: &str) -> (Child, Vec<String>) {
    let this = std::env::current_exe().unwrap();
    let launcher = outside_batch_job(&mut Command::new(env!("CARGO_BIN_EXE_transom")))
        .args(["run", "-n", "3"])
        .arg(this)
        .args(["--exact", &full_name(test), "--nocapture", "--test-threads=1"])
        .env("TEST_ROLE", "rank")
        .env(CASE, case)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let children = format!("/proc/{0}/task/{0}/children", launcher.id());
    let ranks = || std::fs::read_to_string(&children).unwrap_or_default();
    until("three ranks", || ranks().split_whitespace().count() == 3);
    let ranks = ranks().split_whitespace().map(str::to_owned).collect();
    (launcher, ranks)
}

/// Waits until the launcher is stopped.
fn until_the_launcher_is_stopped() {
    let launcher = rustix::process::getppid().unwrap().as_raw_nonzero().to_string();
    until("a stopped launcher", || state(&launcher) == Some('T'));
}

/// Runs a job that ends while its launcher is stopped: the launcher finds all ranks ended at once.
fn ends_unseen(test: &str, case: &str) -> (Option<i32>, String) {
    let (launcher, ranks) = launched(test, case);
    kill_process(Pid::from_child(&launcher), Signal::STOP).unwrap();
    until("the end of all ranks", || ranks.iter().all(|rank| state(rank) == Some('Z')));
    kill_process(Pid::from_child(&launcher), Signal::CONT).unwrap();
    let ended = launcher.wait_with_output().unwrap();
    (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
}

fn follows(world: &World, call: Call) -> ! {
    let error = call(world).expect_err("a call after the culprit's death must fail");
    eprintln!("{error}");
    std::process::exit(if error.lost_rank() == Some(CULPRIT) { 44 } else { 45 });
}

fn only_the_culprit_is_named(test: &str, fail: impl Fn(World)) {
    if let Ok(case) = std::env::var(CASE) {
        let world = transom::init().unwrap();
        until_the_launcher_is_stopped();
        if world.rank() == CULPRIT {
            return fail(world);
        }
        let (_, call) = CALLS.iter().find(|(name, _)| *name == case).unwrap();
        follows(&world, *call);
    }
    if over_network() {
        return;
    }
    for (case, _) in CALLS {
        let (code, said) = ends_unseen(test, case);
        let named = said.contains("transom: rank 2 exited with status 255");
        assert!(code == Some(255) && named, "{case}: {code:?}\n{said}");
    }
}

#[test]
fn dead_rank_is_named_whichever_rank_notices() {
    only_the_culprit_is_named("dead_rank_is_named_whichever_rank_notices", |_world| std::process::exit(255));
}

#[test]
fn rank_failing_after_leaving_is_named() {
    only_the_culprit_is_named("rank_failing_after_leaving_is_named", |world| {
        drop(world);
        std::process::exit(255);
    });
}

/// A team of the job notices.
#[test]
fn dead_rank_is_named_if_a_team_notices() {
    let test = "dead_rank_is_named_if_a_team_notices";
    if std::env::var_os(CASE).is_some() {
        let world = transom::init().unwrap();
        let team = world.split(Some(1), 0).unwrap().unwrap();
        until_the_launcher_is_stopped();
        if world.rank() == CULPRIT {
            std::process::exit(255);
        }
        follows(&team, |team| Ok(team.barrier()?));
    }
    if !over_network() {
        let (code, said) = ends_unseen(test, "team");
        assert!(code == Some(255) && said.contains("transom: rank 2 exited with status 255"), "{code:?}\n{said}");
    }
}

#[test]
fn dead_rank_is_named_on_a_busy_machine() {
    let test = "dead_rank_is_named_on_a_busy_machine";
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        if !ranks::are_processes() {
            (0..4).for_each(|_| {
                drop(threads.spawn(|| {
                    while !over.load(Relaxed) {
                        std::hint::spin_loop();
                    }
                }))
            });
        }
        for run in 0..ranks::rounds(30) {
            let outcome = outcome_of(3, test, |world| {
                let mut window = world.allocate::<u64>(10).unwrap();
                if world.rank() == CULPRIT {
                    std::process::exit(255);
                }
                let _ = window.lock_exclusive(0).and_then(|epoch| epoch.unlock());
                follows(&world, |world| Ok(world.barrier()?));
            });
            let Some(outcome) = outcome else { return };
            let expected = Failure::Rank { rank: CULPRIT, status: Status::Exited(255) };
            if outcome.failure() != Some(&expected) {
                over.store(true, Relaxed);
                panic!("run {run}: {outcome}; {:?}", outcome.statuses());
            }
        }
        over.store(true, Relaxed);
    });
}

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
}

#[cfg(target_arch = "x86_64")]
const EXIT: c_long = 60;
#[cfg(not(target_arch = "x86_64"))]
const EXIT: c_long = 93;

/// The kernel refuses access to the memory of a process without its main thread.
#[test]
fn rank_without_its_main_thread_is_named() {
    let outcome = outcome_of(3, "rank_without_its_main_thread_is_named", |world| {
        let processes = ranks::told(&world, std::process::id());
        if world.rank() == CULPRIT {
            // SAFETY: ends the thread that handles the signal, which is the main one, and does nothing else.
            let ends = || assert!(unsafe { syscall(EXIT, 0) } == 0);
            // SAFETY: a system call alone.
            unsafe { signal_hook::low_level::register(signal_hook::consts::SIGUSR1, ends) }.unwrap();
            kill_process(rustix::process::getpid(), Signal::USR1).unwrap();
            until("the end of the main thread", || state("self") == Some('Z'));
            // The other ranks fail during this time.
            std::thread::sleep(Duration::from_secs(3));
            std::process::exit(11);
        }
        until("the end of the main thread", || state(&processes[CULPRIT].to_string()) == Some('Z'));
        follows(&world, |world| {
            let error = world.send(CULPRIT, TAG, &[1]).unwrap_err();
            assert_eq!(error.to_string(), "rank 2 died");
            Err(error.into())
        });
    });
    let Some(outcome) = outcome else { return };
    let expected = Failure::Rank { rank: CULPRIT, status: Status::Exited(11) };
    assert_eq!(
        outcome.failure(),
        Some(&expected),
        "{outcome}; {:?}\n{}",
        outcome.statuses(),
        String::from_utf8_lossy(outcome.output(CULPRIT))
    );
    assert_eq!(outcome.statuses()[..2], [Status::Exited(44); 2]);
}
