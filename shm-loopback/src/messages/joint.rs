//! Cooperative copy: the reader of a long message and the owner of the bytes both copy, if the owner progresses
//! meanwhile.
//!
//! The reader fills in the desk (a copy descriptor) of the owner's inbox: source, target and the number of chunks left.
//! Both sides take chunks by compare-and-swap on that count, and copy them. The count includes a number that changes
//! with every read, so that an owner that has read the words of an earlier read takes no chunk.
//!
//! The reader has all bytes once no chunk is left and the owner has counted as many chunks done as the reader did not
//! take. An owner that never progresses delays no reader. If the owner is stopped in the middle of a chunk, the reader
//! waits until the owner continues or its process ends, because the owner could still write to the target.

use super::inbox::Inbox;
use crate::reach::{self, Reach, Reached};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use transom_channel::wire::Key;
use transom_locks::Rank;
use transom_windows::FabricError;

/// Shortest read, in bytes, that is shared with an owner that waits for messages.
const FROM: usize = 32 << 10;
/// Shortest read, in bytes, that is shared with an owner that may progress later. If the owner takes no chunk, the
/// reader makes one more system call.
pub(crate) const FROM_ANY: usize = 64 << 10;

/// Returns true if a read of `length` bytes is worth sharing with its owner. An `attended` owner waits for messages.
pub(super) fn is_worth(length: usize, attended: bool) -> bool {
    length >= if attended { FROM } else { FROM_ANY }
}

/// Bytes that both copiers together take in one round. Shorter chunks cost more in system calls than better balance
/// saves.
const ROUND: usize = 64 << 10;
/// Longest chunk in bytes.
const LONGEST: usize = 512 << 10;

/// Bytes of each chunk but the last of a read of `length` bytes. An even number of chunks gives both copiers the same
/// share.
fn chunk(length: usize) -> usize {
    let rounds = (length / ROUND).clamp(1, 4);
    length.div_ceil(2 * rounds).next_multiple_of(64).clamp(64, LONGEST)
}

/// Offset and length of chunk `number` of a read of `length` bytes.
fn part(number: usize, length: usize) -> (usize, usize) {
    let at = number * chunk(length);
    (at, chunk(length).min(length - at))
}

/// The transfer described by the desk: `length` bytes at offset `at` of the memory of key `from`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Move {
    pub from: Key,
    pub at: usize,
    pub length: usize,
    /// Key of the target in the reader's process.
    pub to: Key,
}

/// The desk (copy descriptor) of an inbox: the chunk count, the reader that occupies it, the progress, and the
/// transfer.
pub(super) struct CopyDescriptor<'a> {
    /// {number of the read, chunks not taken yet}, 32 bits each. In the cache line that the owner polls.
    pub left: &'a AtomicU64,
    /// {reader + 1, done, from.address, from.key, to.address, to.key, at, length}
    pub words: &'a [AtomicU64],
}

/// Added once to the `done` word for each chunk that the owner could not copy; the low half counts all its chunks.
const FAILED: u64 = 1 << 32;

impl CopyDescriptor<'_> {
    fn reader(&self) -> &AtomicU64 {
        &self.words[0]
    }

    fn done(&self) -> &AtomicU64 {
        &self.words[1]
    }

    /// Occupies the desk and describes a read, if the desk is free. Returns the number of chunks.
    pub(super) fn ask(&self, reader: Rank, what: Move) -> Option<u32> {
        let chunks = u32::try_from(what.length.div_ceil(chunk(what.length))).ok()?;
        self.reader().compare_exchange(0, reader as u64 + 1, Acquire, Relaxed).ok()?;
        self.done().store(0, Relaxed);
        let said = [what.from.address, what.from.key, what.to.address, what.to.key, what.at as u64, what.length as u64];
        self.words[2..].iter().zip(said).for_each(|(word, said)| word.store(said, Relaxed));
        let number = (self.left.load(Relaxed) >> 32).wrapping_add(1);
        // Release: a side that takes a chunk of this number has read these words.
        self.left.store(number << 32 | u64::from(chunks), Release);
        Some(chunks)
    }

    /// Takes a chunk of the read whose count was read as `seen`.
    fn take(&self, seen: u64) -> Option<usize> {
        let chunk = (seen as u32).checked_sub(1)?;
        self.left.compare_exchange(seen, seen - 1, AcqRel, Relaxed).ok().map(|_| chunk as usize)
    }

    /// Takes any chunk that is left.
    fn take_any(&self) -> Option<usize> {
        loop {
            let seen = self.left.load(Acquire);
            match self.take(seen) {
                None if seen as u32 == 0 => return None,
                None => {}
                taken => return taken,
            }
        }
    }

    /// Withdraws the remaining chunks and returns their number.
    fn close(&self) -> u32 {
        self.left.fetch_and(!u64::from(u32::MAX), AcqRel) as u32
    }

    /// Frees the desk for the next read.
    fn free(&self) {
        self.reader().store(0, Release);
    }

    /// True if a read occupies the desk.
    pub fn is_taken(&self) -> bool {
        self.reader().load(Relaxed) != 0
    }

    /// Frees the desk if the dead rank `reader` occupies it.
    pub fn forget(&self, reader: Rank) {
        if self.reader().load(Acquire) == reader as u64 + 1 {
            self.close();
            self.free();
        }
    }
}

