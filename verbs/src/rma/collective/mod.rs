//! Barriers and all-gathers of `n` ranks in ceil(log2 n) steps. In step `k` each rank sends to the rank `2^k` before it
//! and receives from the rank `2^k` after it.
//!
//! A step of a barrier (dissemination; Hensgen, Finkel, Manber 1988) announces all ranks that the sender knows to have
//! arrived. A step of an all-gather (Bruck et al. 1997) announces the sender's blocks, of which the receiver fetches
//! those it lacks.

pub(super) mod lanes;

use transom_channel::wire::RAILS;
use transom_locks::Rank;
use transom_windows::FabricError;

/// The communication of a step. Ranks are those of the collective.
trait Steps {
    /// Notifies `to` that this rank has arrived and offers it these bytes, which begin with the bytes offered in
    /// earlier steps.
    fn say(&mut self, step: usize, to: Rank, bytes: &[u8], flag: bool) -> Result<(), FabricError>;

    /// Waits for the notification from `from`; returns its flag and the location of its bytes.
    fn hear(&mut self, step: usize, from: Rank) -> Result<(bool, Said), FabricError>;

    /// Fetches the bytes at an announced location.
    fn fetch(&mut self, from: Rank, said: Said) -> Result<Vec<u8>, FabricError>;
}

/// Location of a rank's bytes for a peer. It comes from memory that the peer writes, so it is trusted no further than
/// the bytes that it leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Said {
    address: u64,
    bytes: u64,
    /// A remote key per rail.
    keys: [u32; RAILS],
}

fn steps(ranks: usize) -> usize {
    ranks.next_power_of_two().ilog2() as usize
}

/// The destination and the source of a step.
fn partners(me: Rank, ranks: usize, step: usize) -> (Rank, Rank) {
    let distance = 1 << step;
    ((me + ranks - distance) % ranks, (me + distance) % ranks)
}

/// Waits until all ranks have called; returns whether any passed the flag.
fn barrier(of: &mut impl Steps, me: Rank, ranks: usize, flag: bool) -> Result<bool, FabricError> {
    (0..steps(ranks)).try_fold(flag, |flag, step| {
        let (to, from) = partners(me, ranks, step);
        of.say(step, to, &[], flag)?;
        Ok(flag | of.hear(step, from)?.0)
    })
}

