//! Groups ranks by host. Two ranks are on one host if their machines have the same boot identity and they share a
//! process namespace, so that each can open a descriptor of the other.

use super::build::Build;
use super::error::BootstrapError;
use crate::ranges::ranges;
use crate::variables::HOST;
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use transom_locks::Rank;

/// A rank's record of its host and process.
pub(super) struct Host {
    process: u32,
    /// Host name shown in messages.
    name: String,
    /// Equal for all ranks of one host, different between hosts.
    pub identity: String,
    /// Build of the rank's program; `None` if it is unknown.
    build: Option<Build>,
}

/// The hosts of a job, and which ranks are on which.
#[derive(Debug, PartialEq, Eq)]
pub struct Hosts {
    /// Host names, ordered by the lowest rank on each host.
    pub names: Vec<String>,
    /// Index into `names`, for each rank.
    pub of: Vec<usize>,
}

/// The ranks of this host, in ascending order.
pub(super) struct Neighbours {
    pub ranks: Vec<Rank>,
    /// Process identifier of each.
    pub processes: Vec<u32>,
    /// Index of this rank.
    pub me: usize,
}

impl Neighbours {
    /// Builds the list from the [places](Host::place) of the ranks of this host.
    pub fn from_records(rank: Rank, records: &[Vec<u8>]) -> Result<Self, BootstrapError> {
        let malformed = || {
            let why = "the hub sent malformed places of the ranks of this host, expected ascending ranks with this one"
                .into();
            BootstrapError::Record { why }
        };
        let place = |record: &Vec<u8>| {
            let (rank, process) = record.split_first_chunk()?;
            let process = u32::from_le_bytes(process.try_into().ok()?);
            Some((u32::from_le_bytes(*rank) as Rank, process)).filter(|_| process > 0 && process <= i32::MAX as u32)
        };
        let places: Option<Vec<_>> = records.iter().map(place).collect();
        let (ranks, processes): (Vec<_>, Vec<_>) = places.ok_or_else(malformed)?.into_iter().unzip();
        if !ranks.is_sorted_by(|one, next| one < next) {
            return Err(malformed());
        }
        let me = ranks.binary_search(&rank).map_err(|_| malformed())?;
        Ok(Neighbours { ranks, processes, me })
    }
}

impl Host {
    /// The record of the calling process. TRANSOM_HOST is the launcher's label of its host.
    pub fn here() -> Self {
        Self::labelled(&std::env::var(HOST.name).unwrap_or_default())
    }

    /// The record of the calling process on a host of this label; the host's own name if it is empty.
    pub fn labelled(label: &str) -> Self {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        // Host names may repeat; the name stands in for the boot identity only where there is no /proc.
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_else(|_| name.clone());
        let processes = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        // A launcher may present one machine as two hosts.
        let identity = format!("{} {} {label}", boot.trim(), processes.display());
        let identity = HEXLOWER.encode(&Sha256::digest(identity)[..16]);
        let line = |text: &str| text.replace(|c: char| c.is_control(), "?").chars().take(64).collect();
        let name = if label.is_empty() { &name } else { label };
        let (process, build) = (std::process::id(), Build::here());
        Host { process, name: line(name), identity, build }
    }

    /// The place of this process, for the ranks of its host.
    pub fn place(&self, rank: Rank) -> Vec<u8> {
        [rank as u32, self.process].map(u32::to_le_bytes).concat()
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let build = self.build.as_ref().map_or_else(String::new, |build| format!("{} {}", build.file, build.id));
        format!("{}\n{}\n{}\n{build}", self.process, self.name, self.identity).into_bytes()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(bytes).ok()?.split('\n');
        let process = lines.next()?.parse().ok().filter(|&process| process > 0 && process <= i32::MAX as u32)?;
        let (name, identity) = (lines.next()?.to_owned(), lines.next()?.to_owned());
        let build = lines.next()?.split_once(' ');
        let build = build.map(|(file, id)| Build { file: file.to_owned(), id: id.to_owned() });
        lines.next().is_none().then_some(Host { process, name, identity, build })
    }
}

