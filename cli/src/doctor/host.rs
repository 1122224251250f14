//! A rank on a host that is examined: build, limits, providers, and the way to the hub of its job.

use super::finding::{Finding, Report, through_firewall};
use super::limits;
use crate::info::shm_loopback;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use transom::variables::{self, FABRIC};

pub const BUILD: &str = "build";
pub const HUB: &str = "hub";
/// Providers that reach no other host.
const OF_ONE_HOST: [&str; 2] = ["shm", "delayed"];
/// Longest attempt to connect to an address of the hub.
const ATTEMPT: Duration = Duration::from_secs(3);

/// Examines this host. `build` is that of the doctor, empty if it has none.
pub fn examine(build: &str) -> io::Result<()> {
    let began = Instant::now();
    let found = |finding| Report::Found(finding).print();
    found(same_build(build, transom::build_id().as_deref()))?;
    let has_rdma = std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some());
    limits::all(has_rdma).into_iter().try_for_each(found)?;
    wrong_variables().into_iter().try_for_each(found)?;
    let mut networks = Vec::new();
    let choice = FABRIC.get::<String>().ok().flatten().filter(|choice| choice != "auto");
    for (name, probed) in transom::provider::probe() {
        let is_network = !OF_ONE_HOST.contains(&name);
        if probed.is_ok() && is_network && choice.as_deref().is_none_or(|choice| choice == name) {
            networks.push(name.to_owned());
        }
        match name {
            "shm" => found(shared_memory(shm_loopback()))?,
            name if is_network => found(network(name, probed, choice.as_deref(), has_rdma))?,
            _ => {}
        }
    }
    found(start())?;
    Report::End { seconds: began.elapsed().as_secs_f64(), networks }.print()
}

fn same_build(doctors: &str, here: Option<&str>) -> Finding {
    match here {
        Some(here) if here == doctors => Finding::ok(BUILD, here),
        Some(here) if !doctors.is_empty() => Finding::failed(
            BUILD,
            format!("this program is another build there: {here}, expected {doctors}"),
            "copy one build of each program to all hosts",
        ),
        _ => Finding::warning(
            BUILD,
            "this program has no build ID, so that different builds on hosts are not noticed",
            "link with `-Wl,--build-id`",
        ),
    }
}

fn wrong_variables() -> Vec<Finding> {
    let correct = "correct or unset it; `transom info` explains each variable";
    let wrong = variables::TABLE.iter().filter_map(|variable| variable.mistake());
    let wrong = wrong.map(|mistake| Finding::failed("variable", mistake.to_string(), correct));
    let unknown = variables::unknown().into_iter();
    wrong
        .chain(
            unknown.map(|name| Finding::warning("variable", format!("{name} is unknown, and has no effect"), correct)),
        )
        .collect()
}

fn shared_memory(tried: Result<(), String>) -> Finding {
    match tried {
        Ok(()) => Finding::ok("shm", "ranks of this host share memory"),
        Err(why) => Finding::failed(
            "shm",
            why,
            "allow memfd_create, pidfd_open and futex (Linux 5.3, seccomp profile of a container)",
        ),
    }
}

/// A network that this host can or cannot use.
fn network(name: &str, probed: Result<String, String>, choice: Option<&str>, has_rdma: bool) -> Finding {
    match probed {
        Ok(found) => Finding::ok(name, found),
        Err(why) if choice == Some(name) => {
            Finding::failed(name, why, format!("follow the reason, or unset {}", FABRIC.name))
        }
        Err(why) if name == "verbs" && !has_rdma => Finding::ok(name, format!("not used: {why}")),
        Err(why) => {
            Finding::warning(name, why, "jobs use another network; docs/troubleshooting.md explains the reason")
        }
    }
}

/// Joins the job of this rank, as a program does.
fn start() -> Finding {
    let Ok(Some(hub)) = variables::HUB.get::<String>() else {
        return match transom::init() {
            Ok(_) => Finding::ok("start", "a rank joins its job"),
            Err(error) => {
                Finding::failed("start", error.to_string(), "follow the reason; `transom info` describes this machine")
            }
        };
    };
    // Joining takes a minute to give up, and names the last reason only.
    let addresses: Vec<SocketAddr> = hub.split(',').filter_map(|address| address.parse().ok()).collect();
    let tried: Vec<io::Result<()>> = std::thread::scope(|scope| {
        let attempt = |address| move || TcpStream::connect_timeout(address, ATTEMPT).map(drop);
        let threads: Vec<_> = addresses.iter().map(|address| scope.spawn(attempt(address))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))).collect()
    });
    let advice = || {
        format!(
            "the machine of the launcher must accept TCP from this host: {}; or select a network: \
             TRANSOM_HUB_INTERFACE=10.0.0.0/8",
            through_firewall(variables::HUB_PORTS.name, "47100-47109")
        )
    };
    match tried.iter().position(Result::is_ok) {
        None => {
            let tried =
                addresses.iter().zip(&tried).filter_map(|(address, tried)| Some((address, tried.as_ref().err()?)));
            let reasons: Vec<_> = tried.map(|(address, error)| format!("{address}: {error}")).collect();
            Finding::failed(
                HUB,
                format!("this host does not reach the hub of its job: {}", reasons.join("; ")),
                advice(),
            )
        }
        Some(first) => match transom::init() {
            Ok(_) => Finding::ok(HUB, format!("reached at {}", addresses[first])),
            Err(error) => Finding::failed(HUB, error.to_string(), advice()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict::{self, Failed, Ok as Good, Warning};

    #[test]
    fn builds_must_be_equal_and_known() {
        let verdicts = [("a", Some("a")), ("a", Some("b")), ("a", None), ("", Some("b")), ("", None)];
        let verdicts: Vec<Verdict> = verdicts.map(|(doctors, here)| same_build(doctors, here).verdict).into();
        assert_eq!(verdicts, [Good, Failed, Warning, Warning, Warning]);
    }

    #[test]
    fn missing_network_fails_only_if_it_is_chosen() {
        let verdict = |name, choice, has_rdma| network(name, Err("none".into()), choice, has_rdma).verdict;
        assert_eq!(verdict("verbs", Some("verbs"), false), Failed);
        assert_eq!(verdict("verbs", None, false), Good);
        assert_eq!(verdict("verbs", None, true), Warning);
        assert_eq!(verdict("tcp", None, false), Warning);
    }
}
