//! Exchange of messages among the members of a new team only.

use super::comm::{Comm, TEAMS};
use super::error::Error;
use super::hold::{self, Parts};
use super::locked::Key;
use std::{fmt, io};
use transom_channel::{Error as Failure, PeerFailure, RecvTarget, Select};
use transom_locks::Rank;
use transom_shm_loopback::messages::Bytes;
use transom_windows::FabricError;

/// A collective call of some ranks of a world. The first member gathers what the members send, and distributes it.
pub(crate) struct Meeting<'a> {
    comm: Comm,
    members: &'a [Rank],
    /// Hash of the list of members, since other teams may be made at the same time. Each message also carries the list.
    tag: u32,
    /// A round has failed at all live members, so no other follows.
    over: bool,
}

/// Contribution of a rank to a round; `None` if its call has failed.
type Said = Option<Vec<u8>>;

impl<'a> Meeting<'a> {
    /// Starts the exchange of these ranks of a world, this rank included.
    pub fn new(comm: &Comm, members: &'a [Rank]) -> Self {
        Meeting { comm: comm.apart(TEAMS), members, tag: tag(members), over: false }
    }

    /// Gathers the contribution of each member at all members, in the order of the list. A member that has died or left
    /// is an error at each member that still waits for a message of the exchange. A member whose call has failed is an
    /// error at all members.
    pub fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError> {
        self.round(Some(mine.to_vec()))
    }

    /// Runs the last round, after which all members agree on the success of the call, unless one dies.
    pub fn end<T>(mut self, made: Result<T, FabricError>) -> Result<T, FabricError> {
        if self.over {
            return made;
        }
        let ended = self.round(made.is_ok().then(Vec::new));
        made.and_then(|made| ended.map(|_| made))
    }

    fn round(&mut self, mine: Said) -> Result<Vec<Vec<u8>>, FabricError> {
        let (first, me) = (self.members[0], self.comm.rank());
        let all =
            if first == me { self.gather(mine) } else { self.send(first, &[mine]).and_then(|()| self.receive(first)) };
        let all = all.map_err(failure).and_then(|all| {
            let silent = all.iter().position(Option::is_none);
            let rank = |place| self.members.get(place).copied().unwrap_or(first);
            silent.map_or(Ok(all), |place| Err(FabricError::GivenUp { rank: rank(place) }))
        });
        let all = all.map(|all| all.into_iter().flatten().collect::<Vec<_>>());
        let all = all.and_then(|all| match all.len() == self.members.len() {
            true => Ok(all),
            false => Err(FabricError::Corrupt { why: format!("rank {first} sent {} contributions", all.len()) }),
        });
        self.over = all.is_err();
        all
    }

