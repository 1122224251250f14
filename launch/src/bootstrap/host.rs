//! Groups ranks by host. Two ranks are on one host if their machines have the same boot identity and they share a
//! process namespace, so that each can open a descriptor of the other.

use super::error::BootstrapError;
use std::collections::HashMap;
use transom_locks::Rank;

/// A rank's record of its host and process.
pub(super) struct Host {
    process: u32,
    /// Host name shown in messages.
    name: String,
    /// Equal for all ranks of one host, different between hosts.
    pub identity: String,
}

/// The hosts of a job, and which ranks are on which.
#[derive(Debug, PartialEq, Eq)]
pub struct Hosts {
    /// Host names, ordered by the lowest rank on each host.
    pub names: Vec<String>,
    /// Index into `names`, for each rank.
    pub of: Vec<usize>,
    /// Process identifier on its host, for each rank.
    pub processes: Vec<u32>,
}

impl Host {
    /// The record of the calling process.
    pub fn here() -> Self {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        // Host names may repeat; the name stands in for the boot identity only where there is no /proc.
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_else(|_| name.clone());
        let processes = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        // TRANSOM_HOST is the launcher's label of this host. A launcher may present one machine as two hosts.
        let label = std::env::var("TRANSOM_HOST").unwrap_or_default();
        let identity = format!("{} {} {label}", boot.trim(), processes.display());
        // PMI limits the length of a value, so both texts are cut.
        let line = |text: &str, most| text.replace(|c: char| c.is_control(), "?").chars().take(most).collect();
        let name = if label.is_empty() { &name } else { &label };
        Host { process: std::process::id(), name: line(name, 64), identity: line(&identity, 320) }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        format!("{}\n{}\n{}", self.process, self.name, self.identity).into_bytes()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(bytes).ok()?.split('\n');
        let process = lines.next()?.parse().ok().filter(|&process| process > 0 && process <= i32::MAX as u32)?;
        let (name, identity) = (lines.next()?.to_owned(), lines.next()?.to_owned());
        lines.next().is_none().then_some(Host { process, name, identity })
    }
}

impl Hosts {
    /// Builds the table from one record per rank.
    pub fn from_records(records: &[Vec<u8>]) -> Result<Self, BootstrapError> {
        let mut hosts = Hosts { names: Vec::new(), of: Vec::new(), processes: Vec::new() };
        let mut numbers = HashMap::new();
        for (rank, record) in records.iter().enumerate() {
            let host = Host::from_bytes(record).ok_or_else(|| {
                let shown: String = String::from_utf8_lossy(record).chars().take(100).collect();
                let why = format!(
                    "rank {rank} sent a malformed host record {shown:?}, expected process, name and identity; do all \
                     ranks run the same version of transom?"
                );
                BootstrapError::Record { why }
            })?;
            hosts.of.push(*numbers.entry(host.identity).or_insert_with(|| {
                hosts.names.push(host.name);
                hosts.names.len() - 1
            }));
            hosts.processes.push(host.process);
        }
        Ok(hosts)
    }

    /// The ranks on the host of `rank`, in ascending order.
    pub fn neighbours(&self, rank: Rank) -> Vec<Rank> {
        (0..self.of.len()).filter(|&other| self.of[other] == self.of[rank]).collect()
    }
}

impl std::fmt::Display for Hosts {
    /// `node1 (ranks 0, 1), node2 (ranks 2, 3)`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (number, name) in self.names.iter().enumerate() {
            let ranks = (0..self.of.len()).filter(|&rank| self.of[rank] == number).map(|rank| rank.to_string());
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{name} (ranks {})", ranks.collect::<Vec<_>>().join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_grouped_by_host_identity() {
        let records = ["7\na\nboot 1", "8\nb\nboot 2", "9\na\nboot 1"].map(|record| record.as_bytes().to_vec());
        let hosts = Hosts::from_records(&records).unwrap();
        assert_eq!((hosts.of.as_slice(), hosts.processes.as_slice()), (&[0, 1, 0][..], &[7, 8, 9][..]));
        assert_eq!((hosts.neighbours(2), hosts.neighbours(1)), (vec![0, 2], vec![1]));
        assert_eq!(hosts.to_string(), "a (ranks 0, 2), b (ranks 1)");
        for wrong in ["", "7", "7\na", "0\na\nb", "-1\na\nb", "7\na\nb\nc", "99999999999\na\nb"] {
            let error = Hosts::from_records(&[b"7\na\nb".to_vec(), wrong.into()]).unwrap_err().to_string();
            assert!(error.contains("rank 1 sent"), "{error}");
        }
        assert!(Hosts::from_records(&[vec![255]]).is_err());
    }

    #[test]
    fn two_records_of_one_host_are_equal() {
        let records = [Host::here().to_bytes(), Host::here().to_bytes()];
        assert_eq!(Hosts::from_records(&records).unwrap().of, [0, 0]);
    }
}