impl Hosts {
    /// Builds the table from one record per rank. All ranks must run the same build of a program file.
    pub fn from_records(records: &[Vec<u8>]) -> Result<Self, BootstrapError> {
        let mut hosts = Hosts { names: Vec::new(), of: Vec::new() };
        let mut numbers = HashMap::new();
        let mut builds: HashMap<String, (Rank, String, String)> = HashMap::new();
        for (rank, record) in records.iter().enumerate() {
            let host = Host::from_bytes(record).ok_or_else(|| {
                let shown: String = String::from_utf8_lossy(record).chars().take(100).collect();
                let why = format!(
                    "rank {rank} sent a malformed host record {shown:?}, expected process, name, identity and build; do all \
                     ranks run the same version of transom?"
                );
                BootstrapError::Record { why }
            })?;
            if let Some(Build { file, id }) = host.build {
                let first = builds.entry(file).or_insert_with(|| (rank, host.name.clone(), id.clone()));
                if first.2 != id {
                    let (other, other_host, other_id) = first;
                    let why = format!(
                        "rank {other} on host {other_host} and rank {rank} on host {} run different builds of the same \
                         program file (build IDs {other_id}... and {id}...); copy one build to both hosts, or give the \
                         builds different paths if they belong together",
                        host.name
                    );
                    return Err(BootstrapError::Record { why });
                }
            }
            hosts.of.push(*numbers.entry(host.identity).or_insert_with(|| {
                hosts.names.push(host.name);
                hosts.names.len() - 1
            }));
        }
        Ok(hosts)
    }

    /// The ranks on the host of `rank`, in ascending order.
    pub fn neighbours(&self, rank: Rank) -> Vec<Rank> {
        (0..self.of.len()).filter(|&other| self.of[other] == self.of[rank]).collect()
    }
}

impl std::fmt::Display for Hosts {
    /// `node1 (ranks 0-2), node2 (ranks 3, 4)`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (number, name) in self.names.iter().enumerate() {
            let ranks: Vec<Rank> = (0..self.of.len()).filter(|&rank| self.of[rank] == number).collect();
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{name} (ranks {})", ranges(&ranks))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_grouped_by_host_identity() {
        let records =
            ["7\na\nboot 1\n", "8\nb\nboot 2\nf 1", "9\na\nboot 1\ng 2"].map(|record| record.as_bytes().to_vec());
        let hosts = Hosts::from_records(&records).unwrap();
        assert_eq!(hosts.of, [0, 1, 0]);
        assert_eq!((hosts.neighbours(2), hosts.neighbours(1)), (vec![0, 2], vec![1]));
        assert_eq!(hosts.to_string(), "a (ranks 0, 2), b (ranks 1)");
        for wrong in ["", "7", "7\na", "7\na\nb", "0\na\nb\n", "-1\na\nb\n", "7\na\nb\nc\n", "99999999999\na\nb\n"] {
            let error = Hosts::from_records(&[b"7\na\nb\n".to_vec(), wrong.into()]).unwrap_err().to_string();
            assert!(error.contains("rank 1 sent"), "{error}");
        }
        assert!(Hosts::from_records(&[vec![255]]).is_err());
    }

    #[test]
    fn malformed_places_are_refused() {
        let place = |rank: u32, process: u32| [rank, process].map(u32::to_le_bytes).concat();
        let of =
            |records: &[Vec<u8>]| Neighbours::from_records(4, records).map(|all| (all.ranks, all.processes, all.me));
        assert_eq!(of(&[place(1, 7), place(4, 9)]).unwrap(), (vec![1, 4], vec![7, 9], 1));
        for wrong in [
            &[][..],
            &[place(1, 7)],
            &[place(4, 0)],
            &[place(4, u32::MAX)],
            &[place(4, 9), place(1, 7)],
            &[place(4, 9), place(4, 7)],
            &[vec![4, 0, 0, 0, 9, 0, 0]],
            &[[place(4, 9), vec![0]].concat()],
            &[place(4, 9), vec![]],
        ] {
            assert!(of(wrong).unwrap_err().to_string().contains("malformed places"), "{wrong:?}");
        }
    }

    #[test]
    fn different_builds_of_one_file_are_refused() {
        let of = |builds: [&str; 3]| {
            let records = [0, 1, 2].map(|rank| format!("7\nh{rank}\nboot {rank}\n{}", builds[rank]).into_bytes());
            Hosts::from_records(&records).map(|hosts| hosts.names.len()).map_err(|error| error.to_string())
        };
        assert_eq!(of(["f 1", "f 1", "f 1"]), Ok(3));
        assert_eq!(of(["f 1", "g 2", ""]), Ok(3), "different files, and an unknown one");
        let error = of(["f 1", "g 2", "f 3"]).unwrap_err();
        let said = "rank 0 on host h0 and rank 2 on host h2 run different builds of the same program file (build IDs 1... \
                    and 3...)";
        assert!(error.contains(said), "{error}");
    }

    #[test]
    fn two_records_of_one_host_are_equal() {
        let records = [Host::here().to_bytes(), Host::here().to_bytes()];
        assert_eq!(Hosts::from_records(&records).unwrap().of, [0, 0]);
    }
}
