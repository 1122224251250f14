//! What the ranks of a launch meet in: shared memory, or the hub.

use super::{HostList, Launch, LaunchError};
use crate::job::bootstrap::{addresses, to_hex};
use crate::job::tcp::{Hub, Secret};
use std::io;
use transom_locks::Rank;
use transom_shm_loopback::Job;

pub(super) enum Meeting {
    /// Of ranks on this machine.
    Memory(Job),
    /// Of ranks on hosts.
    Hub(HubOfHosts),
}

/// A hub and who meets there.
pub(super) struct HubOfHosts {
    hub: Hub,
    secret: Secret,
    hosts: HostList,
    /// The number of each rank's host.
    placed: Vec<usize>,
}

/// What tells a rank on a host of its job.
const OF_HOSTS: [&str; 3] = ["TRANSOM_HUB", "TRANSOM_SECRET", "TRANSOM_HOST"];

impl Meeting {
    pub fn of(launch: &Launch) -> Result<Self, LaunchError> {
        let Some(hosts) = &launch.hosts else { return Ok(Meeting::Memory(Job::create(launch.ranks)?)) };
        let placed = hosts.place(launch.ranks)?;
        let failed = |source: io::Error| LaunchError::System { what: "making the meeting of the job", source };
        let secret = Secret::fresh().map_err(failed)?;
        let hub = Hub::start(launch.ranks, secret.clone()).map_err(failed)?;
        Ok(Meeting::Hub(HubOfHosts { hub, secret, hosts: hosts.clone(), placed }))
    }

    /// To be called when a rank's process has ended.
    pub fn ended(&self, rank: Rank, well: bool) {
        match self {
            Meeting::Memory(job) => job.ended(rank, well),
            Meeting::Hub(hub) => hub.hub.ended(rank, well),
        }
    }

    /// The variables of a job on hosts, which one on this machine must not have.
    pub fn of_hosts() -> [&'static str; 3] {
        OF_HOSTS
    }
}

impl HubOfHosts {
    /// The host of each rank.
    pub fn hosts(&self) -> Vec<&str> {
        let names: Vec<&str> = self.hosts.names().collect();
        self.placed.iter().map(|&host| names[host]).collect()
    }

    pub fn environment(&self, rank: Rank) -> Vec<(&'static str, String)> {
        let addresses = addresses(self.hub.port()).iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let [hub, secret, host] = OF_HOSTS;
        vec![
            ("TRANSOM_RANK", rank.to_string()),
            ("TRANSOM_SIZE", self.placed.len().to_string()),
            (hub, addresses),
            (secret, to_hex(self.secret.as_bytes())),
            (host, self.hosts.label(self.placed[rank])),
        ]
    }
}
