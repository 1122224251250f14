//! The jobs of the doctor, and what their ends say about the hosts.

use super::finding::{Finding, Report, Verdict, through_firewall};
use super::host::{BUILD, HUB};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use transom::variables::{FABRIC, SSH};
use transom::{Failure, HostList, Launch, LaunchError, Outcome, Status};

/// Grace of the second rank of a pair after the first has failed.
const GRACE: Duration = Duration::from_secs(1);
/// Subjects whose failure keeps jobs on several hosts from starting.
const STOPS: [&str; 2] = [BUILD, HUB];

pub struct Jobs {
    program: PathBuf,
    /// Limit of each job.
    limit: Duration,
}

/// The result of examining a host.
pub struct Examined {
    pub name: String,
    pub findings: Vec<Finding>,
    /// Networks that the host can use, as [`Jobs::access`] names them; `None` if ranks do not start there.
    pub networks: Option<Vec<String>>,
}

impl Jobs {
    pub fn new(limit: Duration) -> io::Result<Self> {
        Ok(Jobs { program: std::env::current_exe()?, limit })
    }

    fn launch(&self, hosts: Option<HostList>, ranks: usize, args: &[&str]) -> Launch {
        let launch = Launch::new(&self.program, ranks).agent(&self.program).args(["doctor-rank"]).args(args);
        let launch = launch.current_dir("/").capture(true).deadline(self.limit).grace(GRACE);
        hosts.into_iter().fold(launch, Launch::hosts)
    }

    /// Examines a host, or this machine.
    pub fn examine(&self, host: Option<(&HostList, usize)>) -> Examined {
        let own = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        let name = host.and_then(|(hosts, host)| Some(hosts.names().nth(host)?.to_owned())).unwrap_or_else(own);
        let build = transom::build_id().unwrap_or_default();
        let began = Instant::now();
        let job = self.launch(host.map(|(hosts, host)| hosts.pick(&[host])), 1, &["host", "--build", &build]);
        let outcome = job.run();
        let (findings, networks) = match outcome {
            Err(error) => (vec![self.not_started(error, &name)], None),
            Ok(outcome) => self.examined(&outcome, host.map(|_| began.elapsed()), &name),
        };
        Examined { findings: findings.into_iter().map(|finding| finding.on(&name)).collect(), name, networks }
    }

    /// The findings of a job that has started. `took` is its time if there was a remote shell.
    fn examined(&self, outcome: &Outcome, took: Option<Duration>, name: &str) -> (Vec<Finding>, Option<Vec<String>>) {
        let (reports, others) = Report::read_all(outcome.output(0));
        let (mut findings, mut end) = (Vec::new(), None);
        for report in reports {
            match report {
                Report::Found(finding) => findings.push(finding),
                Report::End { seconds, networks } => end = Some((seconds, networks)),
            }
        }
        if let Some(took) = took {
            let shell = SSH.get().ok().flatten().unwrap_or_else(|| "ssh".to_owned());
            let before = end.as_ref().map(|(seconds, _)| (took.as_secs_f64() - seconds).max(0.0));
            let time = before.map_or(String::new(), |seconds| format!(" in {seconds:.2} s"));
            findings.insert(0, Finding::ok("reached", format!("by `{shell}`{time}")));
        }
        let copy = || format!("copy this build there: `scp {0} {name}:{0}`", self.program.display());
        match (outcome.failure(), end) {
            (None, Some((_, networks))) => {
                // A job of several hosts would not start.
                let starts = findings
                    .iter()
                    .all(|finding| finding.verdict != Verdict::Failed || !STOPS.contains(&finding.subject.as_str()));
                return (findings, starts.then_some(networks));
            }
            (Some(Failure::Deadline { .. }), _) => {
                let advice = "look for hanging file systems there (`df`), or raise --timeout";
                findings.push(Finding::failed("time", format!("not done within {:?}", self.limit), advice));
            }
            (Some(Failure::Rank { status: Status::Exited(126 | 127), .. }), None) => {
                let why =
                    last_line(&others).unwrap_or_else(|| format!("{} cannot be executed", self.program.display()));
                findings.push(Finding::failed("transom", why, copy()));
            }
            _ => {
                let why = others.first().map_or(String::new(), |line| format!(": {line}"));
                findings.push(Finding::failed("transom", format!("this check ended there, {outcome}{why}"), copy()));
            }
        }
        (findings, None)
    }

