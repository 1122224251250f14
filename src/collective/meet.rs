//! Collective creation of shared objects (teams, windows, boards): ranks compare their calls, then exchange messages of
//! that call.

use super::group::{Group, Member};
use super::history::CallId;
use super::memory::CallBuffers;
use super::running::Running;
use super::signature::{Kind, Signature};
use super::{Described, PlanSource, carry_out, reduction};
use crate::messages::{Error, hold};
use crate::provider::Provider;
use crate::world::World;
use std::sync::Arc;
use transom_collective::{Algorithm, Call, Plan, Shape};
use transom_shm_loopback::Meet;
use transom_windows::{FabricError, OobExchange as _};

impl World {
    /// The provider of exactly these ranks. The first call of a team is collective and creates the provider.
    #[inline]
    pub(crate) fn fabric(&self) -> Result<&Provider, transom_windows::Error> {
        match self.fabric_of_all().get() {
            Some(fabric) => Ok(fabric),
            None => self.first_fabric(),
        }
    }

    #[cold]
    fn first_fabric(&self) -> Result<&Provider, transom_windows::Error> {
        let make = || {
            let group = self.group()?;
            let mut turn = group.enter()?;
            let made = group.begin(&mut turn, Signature::without(Kind::Window))?;
            self.compare(group, made)?;
            self.make_fabric(group, made)
        };
        let call = "the first window or value of a team";
        make().map_err(|error| transom_windows::Error::Collective { call, source: fabric_error(error) })
    }

    /// The provider of exactly these ranks, created within a call that all ranks have begun and compared.
    pub(super) fn make_fabric(&self, group: &Arc<Member>, made: CallId) -> Result<&Provider, Error> {
        if let Some(fabric) = self.fabric_of_all().get() {
            return Ok(fabric);
        }
        let members = self.space().members();
        let fabric = self.meet(group, made, |meet| self.provider().team(&members, meet))?;
        Ok(self.fabric_of_all().get_or_init(|| fabric))
    }

    /// Collective: all-gathers the four words that each rank passes to a split.
    pub(crate) fn gather_wishes(&self, mine: [u64; 4]) -> Result<Vec<[u64; 4]>, FabricError> {
        let mut wishes = vec![[0; 4]; self.size()];
        let what = PlanSource::Planned(self.plan_to_gather(mine.len(), size_of::<u64>()));
        let described = Described { signature: Signature::without(Kind::Split), what, fold: reduction::Nothing };
        let called = self.call(described, &mine, wishes.as_flattened_mut());
        called.inspect_err(|_| self.tell_windows()).map_err(fabric_error)?;
        Ok(wishes)
    }

    /// Reports a failed split to ranks that create a window or value meanwhile, by taking part in their exchange.
    fn tell_windows(&self) {
        if let (Ok(group), Some(fabric)) = (self.group(), self.fabric_of_all().get())
            && let Some(window) = group.broken_beside_window()
            && self.skips(window)
        {
            // A failure here also fails the exchange of those ranks, so it needs no report.
            let _ = fabric.all_gather(b"split");
        }
    }

    fn plan_to_gather(&self, len: usize, element: usize) -> Plan {
        let shape = Shape { rank: self.rank(), ranks: self.size(), len, element, hosts: None };
        Algorithm::named("bruck").expect("the algorithm exists").plan(Call::AllGather, shape)
    }

    /// Compares the calls of all ranks before the call itself runs. Used in debug builds, and before ranks create an
    /// object together.
    pub(super) fn compare(&self, group: &Arc<Member>, made: CallId) -> Result<(), Error> {
        let all = self.exchange(group, made, made.to_bytes().to_vec())?;
        let calls: Vec<_> = all.as_chunks().0.iter().map(CallId::from_bytes).collect();
        // Every rank reports the first call that differs from rank 0's, so that all ranks report the same error.
        match calls.iter().position(|theirs| *theirs != calls[0]) {
            Some(rank) => {
                let error = Group::mismatch((0, calls[0]), (rank, calls[rank]));
                group.comm.progress_engine.with(|core| group.fail(core, error.clone()))?;
                Err(error)
            }
            None => Ok(()),
        }
    }

