//! The oracle of barriers and access groups: no rank leaves a barrier before all have entered it, no access epoch starts
//! before its exposure, and no exposure ends before its accesses.

use super::call::{Call, Group};
use crate::Rank;
use std::collections::BTreeMap;

/// The barriers and epochs of all ranks so far. It is empty in mixes of locks, so that states stay small.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct SyncOracle {
    /// The barriers that each rank has entered.
    entered: Vec<u32>,
    /// Per target and origin: their epochs.
    pairs: BTreeMap<(Rank, Rank), Epochs>,
    /// The group of each rank's open exposure.
    exposed: BTreeMap<Rank, Group>,
    /// The group of each rank's open access.
    accessed: BTreeMap<Rank, Group>,
}

/// Numbers of epochs between a target and an origin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Epochs {
    posted: u32,
    started: u32,
    completed: u32,
    /// Exposures that the target has ended.
    ended: u32,
}

impl SyncOracle {
    /// Records that `rank`, one of `ranks`, has executed the first verb of `call`.
    pub fn began(&mut self, rank: Rank, call: Call, ranks: usize) {
        match call {
            Call::Barrier => {
                self.entered.resize(ranks, 0);
                self.entered[rank] += 1;
            }
            Call::Post(origins) => {
                origins.ranks().for_each(|origin| self.pair(rank, origin).posted += 1);
                self.exposed.insert(rank, origins);
            }
            Call::Complete => {
                let targets = self.accessed.remove(&rank).unwrap_or_default();
                targets.ranks().for_each(|target| self.pair(target, rank).completed += 1);
            }
            _ => {}
        }
    }

    /// Records that `call` of `rank` returned.
    ///
    /// # Errors
    /// A description of the rank that the call should have waited for.
    pub fn returned(&mut self, rank: Rank, call: Call) -> Result<(), String> {
        match call {
            Call::Barrier => {
                let nth = self.entered[rank];
                match self.entered.iter().position(|&entered| entered < nth) {
                    Some(late) => Err(format!("rank {rank} left barrier {nth} before rank {late} entered it")),
                    None => Ok(()),
                }
            }
            Call::Start(targets) => {
                self.accessed.insert(rank, targets);
                targets.ranks().try_for_each(|target| {
                    let epochs = self.pair(target, rank);
                    epochs.started += 1;
                    match epochs.started {
                        nth if nth <= epochs.posted => Ok(()),
                        nth => {
                            Err(format!("rank {rank} started access {nth} before rank {target} posted exposure {nth}"))
                        }
                    }
                })
            }
            Call::Wait => {
                let origins = self.exposed.remove(&rank).unwrap_or_default();
                origins.ranks().try_for_each(|origin| {
                    let epochs = self.pair(rank, origin);
                    epochs.ended += 1;
                    match epochs.ended {
                        nth if nth <= epochs.completed => Ok(()),
                        nth => {
                            Err(format!("rank {rank} ended exposure {nth} before rank {origin} completed access {nth}"))
                        }
                    }
                })
            }
            _ => Ok(()),
        }
    }

    fn pair(&mut self, target: Rank, origin: Rank) -> &mut Epochs {
        self.pairs.entry((target, origin)).or_default()
    }
}
