//! Reports of long waits, and the settings of waiting.

use crate::ranks;
use std::time::Duration;
use transom::messages::Tag;
use transom::{Launch, Outcome, Window};

/// Runs the test `name` of this file on `ranks` ranks. In a rank itself it runs the body and returns `None`.
fn run(name: &str, ranks: usize, report: &str, body: impl Fn(transom::World)) -> Option<Outcome> {
    if std::env::var_os("WAITING_TEST").is_some() {
        body(transom::init().unwrap());
        return None;
    }
    let full = ranks::full_name(name);
    let launch = Launch::new(std::env::current_exe().unwrap(), ranks)
        .args(["--exact", &full, "--nocapture", "--test-threads=1"])
        .env("WAITING_TEST", "1")
        .env("TRANSOM_WAIT_REPORT", report)
        // The receiver of a long message waits for its sender.
        .env("TRANSOM_MESSAGES", "offer=no")
        .grace(Duration::from_secs(10))
        .deadline(Duration::from_secs(if report == "3" { 20 } else { 3 }))
        .capture(true);
    let outcome = launch.run().unwrap();
    ranks::has_run(&full, &outcome);
    Some(outcome)
}

/// The lines of a rank that are about waiting.
fn said(outcome: &Outcome, rank: usize) -> Vec<String> {
    let output = String::from_utf8_lossy(outcome.output(rank)).into_owned();
    output.lines().filter(|line| line.starts_with("transom: rank")).map(str::to_owned).collect()
}

/// The report without its time, which varies, and without the place of the call.
fn without_time(line: &str) -> String {
    let line = line.split_once(", called at ").map_or(line, |(line, _)| line);
    let words: Vec<&str> = line.split(' ').collect();
    words.iter().enumerate().filter(|(nth, _)| *nth != 5).map(|(_, word)| *word).collect::<Vec<_>>().join(" ")
}

#[test]
fn long_wait_is_reported_once_with_its_peer() {
    if ranks::over_network() {
        return; // the times are of shared memory
    }
    let ran = run("long_wait_is_reported_once_with_its_peer", 2, "0.2", |world| {
        let mut window: Window<u64> = world.allocate_with_signals(1, 3).unwrap();
        for _ in 0..2 {
            if world.rank() == 1 {
                std::thread::sleep(Duration::from_millis(500));
            }
            window.fence().unwrap();
        }
        if world.rank() == 1 {
            std::thread::sleep(Duration::from_millis(500));
            window.lock_all().unwrap().target(0).unwrap().put_signal(0, &[1], 2, 1).unwrap();
        } else {
            window.signals().wait_until(2, |value| value == 1).unwrap();
        }
        window.fence().unwrap();
    });
    let Some(outcome) = ran else { return };
    assert!(outcome.success(), "{outcome}");
    assert_eq!(said(&outcome, 1), Vec::<String>::new());
    let said = said(&outcome, 0);
    let lines: Vec<_> = said.iter().map(|line| without_time(line)).collect();
    let fence = "transom: rank 0 has waited in fence of window 0 for rank 1";
    let signal = "transom: rank 0 has waited in wait_until of signal 2 of window 0";
    assert_eq!(lines, [fence, signal], "{said:?}");
}

#[test]
fn wait_report_names_line_process_and_host() {
    if ranks::over_network() {
        return; // the times are of shared memory
    }
    let first_line = line!() + 9;
    let ran = run("wait_report_names_line_process_and_host", 2, "0.2", |world| {
        println!("process {}.", std::process::id());
        let mut window: Window<u64> = world.allocate(1).unwrap();
        if world.rank() == 1 {
            std::thread::sleep(Duration::from_millis(600));
            world.send(0, Tag::new(1), &[7_u8]).unwrap();
            std::thread::sleep(Duration::from_millis(600));
        } else {
            world.recv(1, Tag::<u8>::new(1)).unwrap();
        }
        window.fence().unwrap();
    });
    let Some(outcome) = ran else { return };
    assert!(outcome.success(), "{outcome}");
    let output = String::from_utf8_lossy(outcome.output(0)).into_owned();
    let process = output.split_once("process ").and_then(|(_, rest)| rest.split_once('.')).expect("rank 0 prints it").0;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let said = said(&outcome, 0);
    for (line, call) in [(first_line, "recv"), (first_line + 2, "fence")] {
        let place = format!("tests/waits/waiting.rs:{line} (process {process} on {})", host.trim_end());
        let is_there = |said: &String| said.contains(&format!(" in {call} ")) && said.ends_with(&place);
        assert!(said.iter().any(is_there), "{place}: {said:?}");
    }
}