    /// Runs `make`, which exchanges bytes through messages of this call. A rank that waits in an exchange gets the
    /// errors of every collective: peer deaths, ranks that left the team, and other failures.
    pub(super) fn meet<R>(
        &self,
        group: &Arc<Member>,
        made: CallId,
        make: impl FnOnce(&mut Meet<'_>) -> Result<R, FabricError>,
    ) -> Result<R, Error> {
        let mut failed = None;
        let result = make(&mut |mine| {
            self.gather_bytes(group, made, mine).map_err(|error| {
                let source = fabric_error(error.clone());
                failed = Some(error);
                source
            })
        });
        result.map_err(|error| failed.unwrap_or_else(|| error.into()))
    }

    /// All-gathers `mine`, whose length may differ between ranks.
    fn gather_bytes(&self, group: &Arc<Member>, made: CallId, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        // Most exchanges are short and take one round: each slot holds a 4-byte length, then the bytes.
        const SHORT: usize = 64;
        let slot = |len: usize| {
            let mut slot = (mine.len() as u32).to_le_bytes().to_vec();
            slot.extend(&mine[..mine.len().min(len - 4)]);
            slot.resize(len, 0);
            slot
        };
        let parse = |all: &[u8], len: usize| -> Vec<(usize, Vec<u8>)> {
            let slots = all.chunks(len).filter_map(|slot| slot.split_first_chunk());
            let said = |(said, bytes): (&[u8; 4], &[u8])| {
                let said = u32::from_le_bytes(*said) as usize;
                (said, bytes[..said.min(bytes.len())].to_vec())
            };
            slots.map(said).collect()
        };
        let mut said = parse(&self.exchange(group, made, slot(SHORT))?, SHORT);
        let longest = said.iter().map(|(len, _)| *len).max().unwrap_or(0) + 4;
        if longest > SHORT {
            said = parse(&self.exchange(group, made, slot(longest))?, longest);
        }
        Ok(said.into_iter().map(|(_, bytes)| bytes).collect())
    }

    /// All-gathers `mine`, of the same length at all ranks, in rank order. Part of a call that has begun; ranks may
    /// have made different calls.
    fn exchange(&self, group: &Arc<Member>, made: CallId, mine: Vec<u8>) -> Result<Vec<u8>, Error> {
        let mut all = vec![0_u8; self.size() * mine.len()];
        let plan = self.plan_to_gather(mine.len(), 1);
        let scratch = group.take_scratch::<u8>(plan.scratch).map_err(|error| group.stopped(Some(error)))?;
        // SAFETY: as in `carry`.
        let (given, data) = unsafe { (hold::lend(&mine[..]), hold::lend_mut(&mut all[..])) };
        let memory = CallBuffers::new(given, data, 1, scratch);
        let mut running = Running::new(group.clone(), made, plan, memory, reduction::Nothing);
        // The tag omits the history, so that messages match whichever call each rank makes.
        running.tag = CallId { history: 0, ..made }.tag();
        carry_out(group, made, &mut running)?;
        Ok(all)
    }
}

/// Converts the error for code that creates memory or teams.
pub(super) fn fabric_error(error: Error) -> FabricError {
    match error {
        Error::PeerDied { rank } => FabricError::PeerDied { rank },
        Error::PeerLeft { rank } | Error::TeamDropped { rank } => FabricError::PeerLeft { rank },
        Error::Mismatch { .. } | Error::Misuse { .. } => FabricError::Misuse { why: error.to_string() },
        error => FabricError::System { what: "meeting by messages".into(), source: std::io::Error::other(error) },
    }
}
