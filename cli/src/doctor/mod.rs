//! `transom doctor`: checks hosts and the networks between them. It starts small jobs by the launcher: a rank on each
//! host, which examines it ([`host`]), and two ranks on each pair of hosts, and on each pair of their rails ([`pair`]). It
//! therefore fails where a program's job would fail, with the same messages.

mod finding;
mod host;
mod jobs;
mod limits;
mod pair;
mod text;

use crate::run::{Hosts, hosts_or_none, listed_hosts, time_limit};
use clap::{Args, Subcommand};
use finding::Verdict;
use jobs::{Examined, Jobs};
use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;
use transom::HostList;
use transom::variables::{HUB_PORTS, Ports};

/// Jobs that run at once.
const AT_ONCE: usize = 16;

/// Checks that jobs can run here, or on hosts: remote shell, program, hub, networks, limits.
///
/// Each line of the report is `ok`, `warning` (some jobs fail or are slow) or `FAILED` (jobs fail), with what was found
/// and what to do. The checks are small jobs of this program, started as `transom run` starts them; TRANSOM_ variables
/// apply to them. A host needs this program at the same path, with the same build.
#[derive(Args)]
#[command(after_help = AFTER)]
pub struct Doctor {
    /// Hosts to check, e.g. `a,b`; `none` checks this machine
    ///
    /// Without this option and --hostfile, the hosts are those of the batch job in which this command runs, else this
    /// machine.
    #[arg(long, value_name = "HOSTS", allow_hyphen_values = true, value_parser = hosts_or_none)]
    hosts: Option<Hosts>,

    /// File with a host in each line, as for `transom run`
    #[arg(long, alias = "machinefile", value_name = "FILE", conflicts_with = "hosts")]
    hostfile: Option<PathBuf>,

    /// Seconds for each check; a network that drops packets is given up after 30
    #[arg(long, value_name = "SECONDS", default_value = "60", allow_negative_numbers = true, value_parser = time_limit)]
    timeout: Duration,

    /// Print a list of findings in JSON: host, subject, verdict, found, advice
    #[arg(long)]
    json: bool,
}

const AFTER: &str = "\
Exit status:
  0    nothing has failed
  1    a check has failed
  2    the command line is wrong

Examples:
  transom doctor                              this machine
  transom doctor --hosts node1,node2          both hosts, and the networks between them
  TRANSOM_HUB_PORTS=47100-47109 TRANSOM_TCP_PORTS=47000-47099 transom doctor --hostfile hosts
                                              through a firewall that passes these ports
  TRANSOM_FABRIC=tcp transom doctor --hosts node1,node2
                                              without RDMA";

/// Arguments of a rank of the doctor.
#[derive(Args)]
pub struct Rank {
    #[command(subcommand)]
    check: Check,
}

#[derive(Subcommand)]
enum Check {
    /// Examines the host.
    Host {
        /// Build of the doctor; empty if it has none.
        #[arg(long, allow_hyphen_values = true)]
        build: String,
    },
    /// Rank 0 accesses memory of rank 1.
    Pair {
        /// One rail of each rank, as TRANSOM_VERBS_DEVICE names it; without it all that a job uses.
        #[arg(long, value_delimiter = ',', value_name = "RAIL,RAIL")]
        rails: Vec<String>,
    },
}