/// Two ranks that take two locks in different order: the report of each names the other.
#[test]
fn lock_deadlock_is_reported_at_both_ranks() {
    if ranks::over_network() {
        return;
    }
    let ran = run("lock_deadlock_is_reported_at_both_ranks", 2, "0.2", |world| {
        let mut windows: Vec<Window<u64>> = (0..2).map(|_| world.allocate(1).unwrap()).collect();
        let (first, second) = windows.split_at_mut(1);
        let (mine, other) = if world.rank() == 0 { (first, second) } else { (second, first) };
        let _mine = mine[0].lock_exclusive(0).unwrap();
        world.barrier().unwrap();
        let _other = other[0].lock_exclusive(0).unwrap();
        unreachable!("each rank holds the lock that the other requests");
    });
    let Some(outcome) = ran else { return };
    assert!(!outcome.success(), "deadlocked job ended without an error");
    for (rank, window) in [(0, 1), (1, 0)] {
        let said = said(&outcome, rank);
        let expected = format!(
            "transom: rank {rank} has waited in lock_exclusive of window {window} at rank 0 behind rank {}",
            1 - rank
        );
        assert_eq!(said.iter().map(|line| without_time(line)).collect::<Vec<_>>(), [expected], "{said:?}");
    }
}

/// A waiting rank asks after a second, and then knows the rank that it waits for.
#[test]
fn long_collective_names_the_missing_rank() {
    if ranks::over_network() {
        return;
    }
    let ran = run("long_collective_names_the_missing_rank", 3, "3", |world| {
        if world.rank() == 1 {
            std::thread::sleep(Duration::from_millis(5000));
        }
        world.barrier().unwrap();
    });
    let Some(outcome) = ran else { return };
    assert!(outcome.success(), "{outcome}");
    let lines: Vec<_> = (0..3).flat_map(|rank| said(&outcome, rank)).map(|line| without_time(&line)).collect();
    let named = |rank| format!("transom: rank {rank} has waited in barrier for rank 1");
    assert!(lines.contains(&named(0)) || lines.contains(&named(2)), "{lines:?}");
    assert!(lines.iter().all(|line| line.contains(" in barrier for rank ")), "{lines:?}");
}

/// Another thread of the process waits too, and holds the lock of `stderr` meanwhile.
#[test]
fn wait_report_needs_no_stderr_lock() {
    let ran = run("wait_report_needs_no_stderr_lock", 1, "0.2", |world| {
        drop(world);
        let tag = Tag::<u8>::new(1);
        let body = |world: transom::World| match world.rank() {
            0 => {
                let _locked = std::io::stderr().lock();
                assert_eq!(world.recv(1, tag).unwrap().0, [7]);
            }
            1 => {
                let got = world.recv(2, tag).unwrap().0;
                world.send(0, tag, &got).unwrap();
            }
            _ => {
                std::thread::sleep(Duration::from_millis(800));
                world.send(1, tag, &[7]).unwrap();
            }
        };
        transom::threads(3, body).unwrap();
    });
    let Some(outcome) = ran else { return };
    assert!(outcome.success(), "{outcome}");
    let mut said: Vec<_> = said(&outcome, 0).iter().map(|line| without_time(line)).collect();
    said.sort();
    let waits = |rank| format!("transom: rank {rank} has waited in recv with tag 1 for rank {}", rank + 1);
    assert_eq!(said, [waits(0), waits(1)]);
}

/// Reports use the ranks' numbers in the job, whichever team the call is of.
#[test]
fn wait_report_in_a_team_uses_job_ranks() {
    if ranks::over_network() {
        return;
    }
    let ran = run("wait_report_in_a_team_uses_job_ranks", 3, "0.2", |world| {
        let Some(team) = world.split((world.rank() > 0).then_some(1), 0).unwrap() else { return };
        let other = 1 - team.rank();
        for (tag, probed) in [(1, false), (2, true)] {
            let tag = Tag::<u8>::new(tag);
            // Each rank has connected to the other.
            team.send(other, Tag::<u8>::new(3), &[1]).unwrap();
            team.recv(other, Tag::<u8>::new(3)).unwrap();
            if team.rank() == 0 {
                let sent = team.isend(1, tag, vec![1_u8; 1 << 20]);
                std::thread::sleep(Duration::from_millis(600));
                sent.wait().unwrap();
            } else if probed {
                team.probe(0, tag).unwrap().recv().unwrap();
            } else {
                team.recv(0, tag).unwrap();
            }
        }
    });
    let Some(outcome) = ran else { return };
    assert!(outcome.success(), "{outcome}");
    let said: Vec<_> = said(&outcome, 2).iter().map(|line| without_time(line)).collect();
    let waits = |tag| format!("transom: rank 2 has waited in recv with tag {tag} for rank 1");
    assert_eq!(said, [waits(1), waits(2)]);
}

