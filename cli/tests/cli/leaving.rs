//! Ends of a job whose ranks exit with status 0 before they leave it. The other ranks learn that the rank died, and
//! the launcher names the rank that made them fail. If no rank fails, the job has succeeded.

use crate::copies::{Ended, copy, role, run, ssh};
use std::process::Command;
use std::time::Duration;

/// A job of copies of this program, on this machine or on a host.
fn job(name: &str, ranks: &str, hosts: &[&str]) -> Ended {
    let ssh = ssh();
    let mut command = Command::new(env!("CARGO_BIN_EXE_transom"));
    command.arg("run").args(hosts).args(["-n", ranks, "--grace", "20"]).args(copy(name)).env("TRANSOM_SSH", &*ssh);
    run(&mut command, "rank")
}

const HERE: &[&str] = &[];
const ON_A_HOST: &[&str] = &["--hosts", "a"];

/// Lines of the launcher itself.
fn said(ended: &Ended) -> Vec<&str> {
    ended.stderr.lines().filter(|line| line.starts_with("transom: ")).collect()
}

#[test]
fn rank_exiting_without_leaving_is_named() {
    let name = "rank_exiting_without_leaving_is_named";
    if role().is_some() {
        let world = transom::init().unwrap();
        if world.rank() == 1 {
            std::process::exit(0);
        }
        match world.barrier() {
            Ok(()) => std::process::exit(0),
            Err(error) => {
                eprintln!("told: {error}");
                std::process::exit(5 + world.rank() as i32);
            }
        }
    }
    let ended = job(name, "2", HERE);
    assert_eq!(ended.code, Some(5), "{ended:?}");
    let expected = "transom: rank 1 exited with status 0 without leaving the job (std::process::exit does not drop its \
                        World, or a panic did); then rank 0 exited with status 5";
    assert_eq!(said(&ended), [expected], "{ended:?}");
    assert!(ended.stderr.contains("[0] told: rank 1 died"), "{ended:?}");
}

#[test]
fn job_whose_ranks_all_exit_with_0_succeeds() {
    let name = "job_whose_ranks_all_exit_with_0_succeeds";
    if role().is_some() {
        let world = transom::init().unwrap();
        world.barrier().unwrap();
        std::process::exit(0);
    }
    for hosts in [HERE, ON_A_HOST] {
        let ended = job(name, "3", hosts);
        assert_eq!((ended.code, said(&ended).len()), (Some(0), 0), "{ended:?}");
    }
}

#[test]
fn rank_that_left_is_not_named() {
    let name = "rank_that_left_is_not_named";
    if role().is_some() {
        let world = transom::init().unwrap();
        world.barrier().unwrap();
        if world.rank() == 0 {
            return; // leaves
        }
        std::process::exit(7);
    }
    for hosts in [HERE, ON_A_HOST] {
        let ended = job(name, "2", hosts);
        assert_eq!((ended.code, said(&ended)), (Some(7), vec!["transom: rank 1 exited with status 7"]), "{ended:?}");
    }
}

/// The rank has died for the others; its process goes on until theirs have ended.
fn die_but_stay(world: transom::World) {
    let panicked = std::thread::spawn(move || {
        let _world = world; // dropped in the panic
        panic!("the test panics on purpose");
    });
    panicked.join().unwrap_err();
    std::thread::sleep(Duration::from_millis(700));
}

/// The launcher may see another rank's process end before that of the rank that died.
#[test]
fn first_dead_rank_is_named_if_its_process_ends_later() {
    let name = "first_dead_rank_is_named_if_its_process_ends_later";
    if role().is_some() {
        let world = transom::init().unwrap();
        world.barrier().unwrap();
        if world.rank() == 1 {
            die_but_stay(world);
            std::process::exit(4);
        }
        world.barrier().unwrap_err();
        std::process::exit(3);
    }
    let ended = job(name, "2", HERE);
    assert_eq!((ended.code, said(&ended)), (Some(4), vec!["transom: rank 1 exited with status 4"]), "{ended:?}");
}

/// The launcher waits for the end of the rank that died, and still remembers that another rank has failed.
#[test]
fn signal_after_a_failure_is_not_the_cause() {
    let name = "signal_after_a_failure_is_not_the_cause";
    if role().is_some() {
        let world = transom::init().unwrap();
        world.barrier().unwrap();
        if world.rank() == 1 {
            die_but_stay(world);
            let launcher = rustix::process::getppid().unwrap();
            rustix::process::kill_process(launcher, rustix::process::Signal::TERM).unwrap();
            std::thread::sleep(Duration::from_secs(30));
            std::process::exit(4);
        }
        world.barrier().unwrap_err();
        std::process::exit(3);
    }
    let ended = job(name, "2", HERE);
    assert_eq!((ended.code, said(&ended)), (Some(3), vec!["transom: rank 0 exited with status 3"]), "{ended:?}");
}