    fn not_started(&self, error: LaunchError, name: &str) -> Finding {
        let shell = format!("`ssh {name} true` must work without a password (`ssh-copy-id {name}`)");
        let advice = format!("{shell}; {} can name another remote shell", SSH.name);
        match error {
            LaunchError::Host { why, .. } => Finding::failed("reached", why, advice),
            LaunchError::Deadline => Finding::failed("reached", format!("no answer within {:?}", self.limit), advice),
            error => Finding::failed("launcher", error.to_string(), "correct this on this machine"),
        }
    }

    /// Lets a rank on the first host access memory of a rank on the second, over a network as TRANSOM_FABRIC names it, or
    /// [one of its rails](by_rail).
    pub fn access(&self, hosts: &HostList, [from, to]: [usize; 2], network: &str) -> Finding {
        let name = |host: usize| hosts.names().nth(host).unwrap_or_default();
        let subject = format!("{network} to {}", name(to));
        let mut job = self.launch(Some(hosts.pick(&[from, to])), 2, &["pair"]);
        job = match network.split_once(BY_RAIL) {
            None => job.env(FABRIC.name, network),
            Some((network, rail)) => job.env(FABRIC.name, network).env("TRANSOM_VERBS_DEVICE", rail),
        };
        let outcome = job.run();
        let why = match outcome {
            Err(error) => error.to_string(),
            Ok(outcome) if outcome.success() => {
                let found = Report::read_all(outcome.output(0)).0.into_iter().find_map(|report| match report {
                    Report::Found(finding) => Some(finding.found),
                    Report::End { .. } => None,
                });
                return Finding::ok(&subject, found.unwrap_or_default()).on(name(from));
            }
            Ok(outcome) => match outcome.failure() {
                Some(Failure::Rank { rank, .. }) => last_line(&Report::read_all(outcome.output(*rank)).1),
                _ => None,
            }
            .unwrap_or_else(|| outcome.to_string()),
        };
        Finding::failed(&subject, why, advice(network, name(from), name(to))).on(name(from))
    }

    /// The finding about two hosts without a common network.
    pub fn no_network(&self, hosts: &HostList, [one, other]: [usize; 2]) -> Finding {
        let name = |host: usize| hosts.names().nth(host).unwrap_or_default();
        let advice = match std::env::var(FABRIC.name) {
            Ok(choice) => format!("unset {}, which is `{choice}`, or `{}=tcp`", FABRIC.name, FABRIC.name),
            Err(_) => "see the networks of both hosts above".to_owned(),
        };
        let subject = format!("network to {}", name(other));
        Finding::failed(&subject, "both hosts can use none in common", advice).on(name(one))
    }
}

const BY_RAIL: &str = " by ";

/// Names a network by one rail, which TRANSOM_VERBS_DEVICE selects.
pub fn by_rail(network: &str, rail: &str) -> String {
    format!("{network}{BY_RAIL}{rail}")
}

/// The last line that a program printed about an error.
fn last_line(lines: &[String]) -> Option<String> {
    lines.iter().rev().find_map(|line| line.strip_prefix("transom: ")).map(str::to_owned)
}

/// Returns the advice for a rank that does not reach memory on another host.
fn advice(network: &str, from: &str, to: &str) -> String {
    match network.split(BY_RAIL).next() {
        Some("verbs") => format!(
            "{to} must accept UDP 4791 from {from} (RoCE v2): `firewall-cmd --add-port=4791/udp`; compare VLANs, partitions and \
             `ibv_devinfo -v` of both; or use {}=tcp",
            FABRIC.name
        ),
        _ => format!(
            "{to} must accept TCP from {from}: {}; or select a common network: TRANSOM_TCP_INTERFACE=10.0.0.0/8",
            through_firewall("TRANSOM_TCP_PORTS", "47000-47099")
        ),
    }
}
