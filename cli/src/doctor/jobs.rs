//! The jobs of the doctor, and what their ends say about the hosts.

use super::finding::{Finding, Rail, Report, Verdict, through_firewall};
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
    /// Networks that the host can use; `None` if ranks do not start there.
    pub networks: Option<Vec<String>>,
}

/// The result of a job on two hosts.
struct Access {
    finding: Finding,
    /// The rails that connect both ranks, each with its two ends.
    rails: Vec<[Rail; 2]>,
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
                Report::Rails(_) => {}
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

    /// Lets ranks on two hosts access each other's memory over a network, as TRANSOM_FABRIC names it. If they have several
    /// rails, each is then tried alone, because a job goes on without one that fails.
    pub fn between(&self, hosts: &HostList, [one, other]: [usize; 2], network: &str) -> Vec<Finding> {
        let [there, back] = [[one, other], [other, one]].map(|way| self.access(hosts, way, network, None));
        let mut findings = vec![there.finding, back.finding];
        if there.rails.len() > 1 {
            // Reads bring full packets back, so one direction proves both.
            let by = |rails| self.access(hosts, [one, other], network, Some(rails)).finding;
            findings.extend(there.rails.iter().map(by));
        }
        findings
    }

    /// Lets a rank on the first host access memory of a rank on the second, by all rails that a job uses, or by one.
    fn access(&self, hosts: &HostList, [from, to]: [usize; 2], network: &str, by: Option<&[Rail; 2]>) -> Access {
        let name = |host: usize| hosts.names().nth(host).unwrap_or_default();
        let subject = match by {
            None => format!("{network} to {}", name(to)),
            Some([mine, theirs]) => format!("{network} by {} to {} by {}", mine.name, name(to), theirs.name),
        };
        let chosen = by.map(|[mine, theirs]| format!("--rails={},{}", mine.name, theirs.name));
        let args: Vec<&str> = ["pair"].into_iter().chain(chosen.as_deref()).collect();
        let outcome = self.launch(Some(hosts.pick(&[from, to])), 2, &args).env(FABRIC.name, network).run();
        let of_rank = |rank| outcome.as_ref().map(|outcome| Reported::read(outcome.output(rank))).unwrap_or_default();
        let [mine, theirs] = [0, 1].map(of_rank);
        let finding = match why(&outcome, [&mine, &theirs]) {
            None => Finding::ok(&subject, mine.found),
            Some(why) => {
                let rail = by.map(|[mine, _]| mine).or(mine.rails.first());
                Finding::failed(&subject, why, advice(network, rail, name(from), name(to)))
            }
        };
        let rails = mine.rails.into_iter().zip(theirs.rails).map(<[Rail; 2]>::from).collect();
        Access { finding: finding.on(name(from)), rails }
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

/// The reports of a rank on one of two hosts.
#[derive(Default)]
struct Reported {
    /// Result of the accesses.
    found: String,
    rails: Vec<Rail>,
    error: Option<String>,
}

impl Reported {
    fn read(output: &[u8]) -> Self {
        let (reports, others) = Report::read_all(output);
        let mut reported = Reported { error: last_line(&others), ..Reported::default() };
        for report in reports {
            match report {
                Report::Found(finding) => reported.found = finding.found,
                Report::Rails(rails) => reported.rails = rails,
                Report::End { .. } => {}
            }
        }
        reported
    }
}

/// The reason of a job's failure; `None` if it has not failed.
fn why(outcome: &Result<Outcome, LaunchError>, reported: [&Reported; 2]) -> Option<String> {
    match outcome {
        Ok(outcome) if outcome.success() => None,
        Ok(outcome) => match outcome.failure() {
            Some(Failure::Rank { rank, .. }) => reported.get(*rank).and_then(|reported| reported.error.clone()),
            _ => None,
        }
        .or_else(|| Some(outcome.to_string())),
        Err(error) => Some(error.to_string()),
    }
}

/// The last line that a program printed about an error.
fn last_line(lines: &[String]) -> Option<String> {
    lines.iter().rev().find_map(|line| line.strip_prefix("transom: ")).map(str::to_owned)
}

/// Returns the advice for a rank that does not reach memory on another host, and has this first rail.
fn advice(network: &str, rail: Option<&Rail>, from: &str, to: &str) -> String {
    let tcp = format!("or use {}=tcp", FABRIC.name);
    match (network, rail) {
        ("verbs", Some(Rail { is_roce: true, .. })) => format!(
            "{to} must accept UDP 4791 from {from} (RoCE v2): `firewall-cmd --add-port=4791/udp`; switches must pass the MTU \
             (else TRANSOM_VERBS_MTU=1024); compare VLANs and `ibv_devinfo -v` of both; {tcp}"
        ),
        ("verbs", Some(_)) => format!(
            "compare partitions, subnets and MTU of both ports (`ibv_devinfo -v`); the subnet manager must run and know both; \
             {tcp}"
        ),
        ("verbs", None) => format!("follow the reason; compare `ibv_devinfo -v` of both; {tcp}"),
        _ => format!(
            "{to} must accept TCP from {from}: {}; or select a common network: TRANSOM_TCP_INTERFACE=10.0.0.0/8",
            through_firewall("TRANSOM_TCP_PORTS", "47000-47099")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn firewall_advice_is_for_ethernet_alone() {
        let advice = |is_roce| advice("verbs", Some(&Rail { name: "mlx5_0:1".into(), is_roce }), "a", "b");
        let [roce, infiniband] = [true, false].map(advice);
        assert!(roce.starts_with("b must accept UDP 4791 from a") && roce.contains("TRANSOM_VERBS_MTU"), "{roce}");
        assert!(infiniband.contains("partitions, subnets and MTU"), "{infiniband}");
        assert!(!infiniband.contains("4791") && !roce.contains("subnet manager"), "{infiniband}; {roce}");
    }

    #[test]
    fn error_of_a_rank_is_read_among_its_reports() {
        let rails = "{\"Rails\":[{\"name\":\"mlx5_0:1:3\",\"is_roce\":true}]}";
        let reported = Reported::read(format!("Welcome\ntransom doctor: {rails}\ntransom: no answer\n").as_bytes());
        assert_eq!(reported.rails, [Rail { name: "mlx5_0:1:3".into(), is_roce: true }]);
        assert_eq!((reported.found, reported.error.as_deref()), (String::new(), Some("no answer")));
    }
}
