//! Operations in flight, and the fate of their memory if the caller stops waiting.

use super::failure::Halt;
use super::member::{Member, Way};
use super::striped::Striped;
use crate::memory::Lent;
use std::sync::Arc;
use transom_windows::FabricError;

/// Requests in flight, with this rank's memory that they access. Dropping it leaves the memory to the lane until they
/// are complete.
pub(super) struct UnderWay {
    pub way: Way,
    /// Number of the last request; 0 if none was posted.
    pub number: u64,
    /// The divided operation, if it is one.
    pub striped: Option<Arc<Striped>>,
    /// `None` once taken.
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
    /// An operation on that memory without requests so far.
    pub fn new(member: &Arc<Member>, way: Way, memory: Lent) -> Self {
        UnderWay { way, number: 0, striped: None, memory: Some(memory), member: member.clone() }
    }

    /// Returns whether all requests are complete.
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

    /// Waits until all requests are complete; returns the memory.
    pub fn finish(mut self) -> Result<Lent, FabricError> {
        match &self.striped {
            Some(striped) => striped.finish(&self.member)?,
            None => self.member.complete(self.way, self.number)?,
        }
        Ok(self.memory.take().expect("the memory is taken once"))
    }

    /// The result of an atomic.
    ///
    /// # Errors
    /// Fails also if the atomic was executed, and its result was lost with the connection.
    pub fn word(self) -> Result<u64, FabricError> {
        let way = self.way;
        self.outcome()?.ok_or_else(|| lost_result(way))
    }

    /// Like [`word`](Self::word), but `None` if the result is lost.
    pub fn outcome(self) -> Result<Option<u64>, FabricError> {
        let (member, way, number) = (self.member.clone(), self.way, self.number);
        let mut word = [0; 8];
        self.finish()?.read(&mut word);
        Ok((!member.lane(way).is_lost(number)).then_some(u64::from_ne_bytes(word)))
    }
}

pub(super) fn lost_result(way: Way) -> FabricError {
    let why = "the atomic was executed, but its result was lost with the connection, which has been restored: the word has \
               changed accordingly; read the word, or restart the computation that depends on the result";
    FabricError::System {
        what: format!("an atomic on a word of rank {}", way.rank),
        source: std::io::Error::new(std::io::ErrorKind::ConnectionReset, why),
    }
}
