//! Requests under way, and what becomes of their memory when nobody waits.

use super::failure::Halt;
use super::member::{Member, Way};
use super::striped::Striped;
use crate::memory::Lent;
use std::sync::Arc;
use transom_windows::FabricError;

/// Requests under way, and the memory of this rank that they need. Dropped, they leave it to the lane until they are complete.
pub(super) struct UnderWay {
    pub way: Way,
    /// Of the last; 0 if none was posted.
    pub number: u64,
    /// If it is divided.
    pub striped: Option<Arc<Striped>>,
    /// None once it was taken.
    pub memory: Option<Lent>,
    member: Arc<Member>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        if let Some(striped) = &self.striped {
            striped.keep(memory);
        } else if self.number > 0 {
            self.member.abandon(self.way, self.number, memory);
        }
    }
}

impl UnderWay {
    /// Nothing yet of what needs that memory.
    pub fn new(member: &Arc<Member>, way: Way, memory: Lent) -> Self {
        UnderWay { way, number: 0, striped: None, memory: Some(memory), member: member.clone() }
    }

    /// Whether all is complete.
    pub fn is_done(&self) -> Result<bool, FabricError> {
        if let Some(striped) = &self.striped {
            return striped.is_done(&self.member);
        }
        self.member.progress();
        if self.number == 0 {
            return Ok(true);
        }
        let done = self.member.lane(self.way).is_complete(self.number);
        done.map_err(|failure| self.member.why(self.way, Halt::Failed(failure)))
    }

    /// Waits until it is; the memory.
    pub fn finish(mut self) -> Result<Lent, FabricError> {
        match &self.striped {
            Some(striped) => striped.finish(&self.member)?,
            None => self.member.complete(self.way, self.number)?,
        }
        Ok(self.memory.take().expect("taken once"))
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
        let mut word = [0; 8];
        self.finish()?.read(&mut word);
        Ok((!member.lane(way).is_lost(number)).then_some(u64::from_ne_bytes(word)))
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
