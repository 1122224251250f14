//! Memory that every rank registers together, so that each reaches everyone's; as words, a network for the protocols
//! of `transom-locks`.

use crate::counters::Tally;
use crate::{Fabric, FabricError};
use transom_locks::{At, Awaited, Rank, Words};

/// One region at each rank, and the right to reach them all: words that protocols share, as many at every rank; then, from
/// a cache line on, bytes of a number that may differ; then signal words.
pub(crate) struct Segment<F: Fabric> {
    pub fabric: F,
    pub region: F::Region,
    pub remotes: Box<[F::Remote]>,
    pub sizes: Box<[Size]>,
    /// Where the bytes begin.
    pub base: usize,
    pub tally: Tally,
    rank: Rank,
}

/// What a rank's region holds behind the protocols' words.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub bytes: usize,
    pub signals: usize,
}

impl Size {
    /// Where a signal lies, from the beginning of the bytes.
    #[inline]
    fn signal(self, signal: usize) -> usize {
        self.bytes.next_multiple_of(8) + 8 * signal
    }

    /// Bytes of the region, if they can be counted.
    fn total(self, base: usize) -> Option<usize> {
        let signals = self.signals.checked_mul(8)?;
        let total = self.bytes.checked_next_multiple_of(8)?.checked_add(signals)?.checked_add(base)?;
        Some(total).filter(|&total| total <= isize::MAX as usize / 2)
    }
}

/// What a rank tells the others: what it makes, how much of it, and how to reach it.
struct Record<'a> {
    what: [u64; 2],
    size: Size,
    key: &'a [u8],
}

impl<'a> Record<'a> {
    fn to_bytes(&self) -> Vec<u8> {
        let [what, of] = self.what;
        let numbers = [what, of, self.size.bytes as u64, self.size.signals as u64];
        numbers.into_iter().flat_map(u64::to_le_bytes).chain(self.key.iter().copied()).collect()
    }

    fn from_bytes(mut bytes: &'a [u8]) -> Option<Self> {
        let mut number = || {
            let (number, rest) = bytes.split_first_chunk()?;
            bytes = rest;
            Some(u64::from_le_bytes(*number))
        };
        let (what, size) = ([number()?, number()?], Size { bytes: number()? as usize, signals: number()? as usize });
        Some(Record { what, size, key: bytes })
    }
}

/// Why a segment cannot be: something is wrong with this rank's size, or the fabric failed, here or elsewhere.
pub(crate) enum SegmentError {
    Size(&'static str),
    Fabric(FabricError),
}

impl From<FabricError> for SegmentError {
    fn from(error: FabricError) -> Self {
        SegmentError::Fabric(error)
    }
}

impl<F: Fabric> Segment<F> {
    /// Collective: zeroed memory at this rank for `what`, which must be the same at all, with `words`. A rank whose part
    /// cannot be says so to the others; either all have the segment or none has, and nobody waits for one that failed.
    pub fn allocate(
        fabric: &F,
        what: [u64; 2],
        words: usize,
        size: Result<Size, &'static str>,
    ) -> Result<Self, SegmentError> {
        let base = (8 * words).next_multiple_of(64);
        let made = size.map_err(SegmentError::Size).and_then(|size| {
            let total = size.total(base).ok_or(SegmentError::Size("too many bytes"))?;
            let (region, key) = fabric.allocate(total)?;
            Ok((region, Record { what, size, key: &key }.to_bytes()))
        });
        let theirs = fabric.all_gather(made.as_ref().map_or(&[], |(_, record)| record))?;
        let (region, _) = made?;
        let mut records = Vec::with_capacity(theirs.len());
        for (rank, record) in theirs.iter().enumerate() {
            let record = Record::from_bytes(record);
            let total = record.as_ref().and_then(|record| record.size.total(base));
            records.push(record.zip(total).ok_or_else(|| unmade(rank, "it could not allocate its part"))?);
        }
        if records.iter().any(|(record, _)| record.what != records[0].0.what) {
            let why = "ranks disagree about which window they make, or the size of its elements";
            return Err(SegmentError::Size(why));
        }
        let attach = |(rank, (record, total)): (Rank, &(Record, usize))| fabric.attach(rank, record.key, *total);
        let attached: Result<Box<[_]>, _> = records.iter().enumerate().map(attach).collect();
        // Keys are good as long as their owner keeps them: nobody goes on before all have attached, or one failed.
        let failed = fabric.all_gather(&[u8::from(attached.is_err())])?;
        let remotes = attached?;
        if let Some(rank) = failed.iter().position(|failed| failed[..] != [0]) {
            return Err(unmade(rank, "it could not reach the parts of all others").into());
        }
        let (fabric, rank) = (fabric.clone(), fabric.rank());
        let sizes = records.iter().map(|(record, _)| record.size).collect();
        Ok(Segment { fabric, region, remotes, sizes, base, tally: Tally::default(), rank })
    }