/// The blocks of all ranks, by rank.
fn all_gather(of: &mut impl Steps, me: Rank, ranks: usize, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError> {
    // Blocks of this rank, the next rank and so on, each preceded by its length.
    let mut all = Vec::new();
    append(&mut all, mine);
    let mut ends = vec![all.len()];
    for step in 0..steps(ranks) {
        let (to, from) = partners(me, ranks, step);
        // The last step fetches only the missing blocks.
        let blocks = (1 << step).min(ranks - (1 << step));
        of.say(step, to, &all[..ends[blocks - 1]], false)?;
        let (_, said) = of.hear(step, from)?;
        all.extend(of.fetch(from, said)?);
        for _ in 0..blocks {
            let end = end_of(&all, ends[ends.len() - 1]).ok_or_else(|| not_understood(from))?;
            ends.push(end);
        }
        if ends.last() != Some(&all.len()) {
            return Err(not_understood(from));
        }
    }
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let mut gathered: Vec<Vec<u8>> = starts.zip(&ends).map(|(start, &end)| all[start + LENGTH..end].to_vec()).collect();
    gathered.rotate_right(me);
    Ok(gathered)
}

/// Bytes of a block's length field.
const LENGTH: usize = 8;

fn append(all: &mut Vec<u8>, block: &[u8]) {
    all.extend((block.len() as u64).to_le_bytes());
    all.extend(block);
}

/// End of the block that begins at `start`.
fn end_of(all: &[u8], start: usize) -> Option<usize> {
    let (len, rest) = all.get(start..)?.split_first_chunk::<LENGTH>()?;
    let len = usize::try_from(u64::from_le_bytes(*len)).ok().filter(|len| *len <= rest.len())?;
    Some(start + LENGTH + len)
}

fn not_understood(from: Rank) -> FabricError {
    FabricError::Corrupt { why: format!("rank {from} sent a malformed all-gather block") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::sync::{Condvar, Mutex};
    use std::time::Duration;

    /// Notifications by step and receiver.
    type Letters = HashMap<(usize, Rank), (bool, Vec<u8>)>;

    /// Ranks as threads.
    #[derive(Default)]
    struct Post(Mutex<Letters>, Condvar);

    struct Thread<'p> {
        post: &'p Post,
        me: Rank,
        said: usize,
        bytes: usize,
        heard: Vec<u8>,
        /// Applied to fetched bytes.
        spoil: fn(Vec<u8>) -> Vec<u8>,
    }

    impl Steps for Thread<'_> {
        fn say(&mut self, step: usize, to: Rank, bytes: &[u8], flag: bool) -> Result<(), FabricError> {
            self.said += 1;
            let before = self.post.0.lock().unwrap().insert((step, to), (flag, bytes.to_vec()));
            assert!(before.is_none(), "one notification per receiver and step");
            self.post.1.notify_all();
            Ok(())
        }

        fn hear(&mut self, step: usize, _: Rank) -> Result<(bool, Said), FabricError> {
            let all = self.post.0.lock().unwrap();
            let waiting = |all: &mut Letters| !all.contains_key(&(step, self.me));
            let (mut all, late) = self.post.1.wait_timeout_while(all, Duration::from_secs(20), waiting).unwrap();
            assert!(!late.timed_out(), "rank {} is not notified in step {step}", self.me);
            let (flag, bytes) = all.remove(&(step, self.me)).unwrap();
            self.heard = bytes;
            Ok((flag, Said { bytes: self.heard.len() as u64, ..Said::default() }))
        }

        fn fetch(&mut self, _: Rank, _: Said) -> Result<Vec<u8>, FabricError> {
            self.bytes += self.heard.len();
            Ok((self.spoil)(std::mem::take(&mut self.heard)))
        }
    }

    fn on_threads<R: Send>(ranks: usize, run: impl Fn(&mut Thread<'_>) -> R + Sync) -> Vec<(R, usize, usize)> {
        let post = Post::default();
        std::thread::scope(|scope| {
            let one = |me| {
                let (post, run) = (&post, &run);
                scope.spawn(move || {
                    let mut of = Thread { post, me, said: 0, bytes: 0, heard: Vec::new(), spoil: |bytes| bytes };
                    (run(&mut of), of.said, of.bytes)
                })
            };
            let threads: Vec<_> = (0..ranks).map(one).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_gather_takes_log2_steps() {
        // Ranks and steps.
        for (ranks, steps) in [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (7, 3), (8, 3), (9, 4), (16, 4), (33, 6)] {
            let given = |rank: Rank| vec![rank as u8; rank * 3 % 7];
            let expected: Vec<_> = (0..ranks).map(given).collect();
            let total: usize = expected.iter().map(|given| given.len() + 8).sum();
            for (gathered, said, bytes) in on_threads(ranks, |of| all_gather(of, of.me, ranks, &given(of.me)).unwrap())
            {
                assert_eq!(gathered, expected, "{ranks} ranks");
                assert_eq!(said, steps, "{ranks} ranks");
                assert!(bytes <= total, "each byte is fetched once: {bytes} of {total}");
            }
        }
    }

    #[test]
    fn barrier_spreads_the_flag_to_all_ranks() {
        for ranks in [1, 2, 3, 5, 8, 13] {
            for knows in 0..ranks {
                for (flag, said, bytes) in on_threads(ranks, |of| barrier(of, of.me, ranks, of.me == knows).unwrap()) {
                    assert!(flag && said == super::steps(ranks) && bytes == 0, "{ranks} ranks, of {knows}");
                }
            }
            assert!(on_threads(ranks, |of| barrier(of, of.me, ranks, false).unwrap()).iter().all(|(flag, ..)| !flag));
        }
    }

    #[test]
    fn malformed_block_is_an_error_that_names_its_rank() {
        let spoils: [fn(Vec<u8>) -> Vec<u8>; 4] = [
            |_| Vec::new(),
            |bytes| bytes[..7].to_vec(),
            |bytes| [&bytes[..], b"!"].concat(),
            |bytes| [&u64::MAX.to_le_bytes(), &bytes[8..]].concat(),
        ];
        for spoil in spoils {
            let gathered = on_threads(2, |of| {
                of.spoil = if of.me == 0 { spoil } else { |bytes| bytes };
                all_gather(of, of.me, 2, b"four").map(drop)
            });
            let error = gathered[0].0.as_ref().unwrap_err();
            assert!(matches!(error, FabricError::Corrupt { why } if why.contains("rank 1 ")), "{error}");
            assert!(gathered[1].0.is_ok());
        }
    }
}
