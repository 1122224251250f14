//! Jobs inside of jobs. A program that starts itself does so once, whatever its environment. A child of a rank is
//! not a rank of that job: it is a world of its own, or a launcher. Endless nesting of launchers is an error.

use crate::copies::{copy, role, run, ssh};
use std::io::Write;
use std::process::Command;
use std::time::Duration;
use transom::{Launch, World};

/// Work of every rank, which shows the job that it belongs to.
fn show(world: &World) {
    world.barrier().unwrap();
    // One write, so that it stays one line.
    let line = format!("joined as {} of {}\n", world.rank(), world.size());
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}

/// This program again, in a role.
fn again(name: &str, role: &str) -> Command {
    let [program, args @ ..] = copy(name);
    let mut command = Command::new(program);
    command.args(args).env("RUST_TEST_ROLE", role);
    command
}

/// A launch of copies of this program, on this machine or on hosts.
fn launch(name: &str, hosts: Option<&str>, role: &str) -> Launch {
    let [program, args @ ..] = copy(name);
    let launch = Launch::new(program, 2).args(args).env("RUST_TEST_ROLE", role);
    hosts.iter().fold(launch, |launch, hosts| launch.hosts(hosts.parse().unwrap()))
}

const JOINED: [&str; 2] = ["joined as 0 of 2", "joined as 1 of 2"];
const HOSTS: [&str; 2] = ["here", "hosts"];

#[test]
fn start_runs_once_whatever_bootstrap_is_set() {
    let name = "start_runs_once_whatever_bootstrap_is_set";
    if let Some(role) = role() {
        let host = role.starts_with("hosts").then_some("a");
        return match role.split_once(' ') {
            Some((_, value)) => {
                let outcome = launch(name, host, "start").env("TRANSOM_BOOTSTRAP", value).run().unwrap();
                std::process::exit(outcome.exit_code().into());
            }
            None => match transom::start(2) {
                Ok(world) => show(&world),
                Err(error) => {
                    eprintln!("{error}");
                    std::process::exit(1);
                }
            },
        };
    }
    let by_itself = run(&mut again(name, "start"), "start");
    assert_eq!(
        (by_itself.code, by_itself.said("joined as")),
        (Some(0), JOINED.map(str::to_owned).into()),
        "{by_itself:?}"
    );
    for (value, wrong) in [
        ("none", None),
        ("transom", Some("but transom's launcher did not start this process")),
        ("pmix", Some("PMIx")),
        ("pmi", Some("PMI_FD")),
        ("mpi", Some("TRANSOM_BOOTSTRAP=\"mpi\"")),
        ("", Some("TRANSOM_BOOTSTRAP=\"\"")),
    ] {
        let ended = run(again(name, "start").env("TRANSOM_BOOTSTRAP", value), "start");
        match wrong {
            None => assert_eq!((ended.code, ended.said("joined as")), (Some(0), JOINED.map(str::to_owned).into())),
            Some(wrong) => assert!(ended.code == Some(1) && ended.stderr.contains(wrong), "{value}: {ended:?}"),
        }
        // A child of transom's launcher is its rank, wherever the value comes from, on this machine and on hosts.
        let ssh = ssh();
        let [program, args @ ..] = copy(name);
        let mut by_run = Command::new(env!("CARGO_BIN_EXE_transom"));
        by_run.args(["run", "-n", "2", &program]).args(&args).env("TRANSOM_BOOTSTRAP", value);
        let mut on_hosts = Command::new(env!("CARGO_BIN_EXE_transom"));
        on_hosts.args(["run", "--hosts", "a", "-n", "2", &program]).args(&args).env("TRANSOM_BOOTSTRAP", value);
        let mut ended = vec![run(&mut by_run, "start"), run(on_hosts.env("TRANSOM_SSH", &*ssh), "start")];
        for place in HOSTS {
            let role = format!("{place} {value}");
            ended.push(run(again(name, &role).env("TRANSOM_SSH", &*ssh), &role));
        }
        for ended in ended {
            let joined = (ended.code, ended.said("joined as"));
            assert_eq!(joined, (Some(0), JOINED.map(str::to_owned).into()), "{value}: {ended:?}");
        }
    }
}

#[test]
fn endless_launcher_nesting_fails() {
    let name = "endless_launcher_nesting_fails";
    if let Some(role) = role() {
        // Each rank is a launcher of copies of itself. If nothing stops them, `run` counts them.
        let host = (role == "hosts").then_some("localhost");
        let code = match launch(name, host, &role).grace(Duration::from_secs(30)).run() {
            Ok(outcome) => outcome.exit_code().into(),
            Err(error) => {
                eprintln!("{error}");
                1
            }
        };
        std::process::exit(code);
    }
    for place in HOSTS {
        let ended = run(again(name, place).env_remove("TRANSOM_SSH"), place);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        // Ranks at the third level find three launchers above them, and the error says what to do.
        let told: Vec<_> = ended.stderr.lines().filter(|line| line.contains("TRANSOM_NESTING=3")).collect();
        assert_eq!(told.len(), 8, "{ended:?}");
        assert!(told.iter().all(|line| line.contains("remove TRANSOM_NESTING")), "{ended:?}");
    }
}

