//! A long read that the owner of the bytes takes part in, if it looks at its inbox meanwhile: both processors copy.
//!
//! The reader leaves word at the desk of the owner's inbox: whence, whither, and how many chunks are left. Both take chunks
//! off that count by compare-and-swap, and copy them. The count carries a number that is another one for each read, so that
//! an owner who has read the words of an earlier one takes nothing. The reader has all bytes once nothing is left, and the
//! owner has counted as many chunks done as the reader did not take. An owner who never looks delays nobody; one that is
//! stopped amid a chunk is waited for until it goes on or its process ends, since it would write there afterwards.

use super::inbox::Inbox;
use crate::reach::{self, Place, Reach};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use transom_channel::wire::Key;
use transom_locks::Rank;
use transom_windows::FabricError;

/// Bytes from which on a reader shares the copy with an owner that waits for messages.
const FROM: usize = 32 << 10;
/// Bytes from which on a reader also asks an owner that may look later. If the owner takes no chunk, the reader makes one system call more.
pub(crate) const FROM_ANY: usize = 64 << 10;

/// Returns true if a read of `length` bytes is worth sharing with its owner. An `attended` owner waits for messages.
pub(super) fn is_worth(length: usize, attended: bool) -> bool {
    length >= if attended { FROM } else { FROM_ANY }
}

/// Bytes that both copiers together take in one round. Shorter chunks cost more in system calls than a better balance saves.
const ROUND: usize = 64 << 10;
/// Bytes of the longest chunk.
const LONGEST: usize = 512 << 10;

/// Bytes of each chunk but the last of a read of `length` bytes. An even number of chunks gives both copiers the same share.
fn chunk(length: usize) -> usize {
    let rounds = (length / ROUND).clamp(1, 4);
    length.div_ceil(2 * rounds).next_multiple_of(64).clamp(64, LONGEST)
}

/// Where the `number`th chunk of so many bytes is: its offset and length.
fn part(number: usize, length: usize) -> (usize, usize) {
    let at = number * chunk(length);
    (at, chunk(length).min(length - at))
}

/// What moves, as the desk says it: `length` bytes from `at` on of what the key `from` leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Move {
    pub from: Key,
    pub at: usize,
    pub length: usize,
    /// Where the first of them goes, in the reader's process.
    pub to: Key,
}

/// The desk of an inbox: the count of chunks, whose desk it is, what is done, and the move.
pub(super) struct Desk<'a> {
    /// {number of the read, chunks that nobody has taken}, 32 bits each. Beside the word that the owner polls.
    pub left: &'a AtomicU64,
    /// {reader + 1, done, from.address, from.key, to.address, to.key, at, length}
    pub words: &'a [AtomicU64],
}

/// Chunks that the owner has copied; each that it could not copy counts `FAILED` beside.
const FAILED: u64 = 1 << 32;

impl Desk<'_> {
    fn reader(&self) -> &AtomicU64 {
        &self.words[0]
    }

    fn done(&self) -> &AtomicU64 {
        &self.words[1]
    }

    /// Leaves word, if the desk is free. Gives the number of chunks.
    pub(super) fn ask(&self, reader: Rank, what: Move) -> Option<u32> {
        let chunks = u32::try_from(what.length.div_ceil(chunk(what.length))).ok()?;
        self.reader().compare_exchange(0, reader as u64 + 1, Acquire, Relaxed).ok()?;
        self.done().store(0, Relaxed);
        let said = [what.from.address, what.from.key, what.to.address, what.to.key, what.at as u64, what.length as u64];
        self.words[2..].iter().zip(said).for_each(|(word, said)| word.store(said, Relaxed));
        let number = (self.left.load(Relaxed) >> 32).wrapping_add(1);
        // Release: who takes a chunk of this number has read these words.
        self.left.store(number << 32 | u64::from(chunks), Release);
        Some(chunks)
    }

    /// Takes a chunk of the read whose count was seen to be `seen`.
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

    /// Nobody takes a chunk any more. Gives how many were left.
    fn close(&self) -> u32 {
        self.left.fetch_and(!u64::from(u32::MAX), AcqRel) as u32
    }

    /// Anybody may leave word again.
    fn free(&self) {
        self.reader().store(0, Release);
    }

    /// Whether a read goes on here.
    pub fn is_taken(&self) -> bool {
        self.reader().load(Relaxed) != 0
    }

    /// Frees the desk of a reader that is gone.
    pub fn forget(&self, reader: Rank) {
        if self.reader().load(Acquire) == reader as u64 + 1 {
            self.close();
            self.free();
        }
    }
}

