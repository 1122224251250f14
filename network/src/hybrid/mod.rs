//! Combination of a network between hosts and shared memory within each host.

mod direct;
mod far;
mod mapped;

pub use direct::Direct;
pub use far::Far;
pub use mapped::Mapped;

use crate::variables::{INTRANODE, Intranode};
use crate::{Bootstrap, HybridWire, Network, NetworkError, Node, Transport};
use std::sync::Arc;
use transom_channel::{Changes, Config};
use transom_locks::Rank;
use transom_shm_loopback::Loopback;
use transom_shm_loopback::messages::ShmWire;
use transom_windows::{FabricError, OobExchange};

/// A provider of network `N` and the shared memory of each host: a handle of one rank of a job or team. Ranks of one
/// host move data by their own loads and stores if `TRANSOM_INTRANODE` is on, which is the default of a job on several
/// hosts. A rank always does so in its own memory.
///
/// Once the last clone and window of a rank are dropped, the rank has left the job.
pub type Hybrid<N> = Direct<Far<N>>;

impl<N: Network> Hybrid<N> {
    /// Opens the network of the ranks of `job`, as [`Far::open`] does.
    ///
    /// # Errors
    /// The errors of [`Far::open`].
    pub fn open(job: Arc<dyn Bootstrap>, node: Node, messages: &Config) -> Result<Self, NetworkError> {
        Far::open(job, node, messages).map(Direct::new)
    }

    /// The network, for its counters.
    pub fn network(&self) -> &N {
        self.inner().network()
    }
}

impl<N: Network> Far<N> {
    /// Opens the network of the ranks of `job`. Collective. `messages` is how the program configured messages.
    ///
    /// # Errors
    /// If one rank fails, all ranks get an error: see [`NetworkError`].
    pub fn open(job: Arc<dyn Bootstrap>, node: Node, messages: &Config) -> Result<Self, NetworkError> {
        let asked = INTRANODE.get::<Intranode>().map(|asked| asked.unwrap_or_default().0.unwrap_or(!node.is_all()));
        // The other ranks wait for this one: an invalid variable is reported only after the exchange.
        let told = job.all_gather(&asked.as_ref().map_or(Vec::new(), |on| vec![u8::from(*on)]))?;
        let intranode = asked?;
        agree(&told, job.rank(), intranode)?;
        let network = N::open(job.clone(), node.clone(), messages)
            .map_err(|error| NetworkError::Open { network: N::NAME, source: error.into() })?;
        Ok(Far { network, job, node, intranode })
    }

    /// The name of the network, and what this rank uses of its machine.
    pub fn describe(&self) -> String {
        [N::NAME, &self.network.describe()].join(" ").trim_end().to_owned()
    }

    /// The number of each rank's host; `None` if the job was started on one host.
    pub fn hosts(&self) -> Option<Vec<u32>> {
        Some(self.node.hosts().to_vec()).filter(|hosts| !hosts.is_empty())
    }

    /// The memory of this host, if the job was started on several hosts and data moves through it.
    pub fn memory_of_host(&self) -> Option<&Loopback> {
        Some(self.node.memory()).filter(|_| self.intranode && !self.node.hosts().is_empty())
    }

    /// Opens this rank's messages, with the configuration that suits the network and `asked`. Once for each rank of a
    /// job.
    ///
    /// # Errors
    /// The errors of [`Network::wire`] and [`ShmWire::open`].
    ///
    /// # Safety
    /// Same as [`ShmWire::open`].
    pub unsafe fn transport(&self, asked: &Changes) -> Result<(Transport, Config), FabricError> {
        let shared = self.memory_of_host().filter(|memory| memory.size() > 1);
        // SAFETY: caller's contract.
        let near = shared.map(|memory| unsafe { ShmWire::open(memory) }).transpose()?;
        let (far, config) = self.network.wire(asked)?;
        let wire = match near {
            Some(near) => {
                let here: Vec<_> = (0..self.size()).map(|rank| self.node.here(rank)).collect();
                Transport::Hybrid(Box::new(HybridWire::new(near, far, &here)))
            }
            None => Transport::Network(far),
        };
        Ok((wire, config))
    }
}

/// Checks that all ranks use the memory of their hosts, or that none does: otherwise they would wait for each other on
/// different transports.
fn agree(told: &[Vec<u8>], me: Rank, on: bool) -> Result<(), NetworkError> {
    for (rank, told) in told.iter().enumerate() {
        match told[..] {
            [theirs] if theirs == u8::from(on) => {}
            [_] => return Err(NetworkError::Disagree { rank, on: !on, me }),
            // A rank whose variable is invalid sends no byte.
            _ => return Err(NetworkError::Peer { rank }),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_intranode_settings_are_reported() {
        let agree = |told: &[&[u8]], me, on| {
            let told: Vec<Vec<u8>> = told.iter().map(|told| told.to_vec()).collect();
            agree(&told, me, on).map_err(|error| error.to_string())
        };
        assert_eq!((agree(&[&[1], &[1]], 0, true), agree(&[&[0], &[0]], 1, false)), (Ok(()), Ok(())));
        let says = "TRANSOM_INTRANODE is off at rank 2, and on at rank 1; set the same value at all ranks, or none";
        assert_eq!(agree(&[&[1], &[1], &[0]], 1, true), Err(says.into()));
        let says = "TRANSOM_INTRANODE is on at rank 0, and off at rank 2; set the same value at all ranks, or none";
        assert_eq!(agree(&[&[1], &[1], &[0]], 2, false), Err(says.into()));
        let says = "rank 1 could not open its network; see that rank's error";
        assert_eq!(agree(&[&[1], &[]], 0, true), Err(says.into()));
    }
}
