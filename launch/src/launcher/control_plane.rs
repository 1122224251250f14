//! The control plane of a job: ranks find each other and learn that a rank has ended. Ranks on this machine share a
//! control block in memory; ranks on hosts connect to a hub.

use super::hosts::{HostList, Placement};
use super::outcome::LaunchError;
use super::settings::Settings;
use crate::tcp::{Contact, Hub, Secret};
use crate::variables::{HOST, LOCAL_RANK, LOCAL_SIZE, NESTING, RANK, SIZE, VERBOSE};
use std::io;
use transom_locks::Rank;
use transom_shm_loopback::Job;

/// Deepest nesting of launchers, each started by a rank of the previous one. It bounds the number of processes of a
/// program that is a launcher in each of its ranks.
const MOST_NESTING: usize = 3;

pub(super) struct ControlPlane {
    medium: Medium,
    ranks: usize,
    placement: Placement,
    /// Number of launchers above the ranks.
    depth: usize,
    /// Ranks report the provider that they have chosen.
    verbose: bool,
}

enum Medium {
    ControlBlock(Job),
    Hub(HubOfHosts),
}

struct HubOfHosts {
    hub: Hub,
    contact: Contact,
    hosts: HostList,
}

impl ControlPlane {
    pub fn create(settings: &Settings) -> Result<Self, LaunchError> {
        let ranks = settings.ranks;
        let depth = NESTING.get::<usize>()?.unwrap_or(0);
        if depth >= MOST_NESTING {
            return Err(LaunchError::Nesting { depth });
        }
        let placement = match &settings.hosts {
            None => Placement::here(ranks, settings.map_by)?,
            Some(hosts) => Placement::on(hosts, ranks, settings.map_by)?,
        };
        let medium = match &settings.hosts {
            None => Medium::ControlBlock(Job::create(ranks)?),
            Some(hosts) => {
                let failed = |source: io::Error| LaunchError::System { what: "starting the hub of the job", source };
                let secret = Secret::fresh().map_err(failed)?;
                let hub = Hub::start(ranks, secret.clone()).map_err(failed)?;
                let contact = Contact::of(&hub, secret);
                Medium::Hub(HubOfHosts { hub, contact, hosts: hosts.clone() })
            }
        };
        Ok(ControlPlane { medium, ranks, placement, depth: depth + 1, verbose: settings.verbose })
    }

    /// The hosts that have ranks, each with its ranks in ascending order; `None` if the job is not on hosts. Rank 0 is
    /// on the first.
    pub fn hosts(&self) -> Option<Vec<(&str, &[Rank])>> {
        let Medium::Hub(hub) = &self.medium else { return None };
        let names: Vec<&str> = hub.hosts.names().collect();
        Some(self.placement.hosts().iter().map(|host| (names[host.number], host.ranks.as_slice())).collect())
    }

    /// The secret in the text form that ranks on hosts read from a file; `None` if the job is not on hosts.
    pub fn secret(&self) -> Option<String> {
        if let Medium::Hub(hub) = &self.medium { Some(hub.contact.secret.to_text()) } else { None }
    }

    /// The variables that the launcher sets for a rank, after it has removed those of
    /// [`removed_for_ranks`](crate::variables::removed_for_ranks).
    pub fn environment(&self, rank: Rank) -> Vec<(&'static str, String)> {
        let mut environment = match &self.medium {
            Medium::ControlBlock(job) => job.environment(rank).to_vec(),
            Medium::Hub(HubOfHosts { contact, hosts, .. }) => {
                let addresses = contact.environment();
                let host = (HOST.name, hosts.label(self.placement.host(rank).number));
                let (rank, size) = ((RANK.name, rank.to_string()), (SIZE.name, self.ranks.to_string()));
                vec![rank, size, addresses, host]
            }
        };
        environment.push((LOCAL_RANK.name, self.placement.local_rank(rank).to_string()));
        environment.push((LOCAL_SIZE.name, self.placement.host(rank).ranks.len().to_string()));
        environment.push((NESTING.name, self.depth.to_string()));
        environment.extend(self.verbose.then(|| (VERBOSE.name, "1".to_owned())));
        environment
    }

    /// Describes how the ranks meet.
    pub fn describe(&self) -> String {
        match &self.medium {
            Medium::ControlBlock(_) => format!("{} ranks on this machine meet in shared memory", self.ranks),
            Medium::Hub(hub) => {
                let (hosts, port) = (self.placement.hosts().len(), hub.hub.port());
                format!("{} ranks on {hosts} hosts meet at TCP port {port} of this machine", self.ranks)
            }
        }
    }

    /// Records that a rank's process has ended, so that the other ranks are notified.
    pub fn ended(&self, rank: Rank, well: bool) {
        match &self.medium {
            Medium::ControlBlock(job) => job.ended(rank, well),
            Medium::Hub(hub) => hub.hub.ended(rank, well),
        }
    }

    /// Returns whether the rank left before any death was recorded. Always false for ranks on hosts, which report to
    /// the hub only.
    pub fn has_left_first(&self, rank: Rank) -> bool {
        match &self.medium {
            Medium::ControlBlock(job) => job.has_left_first(rank),
            Medium::Hub(_) => false,
        }
    }

    /// The first rank whose death was recorded by the launcher or by any rank: its process ended before it left the
    /// job, or it failed and is about to end.
    pub fn first_death(&self) -> Option<Rank> {
        match &self.medium {
            Medium::ControlBlock(job) => job.first_death(),
            Medium::Hub(hub) => hub.hub.first_death(),
        }
    }
}