/// What the reader knows of a read that goes on.
pub(super) struct Joint {
    pub owner: Rank,
    pub token: u64,
    pub what: Move,
    /// Where it comes to, in this process: the key tells others more than that.
    pub target: usize,
    inbox: Inbox,
    /// Chunks that the owner has taken.
    theirs: u32,
    /// Why the reader has not copied the others.
    pub error: Option<FabricError>,
}

impl Joint {
    /// Leaves word with the owner, and copies by `copy` (offset, length) until nothing is left or that fails; the owner may
    /// be copying then. None if somebody else reads there.
    pub fn read(
        job: &Reach,
        (owner, inbox): (Rank, &Inbox),
        token: u64,
        (from, at): (Key, usize),
        (target, length): (*mut u8, usize),
        mut copy: impl FnMut(usize, usize) -> Result<(), FabricError>,
    ) -> Option<Joint> {
        let target = target.expose_provenance();
        let what = Move { from, at, length, to: job.lead_to(target, length) };
        let Some(chunks) = inbox.desk().ask(job.rank, what) else {
            reach::withdraw(what.to);
            return None;
        };
        let mut joint = Joint { owner, token, what, target, inbox: inbox.clone(), theirs: chunks, error: None };
        while let Some(chunk) = inbox.desk().take_any() {
            // Any rank could write that word.
            if chunk >= chunks as usize || joint.theirs == 0 {
                let why = format!("no rank takes chunk {chunk} of {chunks} of a large message");
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

    /// Whether the owner has done its part, and if so whether it could; the desk is free then.
    pub fn ended(&self) -> Option<bool> {
        let desk = self.inbox.desk();
        // Acquire: what the owner has written is seen.
        let done = desk.done().load(Acquire);
        if (done as u32) < self.theirs {
            return None;
        }
        reach::withdraw(self.what.to);
        desk.free();
        Some(done < FAILED)
    }

    /// The owner takes nothing any more.
    fn close(&mut self) {
        self.theirs = self.theirs.saturating_sub(self.inbox.desk().close());
    }

    /// Ends it: from here on the owner writes no longer. Waits for the chunk that it is copying, unless its process has
    /// ended.
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

/// The owner's part: copies one chunk of what is read here. For whom, as the desk says, if any was left.
pub(super) fn help(job: &Reach, inbox: &Inbox) -> Option<Rank> {
    let desk = inbox.desk();
    // Acquire: with the words of this read, or of a later one, of which nothing is taken by this count.
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
    // Release: who sees it counted sees the bytes.
    desk.done().fetch_add(if copied.is_ok() { 1 } else { 1 | FAILED }, Release);
    Some(reader)
}

fn copy_chunk(job: &Reach, reader: Rank, what: Move, chunk: usize) -> Result<(), FabricError> {
    // Any rank could write these words.
    if reader >= job.control.ranks() || chunk >= what.length.div_ceil(self::chunk(what.length)) {
        return Err(FabricError::Misuse { why: format!("no rank asks for this: {what:?} for rank {reader}") });
    }
    let (offset, length) = part(chunk, what.length);
    job.reach(job.rank, (what.from, what.at.saturating_add(offset)), length, |place| match place {
        Place::Here(source) => {
            // SAFETY: within a buffer that this rank offers, and so does not change before it is withdrawn.
            let source = unsafe { std::slice::from_raw_parts(source, length) };
            job.write(reader, (what.to, offset), source)
        }
        Place::There(_) => unreachable!("this rank's memory is in its process"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports;
    use crate::loopback::Loopback;
    use crate::memory::{Memory, View};
    use crate::messages::inbox;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    const LENGTH: usize = 1_000_000;
    const AT: usize = 777;

    /// A job of threads, the inbox of rank 1, and what that rank offers.
    fn owner() -> (Vec<Reach>, Inbox, Vec<u8>, Key) {
        let ranks = Loopback::threads(2).unwrap();
        let ranks = ranks.iter().map(|rank| Reach::from(&*rank.0)).collect();
        let inbox = Inbox::new(View::whole(&Arc::new(Memory::heap(inbox::len(2), 1).unwrap())), 2);
        let source: Vec<u8> = (0..LENGTH + AT).map(|i| (i * 7 + i / 256) as u8).collect();
        let address = source.as_ptr().expose_provenance();
        let from = Key { address: address as u64, key: exports::export(address, source.len()) };
        (ranks, inbox, source, from)
    }

    /// Copies as the reader does, out of what the owner offers.
    fn out_of(source: &[u8]) -> impl Fn(usize, usize, &mut [u8]) -> Result<(), FabricError> {
        |at, len, into| {
            into.copy_from_slice(&source[AT + at..AT + at + len]);
            Ok(())
        }
    }

    /// Reads as rank 0, which copies by `copy` (offset, length, target).
    fn read(
        job: &Reach,
        inbox: &Inbox,
        from: Key,
        target: &mut [u8],
        mut copy: impl FnMut(usize, usize, &mut [u8]) -> Result<(), FabricError>,
    ) -> Option<Joint> {
        let (start, length) = (target.as_mut_ptr(), target.len());
        let copy = |at, len| {
            // SAFETY: a chunk of the target, which nobody else uses: the owner copies other chunks.
            copy(at, len, unsafe { std::slice::from_raw_parts_mut(start.wrapping_add(at), len) })
        };
        Joint::read(job, (1, inbox), 5, (from, AT), (start, length), copy)
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
    fn the_owner_copies_what_the_reader_does_not_take() {
        let (ranks, inbox, source, from) = owner();
        let mut target = vec![0; LENGTH];
        let mut own = 0;
        let joint = read(&ranks[0], &inbox, from, &mut target, |at, len, into| {
            own += len;
            out_of(&source)(at, len, into)?;
            assert!(inbox.has_work() || help(&ranks[1], &inbox).is_none(), "there is work while a chunk is left");
            help(&ranks[1], &inbox); // two for the owner
            help(&ranks[1], &inbox);
            Ok(())
        });
        let joint = joint.expect("the desk was free");
        assert_eq!(joint.ended(), Some(true));
        assert!(own > 0 && own < LENGTH / 2, "{own} bytes by the reader");
        assert!(target == source[AT..], "all is there");
        assert!(!inbox.has_work() && help(&ranks[1], &inbox).is_none(), "nothing is left");
        exports::withdraw(from.key);
    }

    #[test]
    fn an_owner_who_does_not_look_is_not_waited_for() {
        let (ranks, inbox, source, from) = owner();
        let mut target = vec![0; LENGTH];
        let joint = read(&ranks[0], &inbox, from, &mut target, out_of(&source));
        assert_eq!(joint.expect("the desk was free").ended(), Some(true));
        assert!(target == source[AT..]);
        exports::withdraw(from.key);
    }

    #[test]
    fn an_owner_who_is_late_takes_nothing_of_the_next_read() {
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
            assert_eq!(inbox.desk().take(seen), None, "a count of the first read");
            out_of(&source)(at, len, into)
        });
        assert_eq!(second.unwrap().ended(), Some(true));
        assert!(help(&ranks[1], &inbox).is_none());
        exports::withdraw(from.key);
    }

    #[test]
    fn a_chunk_that_the_owner_is_copying_is_waited_for() {
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
    fn a_second_reader_reads_alone_until_the_desk_is_free() {
        let (ranks, inbox, _source, from) = owner();
        let (mut target, mut other) = (vec![0; LENGTH], vec![0; LENGTH]);
        let joint = read(&ranks[0], &inbox, from, &mut target, |_, _, _| {
            assert!(read(&ranks[0], &inbox, from, &mut other, |_, _, _| unreachable!("it reads alone")).is_none());
            Ok(())
        });
        assert_eq!(joint.unwrap().ended(), Some(true));
        assert!(read(&ranks[0], &inbox, from, &mut other, |_, _, _| Ok(())).is_some());
        exports::withdraw(from.key);
    }

    #[test]
    fn what_the_owner_cannot_copy_is_told() {
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
    fn what_no_owner_writes_is_refused() {
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
    fn what_no_reader_writes_is_refused() {
        let (ranks, inbox, _source, from) = owner();
        let mut target = vec![7; LENGTH];
        for (word, said) in [(0, 99), (6, u64::MAX), (7, 0), (5, u64::MAX), (7, u64::MAX)] {
            // A length that is none leads, of some chunks, to other places of the reader's own.
            assert!(target.iter().all(|byte| *byte == 7), "nothing was written");
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
    fn a_read_that_fails_ends_when_the_owner_has() {
        let (ranks, inbox, _source, from) = owner();
        let mut target = vec![0; LENGTH];
        let mut copies = 0;
        let joint = read(&ranks[0], &inbox, from, &mut target, |_, _, _| {
            copies += 1;
            Err(FabricError::PeerDied { rank: 1 })
        });
        let joint = joint.unwrap();
        assert_eq!(copies, 1, "nothing after the first that fails");
        assert!(matches!(joint.error, Some(FabricError::PeerDied { rank: 1 })));
        assert!(help(&ranks[1], &inbox).is_none(), "the owner takes nothing more");
        assert_eq!(joint.ended(), Some(true));
        exports::withdraw(from.key);
    }

    /// Both at once, on two threads.
    #[test]
    fn both_together_copy_each_byte() {
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
                let joint = joint.expect("the desk was free");
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
        assert!(helped.into_inner() > 0, "the owner took part");
        exports::withdraw(from.key);
    }
}