/// A child of a rank here may call `init` or `start`, or be `transom run`; directly, by a shell, or with other
/// programs between.
#[test]
fn child_of_a_rank_is_no_rank_of_the_job() {
    let name = "child_of_a_rank_is_no_rank_of_the_job";
    match role().as_deref() {
        Some("init") => return show(&transom::init().unwrap()),
        Some("start") => return show(&transom::start(3).unwrap()),
        Some("again") => {
            // A job of its own, whose ranks start a job in turn.
            let world = transom::start(2).unwrap();
            world.barrier().unwrap();
            return starts(&mut again(name, "start"), &[0, 1, 2].map(|rank| format!("joined as {rank} of 3")));
        }
        Some("rank") => {
            let world = transom::init().unwrap();
            world.barrier().unwrap();
            let alone = ["joined as 0 of 1".to_owned()];
            starts(&mut again(name, "init"), &alone);
            starts(
                Command::new("sh").args(["-c", "\"$@\"; true", "sh"]).args(copy(name)).env("RUST_TEST_ROLE", "init"),
                &alone,
            );
            starts(&mut again(name, "start"), &[0, 1, 2].map(|rank| format!("joined as {rank} of 3")));
            let mut run = Command::new(env!("CARGO_BIN_EXE_transom"));
            run.args(["run", "-n", "2"]).args(copy(name)).env("RUST_TEST_ROLE", "init");
            starts(&mut run, &JOINED.map(str::to_owned));
            let mut deeper: Vec<_> = [0, 1, 2].map(|rank| format!("joined as {rank} of 3")).into();
            deeper.extend(deeper.clone());
            deeper.sort();
            starts(&mut again(name, "again"), &deeper);
            world.barrier().unwrap();
            drop(world);
            // The process has left its job, and is still the rank.
            return starts(&mut again(name, "init"), &alone);
        }
        Some("unknown") | None => {}
        Some(other) => panic!("{other}"),
    }
    for hosts in [&[][..], &["--hosts", "a"]] {
        let ssh = ssh();
        let mut command = Command::new(env!("CARGO_BIN_EXE_transom"));
        command.arg("run").args(hosts).args(["-n", "2"]).args(copy(name)).env("TRANSOM_SSH", &*ssh);
        let ended = run(&mut command, "rank");
        assert_eq!(ended.code, Some(0), "{hosts:?}: {}\n{}", ended.stdout, ended.stderr);
    }
}

/// Runs a command whose ranks show that they joined as expected, and prints its lines again.
fn starts(command: &mut Command, expected: &[String]) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let mut said: Vec<_> =
        text.lines().filter_map(|line| line.find("joined as").map(|at| line[at..].to_owned())).collect();
    said.sort();
    assert!(output.status.success() && said == expected, "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    std::io::stdout().write_all((said.join("\n") + "\n").as_bytes()).unwrap();
}

/// Python's `subprocess` does so for its children.
#[test]
fn ranks_join_behind_a_descriptor_closing_wrapper() {
    let name = "ranks_join_behind_a_descriptor_closing_wrapper";
    if role().is_some() {
        return show(&transom::init().unwrap());
    }
    let wrapper = "for fd in 3 4 5 6 7 8 9; do eval \"exec $fd>&-\"; done; \"$@\"; exit $?";
    for hosts in [&[][..], &["--hosts", "a"]] {
        let ssh = ssh();
        let mut command = Command::new(env!("CARGO_BIN_EXE_transom"));
        command.arg("run").args(hosts).args(["-n", "2", "sh", "-c", wrapper, "sh"]).args(copy(name));
        let ended = run(command.env("TRANSOM_SSH", &*ssh), "rank");
        assert_eq!((ended.code, ended.said("joined as")), (Some(0), JOINED.map(str::to_owned).into()), "{ended:?}");
    }
}

#[test]
fn second_join_of_a_rank_is_refused() {
    let name = "second_join_of_a_rank_is_refused";
    if role().is_some() {
        return match transom::init() {
            Ok(world) => show(&world),
            Err(error) => {
                println!("told: {error}");
                std::process::exit(1);
            }
        };
    }
    for hosts in [&[][..], &["--hosts", "a"]] {
        let ssh = ssh();
        let mut command = Command::new(env!("CARGO_BIN_EXE_transom"));
        let both = "\"$@\" && \"$@\"";
        command.arg("run").args(hosts).args(["-n", "2", "--grace", "30", "sh", "-c", both, "sh"]).args(copy(name));
        let ended = run(command.env("TRANSOM_SSH", &*ssh), "rank");
        assert_eq!((ended.code, ended.said("joined as")), (Some(1), JOINED.map(str::to_owned).into()), "{ended:?}");
        for (rank, told) in ended.said("told:").iter().enumerate() {
            assert!(told.contains(&format!("rank {rank} has joined this job before")), "{told}");
            assert!(told.contains("remove TRANSOM_RANK"), "{told}");
        }
        assert_eq!(ended.said("told:").len(), 2, "{ended:?}");
    }
}
