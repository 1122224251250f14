//! Bytes that the first rank of a job or team passes to its other ranks, through memory that they share.

use crate::blocks::Forget;
use crate::key::Key;
use crate::loopback::{Loopback, Membership};
use crate::memory::{MemoryBlock, View};
use crate::{copy, words};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};
use transom_locks::{Awaited, Rank};
use transom_windows::{FabricError, OobExchange, Wait, Wake};

/// Offsets of the board's words, in bytes. They hold the number of messages sent, the number of receptions by any rank,
/// the length of the last message or [`FAILED`], and its key.
const SENT: usize = 0;
const RECEIVED: usize = 8;
const LENGTH: usize = 16;
const KEY: usize = 24;
const BOARD: usize = 40;
/// In place of a length: the sender could not allocate the message.
const FAILED: u64 = u64::MAX;
/// The call that waits here, in the report of a long wait.
const CALL: &&str = &"a collective call (creating a window, value or team)";

/// A way from rank 0 of a job or team to its other ranks, of which all receive each message. A message costs the sender
/// an allocation and a copy, and each receiver a mapping and a copy. Between messages the relay has a mapping and no
/// descriptor. It keeps no rank in its job.
///
/// # Examples
/// ```
/// use transom_shm_loopback::{Loopback, Relay};
/// let ranks: Vec<_> = Loopback::threads(2)?.into_iter().enumerate().map(|(rank, job)| std::thread::spawn(move || {
///     let relay = Relay::open(&job).unwrap();
///     match rank {
///         0 => relay.send(b"hello", 0, || Ok(())).map(|()| Vec::new()),
///         _ => relay.receive(1, 0, || Ok(())),
///     }.unwrap()
/// })).collect();
/// let received: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
/// assert_eq!(received, [&b""[..], b"hello"]);
/// # Ok::<(), transom_windows::FabricError>(())
/// ```
pub struct Relay {
    team: Weak<Membership>,
    board: View,
    /// Number of messages that this rank has sent or received.
    count: AtomicU64,
}

/// A block of memory that other ranks can map while it exists.
struct Message {
    _listed: Forget,
    _fd: Option<OwnedFd>,
    memory: Arc<MemoryBlock>,
    key: Key,
}

impl Message {
    fn new(team: &Membership, bytes: usize) -> Result<Self, FabricError> {
        let (memory, key, fd) = team.block(bytes)?;
        Ok(Message { _listed: Forget { blocks: team.blocks.clone(), tag: key.tag }, _fd: fd, memory, key })
    }
}

impl Relay {
    /// Opens the relay of a job or team. Collective; costs two exchanges.
    ///
    /// # Errors
    /// - The errors of the exchange.
    /// - [`FabricError::System`] at rank 0 if it cannot allocate memory, and [`FabricError::GivenUp`] at the others.
    /// - [`FabricError::BadKey`] if rank 0 sent a malformed key.
    pub fn open(team: &Loopback) -> Result<Self, FabricError> {
        let made = (team.rank() == 0).then(|| Message::new(&team.0, BOARD)).transpose();
        let key = made.as_ref().map_or(None, Option::as_ref).map_or_else(Vec::new, |made| made.key.to_bytes());
        let said = team.all_gather(&key)?;
        let made = made?;
        let board = match (&made, Key::from_bytes(&said[0])) {
            (Some(made), _) => Ok(View::whole(&made.memory)),
            (None, Some(key)) => team.0.attach(0, key, BOARD),
            (None, None) => Err(FabricError::GivenUp { rank: 0 }),
        };
        // The descriptor of the board is open until all ranks have mapped it.
        let all = team.all_gather(&[u8::from(board.is_err())])?;
        let board = board?;
        match all.iter().position(|outcome| outcome[..] != [0]) {
            Some(rank) => Err(FabricError::GivenUp { rank }),
            None => Ok(Relay { team: Arc::downgrade(&team.0), board, count: AtomicU64::new(0) }),
        }
    }

    /// Returns whether this rank is the sender, rank 0.
    pub fn is_sender(&self) -> bool {
        self.team.upgrade().is_some_and(|team| team.rank == 0)
    }

    fn team(&self) -> Result<Arc<Membership>, FabricError> {
        self.team.upgrade().ok_or_else(|| FabricError::Misuse { why: "this rank has left the job of its host".into() })
    }

    /// Sends a message to all other ranks, and returns once they have received it. Rank 0 calls it.
    ///
    /// `rank` is this rank as the caller numbers it, for the report of a long wait. The wait ends with the error of
    /// `check`, which is called now and then.
    ///
    /// # Errors
    /// - [`FabricError::System`] if this rank cannot allocate memory. The others then get [`FabricError::GivenUp`].
    /// - The error of `check`.
    pub fn send(
        &self,
        bytes: &[u8],
        rank: Rank,
        check: impl FnMut() -> Result<(), FabricError>,
    ) -> Result<(), FabricError> {
        let team = self.team()?;
        let made = Message::new(&team, bytes.len().max(1)).and_then(|made| {
            let to = View::whole(&made.memory).bytes(0, bytes.len())?;
            // SAFETY: inside the block, as just checked; no other rank knows it yet.
            unsafe { copy::to_shared(to, bytes) };
            Ok(made)
        });
        self.board.word(LENGTH)?.store(made.as_ref().map_or(FAILED, |_| bytes.len() as u64), SeqCst);
        if let Ok(made) = &made {
            for (index, word) in made.key.to_bytes().as_chunks().0.iter().enumerate() {
                self.board.word(KEY + 8 * index)?.store(u64::from_le_bytes(*word), SeqCst);
            }
        }
        let count = self.count.fetch_add(1, SeqCst) + 1;
        words::notify(&self.board, SENT, count, Wake::Home)?;
        let made = made?;
        let (received, all) = (self.board.word(RECEIVED)?, count * (team.control.ranks() as u64 - 1));
        let wait = Wait { rank, call: CALL, awaited: Awaited::Anyone, deadline: None };
        let look = || Ok((received.load(SeqCst) >= all).then_some(()));
        words::wait(&self.board, wait, team.control.is_oversubscribed(), &team.progress, look, check)?;
        drop(made);
        Ok(())
    }