    fn gather(&self, mine: Said) -> Result<Vec<Said>, Error> {
        let (&me, others) = self.members.split_first().expect("the list includes this rank");
        let (mut all, mut other_list) = (vec![mine], None);
        for &rank in others {
            match self.receive(rank) {
                Ok(mut said) => all.push(said.pop().flatten()),
                // All members get an error, and none keeps waiting for this rank.
                Err(error @ Error::Misuse { .. }) => {
                    all = vec![None];
                    other_list = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        debug_assert_eq!(me, self.comm.rank());
        others.iter().try_for_each(|&rank| self.send(rank, &all))?;
        other_list.map_or(Ok(all), Err)
    }

    fn send(&self, to: Rank, said: &[Said]) -> Result<(), Error> {
        let (to, bytes) = (self.comm.to_job(to)?, to_bytes(self.members, said));
        self.comm.progress_engine.with(|core| {
            let len = bytes.len();
            let id =
                core.engine.send(to, self.comm.context, self.tag, Bytes::owned(bytes.into_boxed_slice()), len, false);
            core.forget(Key::Message(id));
        })
    }

    /// Receives the message of a member. The wait also ends if another member is gone: the sender may be waiting for
    /// that member, and never send.
    fn receive(&self, from: Rank) -> Result<Vec<Said>, Error> {
        let source = self.comm.to_job(from)?;
        let select = Select { context: self.comm.context, source: Some(source), tag: Some(self.tag) };
        let id = self
            .comm
            .progress_engine
            .with(|core| Key::Message(core.engine.receive(select, RecvTarget::Make(hold::vector::<u8>))))?;
        let ended = self.comm.progress_engine.wait(&TeamOf(self.members), self.comm.awaited(Some(source)), |core| {
            if let Some(ended) = core.ended(id) {
                return Some(Ok(ended));
            }
            let members = || self.members.iter().filter_map(|&rank| self.comm.to_job(rank).ok());
            let gone = core.engine.lost().filter(|(rank, _)| members().any(|member| member == *rank));
            // A rank may have left because another died, so a death is reported first.
            let (rank, lost) = gone.min_by_key(|(_, lost)| **lost == PeerFailure::Left)?;
            let lost = Failure::PeerFailure { rank, lost: lost.clone() };
            core.forget(id);
            Some(Err(self.comm.failure(lost, 1)))
        })?;
        let (came, bytes) = ended?;
        let came = came.map_err(|fault| self.comm.fault(fault, 1))?;
        let bytes = bytes.and_then(|bytes| <Vec<u8> as Parts>::back(bytes, came.length as usize)).unwrap_or_default();
        let why = match from_bytes(&bytes) {
            Some((members, said)) if members == self.members => return Ok(said),
            Some((members, _)) => format!(
                "rank {from} sent a message of {}, expected one of {}: both use one tag; make the calls one after the other",
                TeamOf(&members),
                TeamOf(self.members)
            ),
            None => format!("rank {from} sent a malformed team message of {} bytes", bytes.len()),
        };
        Err(Error::Misuse { why })
    }
}

/// The call, as reports of long waits name it. Ranks with different lists wait for each other forever; the reports show
/// the lists. A list in another order is no error here, since another thread of that rank may be about to call with
/// this order.
struct TeamOf<'a>(&'a [Rank]);

/// Most ranks of a list that a report shows.
const SHOWN: usize = 16;

impl fmt::Display for TeamOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<_> = self.0.iter().take(SHOWN).map(Rank::to_string).collect();
        let rest = if self.0.len() > SHOWN { format!(", ... ({} in all)", self.0.len()) } else { String::new() };
        write!(f, "team(&[{}{rest}]), which all of these call with the same list,", shown.join(", "))
    }
}

/// Encodes the number of members and the members; then, for each contribution, its presence, its length and its bytes.
fn to_bytes(members: &[Rank], said: &[Said]) -> Vec<u8> {
    let mut bytes = (members.len() as u32).to_le_bytes().to_vec();
    bytes.extend(members.iter().flat_map(|&rank| (rank as u32).to_le_bytes()));
    for said in said {
        let text = said.as_deref().unwrap_or_default();
        bytes.push(u8::from(said.is_some()));
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(text);
    }
    bytes
}

fn from_bytes(bytes: &[u8]) -> Option<(Vec<Rank>, Vec<Said>)> {
    let (len, rest) = bytes.split_first_chunk()?;
    let (members, mut bytes) = rest.split_at_checked((u32::from_le_bytes(*len) as usize).checked_mul(4)?)?;
    let members = members.as_chunks().0.iter().map(|rank| u32::from_le_bytes(*rank) as Rank).collect();
    let mut all = Vec::new();
    while let Some((&there, rest)) = bytes.split_first() {
        let (len, rest) = rest.split_first_chunk()?;
        let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        all.push((there == 1).then(|| text.to_vec()));
        bytes = rest;
    }
    Some((members, all))
}

