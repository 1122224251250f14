//! What a request brings, and what becomes of it when nobody waits.

use super::failure::Halt;
use super::member::{Member, Way};
use crate::verbs::memory::Lent;
use std::sync::Arc;
use transom_windows::FabricError;

/// A request under way that brings something, and where it brings it. Dropped, it leaves that to nobody.
pub(super) struct Bringing {
    pub way: Way,
    pub number: u64,
    /// None once it was taken.
    pub into: Option<Lent>,
    pub member: Arc<Member>,
}

impl Drop for Bringing {
    fn drop(&mut self) {
        if let Some(into) = self.into.take() {
            self.member.abandon(self.way, self.number, into);
        }
    }
}

impl Bringing {
    /// Whether it has come.
    pub fn has_come(&self) -> Result<bool, FabricError> {
        self.member.progress();
        let come = self.member.lane(self.way).is_complete(self.number);
        come.map_err(|failure| self.member.why(self.way, Halt::Failed(failure)))
    }

    /// Waits until it has come, and takes what it brought.
    pub fn finish<R>(mut self, take: impl FnOnce(&Lent) -> R) -> Result<R, FabricError> {
        self.member.complete(self.way, self.number)?;
        let into = self.into.take().expect("taken once");
        Ok(take(&into))
    }

    /// The word that an atomic brings.
    ///
    /// # Errors
    /// Also if the atomic was executed, and its result was lost with the connection.
    pub fn word(self) -> Result<u64, FabricError> {
        let way = self.way;
        self.outcome()?.ok_or_else(|| lost_result(way))
    }

    /// As [`word`](Self::word), but none if it is lost.
    pub fn outcome(self) -> Result<Option<u64>, FabricError> {
        let (member, way, number) = (self.member.clone(), self.way, self.number);
        let word = self.finish(|cell| {
            let mut word = [0; 8];
            cell.read(&mut word);
            u64::from_ne_bytes(word)
        })?;
        Ok((!member.lane(way).is_lost(number)).then_some(word))
    }
}

pub(super) fn lost_result(way: Way) -> FabricError {
    let why = "an atomic was executed, and what it found is lost with the connection, which was made anew: the word has \
               changed, as far as the atomic changes it; read it, or begin anew what depends on it";
    FabricError::System {
        what: format!("an operation on a word of rank {}", way.rank),
        source: std::io::Error::new(std::io::ErrorKind::ConnectionReset, why),
    }
}