    /// Why a protocol failed: not that an earlier call failed, or who gave up, but the death or leaving behind it.
    #[cold]
    pub fn cause(&self, error: transom_locks::Error<FabricError>) -> transom_locks::Error<FabricError> {
        use transom_locks::Error::{Broken, GivenUp};
        match (error, self.fabric.lost()) {
            (Broken { .. }, Some(died @ FabricError::PeerDied { .. })) => died.into(),
            (GivenUp { .. }, Some(lost)) => lost.into(),
            (error, _) => error,
        }
    }

    /// Where a rank's signal lies, in bytes.
    #[inline]
    pub fn signal_offset(&self, rank: Rank, signal: usize) -> usize {
        self.base + self.sizes[rank].signal(signal)
    }

    #[inline]
    fn at(&self, at: At) -> Result<(&F::Remote, usize), FabricError> {
        match self.remotes.get(at.rank) {
            Some(remote) => Ok((remote, at.word.wrapping_mul(8))),
            None => Err(no_such_rank(at.rank)),
        }
    }
}

fn unmade(rank: Rank, why: &str) -> FabricError {
    FabricError::BadKey { rank, why: why.into(), source: None }
}

#[cold]
fn no_such_rank(rank: Rank) -> FabricError {
    FabricError::Corrupt { why: format!("it names rank {rank}, which does not exist") }
}

impl<F: Fabric> Words for Segment<F> {
    type Error = FabricError;
    type Pending = F::Pending;

    #[inline]
    fn rank(&self) -> Rank {
        self.rank
    }

    #[inline]
    fn ranks(&self) -> usize {
        self.remotes.len()
    }

    #[inline]
    fn cas(&self, at: At, expected: u64, new: u64) -> Result<u64, FabricError> {
        self.tally.word_cas.bump();
        let (remote, offset) = self.at(at)?;
        self.fabric.cas(remote, offset, expected, new)
    }

    #[inline]
    fn start_add(&self, at: At, delta: u64) -> Result<F::Pending, FabricError> {
        self.tally.word_adds.bump();
        let (remote, offset) = self.at(at)?;
        self.fabric.start_add(remote, offset, delta)
    }

    #[inline]
    fn finish(&self, pending: F::Pending) -> Result<u64, FabricError> {
        self.fabric.finish(pending)
    }

    #[inline]
    fn post(&self, at: At, value: u64) -> Result<(), FabricError> {
        self.tally.word_posts.add(u64::from(at.rank != self.rank));
        let (remote, offset) = self.at(at)?;
        self.fabric.post(remote, offset, value)
    }

    #[inline]
    fn wait(&self, word: usize, on: Awaited, until: impl Fn(u64) -> bool) -> Result<u64, FabricError> {
        self.fabric.wait(&self.region, on, || {
            let value = self.fabric.word(&self.region, word.wrapping_mul(8))?;
            Ok(until(value).then_some(value))
        })
    }
}