/// FNV-1a hash of a list of ranks, the same in every program.
fn tag(members: &[Rank]) -> u32 {
    let bytes = members.iter().flat_map(|&rank| (rank as u32).to_le_bytes());
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

fn failure(error: Error) -> FabricError {
    match error {
        Error::PeerDied { rank } => FabricError::PeerDied { rank },
        Error::PeerLeft { rank } | Error::TeamDropped { rank } => FabricError::PeerLeft { rank },
        Error::Misuse { why } => FabricError::Misuse { why },
        error => FabricError::System { what: "meeting by messages".into(), source: io::Error::other(error) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_team_message_is_refused() {
        let said = [Some(b"key".to_vec()), None, Some(Vec::new())];
        let bytes = to_bytes(&[3, 1], &said);
        assert_eq!(bytes, b"\x02\0\0\0\x03\0\0\0\x01\0\0\0\x01\x03\0\0\0key\0\0\0\0\0\x01\0\0\0\0");
        assert_eq!(from_bytes(&bytes).unwrap(), (vec![3, 1], said.to_vec()));
        for cut in [1, 4, 6, 11, 13, 16, 18, 21, 24, 27] {
            assert_eq!(from_bytes(&bytes[..cut]), None, "{cut}");
        }
        assert_eq!(from_bytes(b"\xff\xff\xff\xff"), None);
        assert_eq!(from_bytes(b"\0\0\0\0\x01\xff\xff\xff\xff"), None);
    }

    /// Uses two lists of the same ranks with equal hashes.
    #[cfg(not(miri))]
    #[test]
    fn lists_with_equal_tags_are_distinguished() {
        let lists = [[0, 2, 8, 4, 3, 6, 1, 7, 5], [0, 5, 6, 1, 8, 4, 3, 7, 2]];
        assert_eq!(tag(&lists[0]), tag(&lists[1]));
        let ended = crate::threads(9, |world| {
            let error = world.team(&lists[world.rank() % 2]).map(drop).unwrap_err().to_string();
            // Members with the list of the first member learn that it has failed.
            let says = "expected one of team(&[0, ";
            assert!(
                error.contains(says)
                    || error.contains("rank 0 abandoned this collective call") && world.rank() % 2 == 0,
                "{error}"
            );
            assert_eq!(world.team(&lists[0]).unwrap().size(), 9);
        });
        assert!(ended.is_ok());
    }

    /// No member makes the team, whichever member fails in whichever round, and the next try starts clean.
    #[cfg(not(miri))]
    #[test]
    fn team_call_failed_at_one_member_fails_at_all() {
        let list = [2, 0, 1];
        let ended = crate::threads(3, |world| {
            let me = world.rank();
            for (fails, round) in [(0, 0), (2, 0), (1, 1), (2, 2), (3, 9)] {
                let mut meeting = Meeting::new(world.space().comm().unwrap(), &list);
                let here = |now| (me, now) == (fails, round);
                let mut made = Ok(());
                for now in 0..2 {
                    if here(now) {
                        made = Err(FabricError::Unsupported { what: "this" });
                    }
                    made = made.and_then(|()| {
                        let said = meeting.all_gather(&[me as u8, now as u8])?;
                        assert_eq!(said, list.map(|rank| vec![rank as u8, now as u8]));
                        Ok(())
                    });
                }
                let made = if here(2) { Err(FabricError::Unsupported { what: "this" }) } else { made };
                match meeting.end(made) {
                    Ok(()) => assert_eq!(fails, 3),
                    Err(FabricError::Unsupported { .. }) => assert_eq!(fails, me),
                    Err(FabricError::GivenUp { rank }) => assert_eq!(fails, rank),
                    Err(other) => panic!("{other}"),
                }
            }
        });
        ended.unwrap();
    }

    #[test]
    fn different_lists_have_different_tags() {
        assert_eq!(tag(&[]), 0x811c_9dc5);
        let lists = [&[0, 1][..], &[1, 0], &[0], &[0, 1, 2], &[256], &[1]];
        let mut tags = lists.map(tag).to_vec();
        tags.sort_unstable();
        tags.dedup();
        assert_eq!(tags.len(), lists.len());
    }
}