impl Rank {
    pub fn execute(self) -> Result<ExitCode, Box<dyn Error>> {
        match self.check {
            Check::Host { build } => host::examine(&build)?,
            Check::Pair { rails } if rails.is_empty() => pair::access()?,
            Check::Pair { rails } => match pair::access_by(&rails)? {},
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Doctor {
    pub fn execute(self) -> Result<ExitCode, Box<dyn Error>> {
        let hosts = match listed_hosts(self.hosts.as_ref(), self.hostfile.as_deref())? {
            // `transom run` starts all ranks here then, too.
            Some(listed) if listed.source.is_some() && listed.hosts.is_this_machine() => None,
            listed => listed.map(|listed| listed.hosts),
        };
        let jobs = Jobs::new(self.timeout)?;
        let mut report = text::Text::new(!self.json);
        match hosts {
            None => report.host("this machine", jobs.examine(None).findings)?,
            Some(hosts) => on_hosts(&jobs, &hosts, &mut report)?,
        }
        let findings = report.end()?;
        if self.json {
            writeln!(io::stdout(), "{}", serde_json::to_string_pretty(&findings)?)?;
        }
        let has_failed = findings.iter().any(|finding| finding.verdict == Verdict::Failed);
        Ok(ExitCode::from(u8::from(has_failed)))
    }
}

/// Examines all hosts, and then the networks between those on which ranks start.
fn on_hosts(jobs: &Jobs, hosts: &HostList, report: &mut text::Text) -> Result<(), Box<dyn Error>> {
    // The hub of each job needs a port of this machine.
    let ports = HUB_PORTS.get::<Ports>()?.map_or(AT_ONCE, |ports| usize::from(ports.last - ports.first) + 1);
    let at_once = ports.min(AT_ONCE);
    let mut sound = Vec::new();
    let examined = in_parallel((0..hosts.names().count()).collect(), at_once, |host| jobs.examine(Some((hosts, host))));
    for (host, Examined { name, findings, networks }) in examined.into_iter().enumerate() {
        sound.extend(networks.map(|networks| (host, networks)));
        report.host(&name, findings)?;
    }
    let mut between = Vec::new();
    for round in rounds(sound.len()) {
        let tried = in_parallel(round, at_once, |(one, other)| {
            let ((one, networks), (other, others)) = (&sound[one], &sound[other]);
            let mut common = networks.iter().filter(|network| others.contains(network)).peekable();
            if common.peek().is_none() {
                return vec![jobs.no_network(hosts, [*one, *other])];
            }
            common.flat_map(|network| jobs.between(hosts, [*one, *other], network)).collect()
        });
        between.extend(tried.into_iter().flatten());
    }
    Ok(report.between_hosts(between)?)
}

/// All pairs of `count` hosts, in rounds in which each host occurs once: it may have a single port for a rank.
fn rounds(count: usize) -> Vec<Vec<(usize, usize)>> {
    // One host stays in its place, and the others move on by one place in each round.
    let places = count.next_multiple_of(2);
    let at = |round: usize, place: usize| if place == 0 { 0 } else { 1 + (place - 1 + round) % (places - 1) };
    let pairs = |round| {
        let pairs = (0..places / 2).map(move |place| (at(round, place), at(round, places - 1 - place)));
        pairs.filter(|(one, other)| *one.max(other) < count).collect()
    };
    (0..places.saturating_sub(1)).map(pairs).collect()
}

/// Calls `act` for each item, in at most `threads` threads; returns the results in the order of the items.
fn in_parallel<T: Send, R: Send>(items: Vec<T>, threads: usize, act: impl Fn(T) -> R + Sync) -> Vec<R> {
    let threads = threads.min(items.len());
    let (left, done) = (Mutex::new(items.into_iter().enumerate()), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let Some((number, item)) = left.lock().unwrap().next() else { return };
            let result = act(item);
            done.lock().unwrap().push((number, result));
        }
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| _ = scope.spawn(work)));
    let mut done = done.into_inner().unwrap();
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn rounds_have_each_pair_and_no_host_twice() {
        for count in 0..9 {
            let mut all = HashSet::new();
            for round in rounds(count) {
                let mut busy = HashSet::new();
                for (one, other) in round {
                    assert!(busy.insert(one) && busy.insert(other) && one != other, "{count}");
                    assert!(all.insert((one.min(other), one.max(other))), "{count}");
                }
            }
            assert_eq!(all.len(), count * count.saturating_sub(1) / 2);
        }
    }
}