/// The reader's state of a cooperative read in flight.
pub(super) struct CooperativeCopy {
    pub owner: Rank,
    pub token: u64,
    pub what: Move,
    /// Address of the target in this process, with exposed provenance; `what.to` is the key for the owner.
    pub target: usize,
    inbox: Inbox,
    /// Number of chunks that the owner has taken.
    theirs: u32,
    /// Error that stopped the copying of the reader itself.
    pub error: Option<FabricError>,
}

impl CooperativeCopy {
    /// Describes the read at the owner's desk, and copies chunks with `copy` (offset, length) until none is left or a
    /// copy fails; the owner may still be copying afterwards. `None` if another read occupies the desk.
    pub fn read(
        job: &Reach,
        (owner, inbox): (Rank, &Inbox),
        token: u64,
        (from, at): (Key, usize),
        (target, length): (*mut u8, usize),
        mut copy: impl FnMut(usize, usize) -> Result<(), FabricError>,
    ) -> Option<CooperativeCopy> {
        let target = target.expose_provenance();
        let what = Move { from, at, length, to: job.lead_to(target, length) };
        let Some(chunks) = inbox.desk().ask(job.rank, what) else {
            reach::withdraw(what.to);
            return None;
        };
        let mut joint =
            CooperativeCopy { owner, token, what, target, inbox: inbox.clone(), theirs: chunks, error: None };
        while let Some(chunk) = inbox.desk().take_any() {
            // Any rank can write that word, so it is checked.
            if chunk >= chunks as usize || joint.theirs == 0 {
                let why = format!("chunk {chunk} of a large message does not exist; it has {chunks} chunks");
                joint.error = Some(FabricError::Misuse { why });
                joint.close();
                joint.theirs = 0;
                break;
            }
            joint.theirs -= 1;
            let (at, length) = part(chunk, length);
            if let Err(error) = copy(at, length) {
                joint.error = Some(error);
                joint.close();
            }
        }
        Some(joint)
    }

    /// `None` until the owner has finished its chunks. Then frees the desk and returns whether the owner could copy
    /// them.
    pub fn ended(&self) -> Option<bool> {
        let desk = self.inbox.desk();
        // Acquire: the bytes written by the owner are visible.
        let done = desk.done().load(Acquire);
        if (done as u32) < self.theirs {
            return None;
        }
        reach::withdraw(self.what.to);
        desk.free();
        Some(done < FAILED)
    }

    /// Prevents the owner from taking more chunks.
    fn close(&mut self) {
        self.theirs = self.theirs.saturating_sub(self.inbox.desk().close());
    }

    /// Ends the read: afterwards the owner does not write to the target. Waits for the chunk that the owner is copying,
    /// unless its process has ended.
    pub fn end(mut self, job: &Reach) {
        self.close();
        while self.ended().is_none() {
            if job.control.ended(self.owner).is_err() {
                reach::withdraw(self.what.to);
                return;
            }
            std::thread::yield_now();
        }
    }
}