    /// Waits for the next message of rank 0 and returns it. The other ranks call it.
    ///
    /// `rank` and `sender` are this rank and rank 0 as the caller numbers them, for errors and the report of a long
    /// wait. The wait ends with the error of `check`, which is called now and then.
    ///
    /// # Errors
    /// - [`FabricError::PeerDied`], [`FabricError::PeerLeft`] or [`FabricError::GivenUp`], which name `sender`.
    /// - [`FabricError::BadKey`] if the message cannot be mapped.
    /// - The error of `check`.
    pub fn receive(
        &self,
        rank: Rank,
        sender: Rank,
        mut check: impl FnMut() -> Result<(), FabricError>,
    ) -> Result<Vec<u8>, FabricError> {
        let team = self.team()?;
        let next = self.count.load(SeqCst) + 1;
        let wait = Wait { rank, call: CALL, awaited: Awaited::Rank(sender), deadline: None };
        let sent = self.board.word(SENT)?;
        let look = || Ok((sent.load(SeqCst) >= next).then_some(()));
        let check = || {
            check()?;
            let control = &team.control;
            if control.failed() == Some(0) {
                return Err(FabricError::PeerDied { rank: sender });
            }
            match control.ended(0) {
                Ok(()) if !control.has_left(0) => Ok(()),
                Err(FabricError::PeerDied { .. }) => Err(FabricError::PeerDied { rank: sender }),
                _ => Err(FabricError::PeerLeft { rank: sender }),
            }
        };
        words::wait(&self.board, wait, team.control.is_oversubscribed(), &team.progress, look, check)?;
        self.count.store(next, SeqCst);
        let message = self.read(&team, sender);
        // Rank 0 frees the message once all have it, whatever came of it here.
        words::add(&self.board, RECEIVED, 1, Wake::Home)?;
        message
    }

    fn read(&self, team: &Membership, sender: Rank) -> Result<Vec<u8>, FabricError> {
        let word = |at| self.board.word(at).map(|word| word.load(SeqCst));
        let length = word(LENGTH)?;
        if length == FAILED {
            return Err(FabricError::GivenUp { rank: sender });
        }
        let wrong = |why| FabricError::BadKey { rank: sender, why, source: None };
        let len = usize::try_from(length).ok().filter(|&len| len <= isize::MAX as usize);
        let len = len.ok_or_else(|| wrong(format!("it names a message of {length} bytes")))?;
        let key = [word(KEY)?, word(KEY + 8)?].map(u64::to_le_bytes);
        let key = Key::from_bytes(key.as_flattened()).ok_or_else(|| wrong("a malformed key".into()))?;
        let message = team.attach(0, key, len.max(1))?;
        let mut bytes = vec![0; len];
        let from = message.bytes(0, len)?;
        // SAFETY: inside the block, as just checked; rank 0 does not change it any more.
        unsafe { copy::from_shared(from, &mut bytes) };
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_threads<R: Send>(ranks: usize, body: impl Fn(Loopback, Relay) -> R + Sync) -> Vec<R> {
        let body = &body;
        std::thread::scope(|scope| {
            let run = |job: Loopback| {
                scope.spawn(move || {
                    let relay = Relay::open(&job).unwrap();
                    body(job, relay)
                })
            };
            let running: Vec<_> = Loopback::threads(ranks).unwrap().into_iter().map(run).collect();
            running.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn each_message_reaches_all_other_ranks() {
        on_threads(4, |job, relay| {
            for len in [0, 1, 7, 5000, 300_000] {
                let bytes: Vec<u8> = (0..len).map(|index| (index * 7 + len) as u8).collect();
                if relay.is_sender() {
                    relay.send(&bytes, 0, || Ok(())).unwrap();
                } else {
                    assert_eq!(relay.receive(job.rank(), 0, || Ok(())).unwrap(), bytes);
                }
            }
        });
    }

    /// Each rank waits for another one that does not call.
    #[test]
    fn waits_end_with_the_callers_error() {
        let lost = || Err(FabricError::PeerDied { rank: 9 });
        for waits in 0..2 {
            let ended = on_threads(2, |job, relay| match job.rank() {
                rank if rank != waits => None,
                0 => relay.send(b"x", 6, lost).err(),
                _ => relay.receive(7, 5, lost).err(),
            });
            assert!(matches!(ended[waits], Some(FabricError::PeerDied { rank: 9 })), "{ended:?}");
        }
    }

    #[test]
    fn sender_that_left_is_named_as_the_caller_numbers_it() {
        let ended = on_threads(2, |job, relay| match job.rank() {
            0 => None,
            _ => Some(relay.receive(7, 5, || Ok(())).unwrap_err().to_string()),
        });
        assert!(ended[1].as_deref().is_some_and(|error| error.starts_with("rank 5 ")), "{ended:?}");
    }
}