#[test]
fn wait_report_off_prints_nothing() {
    let ran = run("wait_report_off_prints_nothing", 2, "off", |world| {
        if world.rank() == 1 {
            std::thread::sleep(Duration::from_millis(300));
        }
        world.barrier().unwrap();
    });
    let Some(outcome) = ran else { return };
    assert!(outcome.success() && said(&outcome, 0).is_empty(), "{outcome}");
}

/// A rank that spins for the longest time that can be set still checks whether others live, and reports the rank that
/// it waits for.
#[test]
fn spinning_rank_detects_a_death() {
    if std::env::var_os("WAITING_TEST").is_some() {
        let world = transom::init().unwrap();
        let mut window: Window<u64> = world.allocate(1).unwrap();
        if world.rank() == 1 {
            std::thread::sleep(Duration::from_millis(500));
            std::process::abort();
        }
        let error = window.fence().map(drop).expect_err("a fence should fail when a rank dies");
        assert_eq!(error.lost_rank(), Some(1), "{error}");
        return;
    }
    let full = ranks::full_name("spinning_rank_detects_a_death");
    let outcome = Launch::new(std::env::current_exe().unwrap(), 2)
        .args(["--exact", &full, "--nocapture", "--test-threads=1"])
        .env("WAITING_TEST", "1")
        .env("TRANSOM_SPIN_US", "3600000000")
        .env("TRANSOM_WAIT_REPORT", "0.2")
        .grace(Duration::from_secs(20))
        .deadline(Duration::from_secs(40))
        .capture(true)
        .run()
        .unwrap();
    ranks::has_run(&full, &outcome);
    assert_eq!(outcome.statuses()[0], transom::Status::Exited(0), "{outcome}");
    assert!(said(&outcome, 0).iter().any(|line| line.contains("in fence of window 0 for rank 1")), "{outcome}");
}

#[test]
fn invalid_variable_values_are_refused() {
    if let Ok(says) = std::env::var("WAITING_TEST") {
        for started in
            [transom::start(1), transom::init(), transom::threads(1, |world| world).map(|mut all| all.remove(0))]
        {
            let error = started.map(drop).unwrap_err().to_string();
            assert!(error.contains(&says), "{error}");
        }
        return;
    }
    let wrong = [
        ("TRANSOM_SPIN_US", "-1", "TRANSOM_SPIN_US"),
        ("TRANSOM_SPIN_US", "soon", "TRANSOM_SPIN_US"),
        ("TRANSOM_WAIT_REPORT", "0", "TRANSOM_WAIT_REPORT"),
        ("TRANSOM_PROGRESS", "always", "TRANSOM_PROGRESS"),
        (
            "TRANSOM_MESSAGES",
            "wndow=4",
            "TRANSOM_MESSAGES=\"wndow=4\": unknown field \"wndow\"; expected one of eager, ring_slots",
        ),
        (
            "TRANSOM_MESSAGES",
            "window=1",
            "TRANSOM_MESSAGES=\"window=1\": window is 1, expected 2 to 1024; expected FIELD=VALUE",
        ),
        (
            "TRANSOM_MESSAGES",
            "rules=TRUE, RC-SR",
            "TRANSOM_MESSAGES=\"rules=TRUE, RC-SR\": rules: line 1, column 1: the last rule may have no path",
        ),
    ];
    let full = ranks::full_name("invalid_variable_values_are_refused");
    for (name, value, says) in wrong {
        let outcome = Launch::new(std::env::current_exe().unwrap(), 1)
            .args(["--exact", &full, "--nocapture"])
            .env("WAITING_TEST", says)
            .env(name, value)
            .capture(true)
            .run()
            .unwrap();
        ranks::has_run(&full, &outcome);
        assert!(outcome.success(), "{name}={value}: {}", String::from_utf8_lossy(outcome.output(0)));
    }
}