/// The owner's part: copies one chunk of a read described at its desk. Returns the reader, if a chunk was left.
pub(super) fn help(job: &Reach, inbox: &Inbox) -> Option<Rank> {
    let desk = inbox.desk();
    // Acquire: the words belong to the read of this count, or to a later one; in the latter case the compare-and-swap
    // on this count fails.
    let seen = desk.left.load(Acquire);
    let word = |at: usize| desk.words[at].load(Relaxed);
    let reader = word(0).wrapping_sub(1) as Rank;
    let key = |at: usize| Key { address: word(at), key: word(at + 1) };
    let what = Move { from: key(2), to: key(4), at: word(6) as usize, length: word(7) as usize };
    let chunk = desk.take(seen)?;
    let copied = copy_chunk(job, reader, what, chunk);
    if let Err(error) = &copied {
        tracing::debug!(reader, %error, "cannot help to copy a large message");
    }
    // Release: a reader that sees the count sees the bytes.
    desk.done().fetch_add(if copied.is_ok() { 1 } else { 1 | FAILED }, Release);
    Some(reader)
}

fn copy_chunk(job: &Reach, reader: Rank, what: Move, chunk: usize) -> Result<(), FabricError> {
    // Any rank can write these words, so they are checked.
    if reader >= job.control.ranks() || chunk >= what.length.div_ceil(self::chunk(what.length)) {
        return Err(FabricError::Misuse { why: format!("invalid request to copy: {what:?} for rank {reader}") });
    }
    let (offset, length) = part(chunk, what.length);
    job.reach(job.rank, (what.from, what.at.saturating_add(offset)), length, |place| match place {
        Reached::Here(source) => {
            // SAFETY: within a buffer that this rank offers, and does not modify before it is withdrawn.
            let source = unsafe { std::slice::from_raw_parts(source, length) };
            job.write(reader, (what.to, offset), source)
        }
        Reached::There(_) => unreachable!("this rank's memory is in its process"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports;
    use crate::loopback::Loopback;
    use crate::memory::{MemoryBlock, View};
    use crate::messages::inbox;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    const LENGTH: usize = 1_000_000;
    const AT: usize = 777;

    /// A job of two threads, the inbox of rank 1, and a buffer that rank 1 offers.
    fn owner() -> (Vec<Reach>, Inbox, Vec<u8>, Key) {
        let ranks = Loopback::threads(2).unwrap();
        let ranks = ranks.iter().map(|rank| Reach::from(&*rank.0)).collect();
        let inbox = Inbox::new(View::whole(&Arc::new(MemoryBlock::heap(inbox::len(2), 1).unwrap())), 2);
        let source: Vec<u8> = (0..LENGTH + AT).map(|i| (i * 7 + i / 256) as u8).collect();
        let address = source.as_ptr().expose_provenance();
        let from = Key { address: address as u64, key: exports::export(address, source.len()) };
        (ranks, inbox, source, from)
    }

    /// Copies, as the reader does, from the buffer that the owner offers.
    fn out_of(source: &[u8]) -> impl Fn(usize, usize, &mut [u8]) -> Result<(), FabricError> {
        |at, len, into| {
            into.copy_from_slice(&source[AT + at..AT + at + len]);
            Ok(())
        }
    }

    /// Reads as rank 0, with `copy` (offset, length, target).
    fn read(
        job: &Reach,
        inbox: &Inbox,
        from: Key,
        target: &mut [u8],
        mut copy: impl FnMut(usize, usize, &mut [u8]) -> Result<(), FabricError>,
    ) -> Option<CooperativeCopy> {
        let (start, length) = (target.as_mut_ptr(), target.len());
        let copy = |at, len| {
            // SAFETY: a chunk of the target that no other code uses: the owner copies other chunks.
            copy(at, len, unsafe { std::slice::from_raw_parts_mut(start.wrapping_add(at), len) })
        };
        CooperativeCopy::read(job, (1, inbox), 5, (from, AT), (start, length), copy)
    }

    #[test]
    fn short_read_is_shared_with_waiting_owner_only() {
        let shared = |length| [true, false].map(|attended| is_worth(length, attended));
        assert_eq!(
            [32_767, 32_768, 65_535, 65_536].map(shared),
            [[false, false], [true, false], [true, false], [true, true]]
        );
    }

    #[test]
    fn chunks_are_even_in_number_and_about_equal() {
        let parts = |length: usize| {
            let count = length.div_ceil(chunk(length));
            (count, part(0, length).1, part(count - 1, length).1)
        };
        assert_eq!(parts(32_768), (2, 16_384, 16_384));
        assert_eq!(parts(65_552), (2, 32_832, 32_720));
        assert_eq!(parts(131_072), (4, 32_768, 32_768));
        assert_eq!(parts(1 << 20), (8, 131_072, 131_072));
        assert_eq!(parts(16 << 20), (32, 524_288, 524_288));
    }

    #[test]
    fn owner_copies_chunks_left_by_the_reader() {
        let (ranks, inbox, source, from) = owner();
        let mut target = vec![0; LENGTH];
        let mut own = 0;
        let joint = read(&ranks[0], &inbox, from, &mut target, |at, len, into| {
            own += len;
            out_of(&source)(at, len, into)?;
            assert!(inbox.has_work() || help(&ranks[1], &inbox).is_none(), "has_work is false while a chunk is left");
            help(&ranks[1], &inbox); // two for the owner
            help(&ranks[1], &inbox);
            Ok(())
        });
        let joint = joint.expect("the descriptor was free");
        assert_eq!(joint.ended(), Some(true));
        assert!(own > 0 && own < LENGTH / 2, "the reader copied {own} of {LENGTH} bytes");
        assert!(target == source[AT..], "copied bytes differ from the source");
        assert!(!inbox.has_work() && help(&ranks[1], &inbox).is_none(), "a chunk is left after the copy");
        exports::withdraw(from.key);
    }

    #[test]
    fn idle_owner_does_not_delay_the_reader() {
        let (ranks, inbox, source, from) = owner();
        let mut target = vec![0; LENGTH];
        let joint = read(&ranks[0], &inbox, from, &mut target, out_of(&source));
        assert_eq!(joint.expect("the descriptor was free").ended(), Some(true));
        assert!(target == source[AT..]);
        exports::withdraw(from.key);
    }

    #[test]
    fn late_owner_takes_no_chunk_of_the_next_read() {
        let (ranks, inbox, source, from) = owner();
        let mut target = vec![0; LENGTH];
        let mut seen = None;
        let first = read(&ranks[0], &inbox, from, &mut target, |at, len, into| {
            seen.get_or_insert(inbox.desk().left.load(Acquire));
            out_of(&source)(at, len, into)
        });
        assert_eq!(first.unwrap().ended(), Some(true));
        let seen = seen.unwrap();
        let second = read(&ranks[0], &inbox, from, &mut target, |at, len, into| {
            assert_eq!(inbox.desk().take(seen), None, "a count of the first read was accepted by the second");
            out_of(&source)(at, len, into)
        });
        assert_eq!(second.unwrap().ended(), Some(true));
        assert!(help(&ranks[1], &inbox).is_none());
        exports::withdraw(from.key);
    }

    #[test]
    fn reader_waits_for_a_chunk_the_owner_copies() {
        let (ranks, inbox, _source, from) = owner();
        let mut target = vec![0; LENGTH];
        let mut taken = None;
        let joint = read(&ranks[0], &inbox, from, &mut target, |_, _, _| {
            taken = taken.or_else(|| inbox.desk().take_any());
            Ok(())
        });
        let joint = joint.unwrap();
        assert!(taken.is_some());
        assert_eq!((joint.ended(), joint.ended()), (None, None));
        inbox.desk().done().fetch_add(1, Release);
        assert_eq!(joint.ended(), Some(true));
        exports::withdraw(from.key);
    }

    #[test]
    fn second_reader_copies_alone_until_first_has_ended() {
        let (ranks, inbox, _source, from) = owner();
        let (mut target, mut other) = (vec![0; LENGTH], vec![0; LENGTH]);
        let joint = read(&ranks[0], &inbox, from, &mut target, |_, _, _| {
            assert!(
                read(&ranks[0], &inbox, from, &mut other, |_, _, _| unreachable!("the second reader shared its copy"))
                    .is_none()
            );
            Ok(())
        });
        assert_eq!(joint.unwrap().ended(), Some(true));
        assert!(read(&ranks[0], &inbox, from, &mut other, |_, _, _| Ok(())).is_some());
        exports::withdraw(from.key);
    }

    #[test]
    fn owner_copy_failure_is_reported_to_the_reader() {
        let (ranks, inbox, _source, from) = owner();
        let nowhere = Key { key: u64::MAX, ..from };
        let mut target = vec![0; LENGTH];
        let mut asked = 0;
        let joint = read(&ranks[0], &inbox, nowhere, &mut target, |_, _, _| {
            asked += usize::from(help(&ranks[1], &inbox).is_some());
            Ok(())
        });
        assert!(asked > 0);
        assert_eq!(joint.unwrap().ended(), Some(false));
        exports::withdraw(from.key);
    }

    #[test]
    fn invalid_chunk_count_is_refused_by_the_reader() {
        let (ranks, inbox, source, from) = owner();
        let chunks = LENGTH.div_ceil(chunk(LENGTH)) as u64;
        for left in [chunks, chunks + 1, 50_000, u64::from(u32::MAX)] {
            let mut target = vec![0; LENGTH];
            let joint = read(&ranks[0], &inbox, from, &mut target, |at, len, into| {
                inbox.desk().left.fetch_or(u64::from(u32::MAX), AcqRel);
                inbox.desk().left.fetch_and(!u64::from(u32::MAX) | left, AcqRel);
                out_of(&source)(at, len, into)
            });
            let joint = joint.unwrap();
            assert!(matches!(joint.error, Some(FabricError::Misuse { .. })), "{left} left: {:?}", joint.error);
            joint.end(&ranks[0]); // at once
            assert!(!inbox.has_work());
        }
        exports::withdraw(from.key);
    }

    #[test]
    fn invalid_descriptor_is_refused_by_the_owner() {
        let (ranks, inbox, _source, from) = owner();
        let mut target = vec![7; LENGTH];
        for (word, said) in [(0, 99), (6, u64::MAX), (7, 0), (5, u64::MAX), (7, u64::MAX)] {
            // A length of 0 makes some chunks refer to other places of the reader's memory.
            assert!(target.iter().all(|byte| *byte == 7), "the owner copied by an invalid descriptor");
            let joint = read(&ranks[0], &inbox, from, &mut target, |_, _, _| {
                let desk = inbox.desk();
                let before = desk.words[word].swap(said, Relaxed);
                help(&ranks[1], &inbox);
                desk.words[word].store(before, Relaxed);
                Ok(())
            });
            assert_eq!(joint.unwrap().ended(), Some(false), "word {word} is {said}");
        }
        exports::withdraw(from.key);
    }

    #[test]
    fn failed_read_ends_once_the_owner_has_finished() {
        let (ranks, inbox, _source, from) = owner();
        let mut target = vec![0; LENGTH];
        let mut copies = 0;
        let joint = read(&ranks[0], &inbox, from, &mut target, |_, _, _| {
            copies += 1;
            Err(FabricError::PeerDied { rank: 1 })
        });
        let joint = joint.unwrap();
        assert_eq!(copies, 1, "the reader copied after a failed chunk");
        assert!(matches!(joint.error, Some(FabricError::PeerDied { rank: 1 })));
        assert!(help(&ranks[1], &inbox).is_none(), "the owner took a chunk of a failed read");
        assert_eq!(joint.ended(), Some(true));
        exports::withdraw(from.key);
    }

    /// Owner and reader copy concurrently on two threads.
    #[test]
    fn owner_and_reader_together_copy_each_byte() {
        let (ranks, inbox, source, from) = owner();
        let (rounds, helped, over) = (if cfg!(miri) { 2 } else { 200 }, AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while over.load(Acquire) == 0 {
                    helped.fetch_add(usize::from(help(&ranks[1], &inbox).is_some()), Relaxed);
                    std::thread::yield_now();
                }
            });
            let mut target = vec![0; LENGTH];
            for round in 0..rounds {
                target.fill(0);
                let joint = read(&ranks[0], &inbox, from, &mut target, |at, len, into| {
                    into.copy_from_slice(&source[AT + at..AT + at + len]);
                    std::thread::yield_now();
                    Ok(())
                });
                let joint = joint.expect("the descriptor was free");
                if round % 3 == 0 {
                    joint.end(&ranks[0]);
                } else {
                    while joint.ended().is_none() {
                        std::thread::yield_now();
                    }
                }
                assert!(target == source[AT..], "round {round}");
            }
            over.store(1, Release);
        });
        assert!(helped.into_inner() > 0, "the owner copied no chunk");
        exports::withdraw(from.key);
    }
}
