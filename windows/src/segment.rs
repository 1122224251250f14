//! Memory that every rank registers together, so that each reaches everyone's; as words, a network for the protocols
//! of `transom-locks`.

use crate::counters::Tally;
use crate::{Fabric, FabricError};
use transom_locks::{At, Awaited, Rank, Words};

/// One region at each rank, of sizes that may differ, and the right to reach them all.
pub(crate) struct Segment<F: Fabric> {
    pub fabric: F,
    pub region: F::Region,
    pub remotes: Box<[F::Remote]>,
    /// Each rank's size in bytes.
    pub sizes: Box<[usize]>,
    pub tally: Tally,
    rank: Rank,
}

impl<F: Fabric> Segment<F> {
    /// Collective: `bytes` of zeroed memory at this rank.
    pub fn allocate(fabric: &F, bytes: usize) -> Result<Self, FabricError> {
        let made = fabric.allocate(bytes);
        // A rank that failed says so before it returns: the others must not wait for it in vain.
        let mine = match &made {
            Ok((_, key)) => [&(bytes as u64).to_le_bytes()[..], key].concat(),
            Err(_) => Vec::new(),
        };
        let theirs = fabric.all_gather(&mine)?;
        let (region, _) = made?;
        let mut sizes = Vec::with_capacity(theirs.len());
        let mut remotes = Vec::with_capacity(theirs.len());
        for (rank, record) in theirs.iter().enumerate() {
            let Some((size, key)) = record.split_first_chunk::<8>() else {
                let why = "it could not allocate its part of the window".into();
                return Err(FabricError::BadKey { rank, why, source: None });
            };
            let size = u64::from_le_bytes(*size) as usize;
            remotes.push(fabric.attach(rank, key, size)?);
            sizes.push(size);
        }
        // Keys may name what only lives as long as its owner keeps it: nobody goes on before all have attached.
        fabric.barrier()?;
        Ok(Segment {
            fabric: fabric.clone(),
            region,
            remotes: remotes.into(),
            sizes: sizes.into(),
            tally: Tally::default(),
            rank: fabric.rank(),
        })
    }

    #[inline]
    fn at(&self, at: At) -> Result<(&F::Remote, usize), FabricError> {
        match self.remotes.get(at.rank) {
            Some(remote) => Ok((remote, at.word.wrapping_mul(8))),
            None => Err(no_such_rank(at.rank)),
        }
    }
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
        self.fabric.wait(&self.region, word.wrapping_mul(8), on, until)
    }
}
