//! Segments: memory that all ranks register together, so that each reaches that of every other. A segment's words are a
//! network for the protocols of `transom-locks`.

use crate::counters::CounterCells;
use crate::words::{ObjectDesc, Purpose, Waiting};
use crate::{Error, Fabric, FabricError, UserMemory, Wait, Wake};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use transom_locks::{At, Awaited, FoundWord, Network, PassiveLock, Rank};

/// One region at each rank, with access to all of them. A region begins with the words that protocols share, as many at
/// every rank. The elements' bytes follow on a cache line; their number may differ between ranks. Signal words and
/// slots come last.
pub(crate) struct Segment<F: Fabric> {
    pub fabric: F,
    pub region: F::Region,
    pub remotes: Box<[F::Remote]>,
    pub sizes: Box<[Size]>,
    pub counters: CounterCells,
    /// Offset of the bytes in the regions.
    pub base: usize,
    /// The regions that hold the bytes instead, if these are user memory.
    own: Option<Own<F>>,
    rank: Rank,
    /// The segment's purpose and number, for messages.
    purpose: Purpose,
    id: u32,
    /// Unique within this process, unlike `id`, since every team numbers its own windows.
    pub serial: u64,
    asked: RateLimit,
}

/// The next [serial](Segment::serial).
static SERIAL: AtomicU64 = AtomicU64::new(0);

/// A limiter that admits at most ten events per second.
struct RateLimit {
    since: Instant,
    /// Time of the last admission, in milliseconds after `since`.
    last: AtomicU64,
}

impl RateLimit {
    fn new() -> Self {
        RateLimit { since: Instant::now(), last: AtomicU64::new(0) }
    }

    fn is_due(&self) -> bool {
        let now = self.since.elapsed().as_millis() as u64;
        let due = now.saturating_sub(self.last.load(Relaxed)) >= 100;
        if due {
            self.last.store(now, Relaxed);
        }
        due
    }
}

/// The region of this rank, and the access to those of all ranks.
type Own<F> = (<F as Fabric>::Region, Box<[<F as Fabric>::Remote]>);

/// The contents of a rank's region behind the protocols' words.
#[derive(Clone, Copy, Default)]
pub(crate) struct Size {
    /// Bytes of the elements, wherever they lie.
    pub bytes: usize,
    /// True if the elements are in user memory, and not in the region.
    pub own: bool,
    pub signals: usize,
    /// Slots that can announce attached memory.
    pub slots: usize,
}

/// Words of a slot.
pub(crate) const SLOT_WORDS: usize = 16;

impl Size {
    /// Offset of a signal from the beginning of the bytes. Slots follow the signals as if they were further signals.
    #[inline]
    fn signal(self, signal: usize) -> usize {
        let bytes = if self.own { 0 } else { self.bytes.next_multiple_of(8) };
        bytes + 8 * signal
    }

    /// Bytes of the region; `None` on overflow.
    fn total(self, base: usize) -> Option<usize> {
        let words = self.slots.checked_mul(SLOT_WORDS)?.checked_add(self.signals)?.checked_mul(8)?;
        let bytes = self.bytes.checked_next_multiple_of(8)?.checked_add(words)?.checked_add(base)?;
        let total = if self.own { base.checked_add(words)? } else { bytes };
        Some(total).filter(|_| bytes <= isize::MAX as usize / 2)
    }
}

/// A rank's contribution to the creation of a segment: what it makes, the size, and the key.
struct Record<'a> {
    /// Must be equal at all ranks.
    what: ObjectDesc<'a>,
    size: Size,
    key: &'a [u8],
    /// Key of user memory.
    own_key: &'a [u8],
}

impl<'a> Record<'a> {
    fn to_bytes(&self) -> Vec<u8> {
        let Size { bytes, own, signals, slots } = self.size;
        let element = self.what.element.as_bytes();
        let sizes =
            [bytes as u64, own.into(), signals as u64, slots as u64, element.len() as u64, self.key.len() as u64];
        let numbers = self.what.numbers.into_iter().chain(sizes).flat_map(u64::to_le_bytes);
        numbers.chain([element, self.key, self.own_key].concat()).collect()
    }

    fn from_bytes(mut bytes: &'a [u8]) -> Option<Self> {
        let mut number = || {
            let (number, rest) = bytes.split_first_chunk()?;
            bytes = rest;
            Some(u64::from_le_bytes(*number))
        };
        let numbers = [number()?, number()?, number()?];
        let [bytes_of, own, signals, slots, element, key] =
            [number()?, number()?, number()?, number()?, number()?, number()?].map(|number| number as usize);
        let (element, keys) = bytes.split_at_checked(element)?;
        let (key, own_key) = keys.split_at_checked(key)?;
        let what = ObjectDesc { numbers, element: std::str::from_utf8(element).ok()? };
        Some(Record { what, size: Size { bytes: bytes_of, own: own != 0, signals, slots }, key, own_key })
    }
}

/// The reason why a segment cannot be made: this rank's size is wrong, or the fabric failed, here or at another rank.
pub(crate) enum SegmentError {
    Size(&'static str),
    /// This rank does not make the same object as rank 0.
    Mismatch {
        rank: Rank,
        why: String,
    },
    Fabric(FabricError),
    /// The fabric failed after all ranks had attached: other ranks may have the segment.
    Late(FabricError),
}

impl SegmentError {
    /// The error of the window whose segment failed, with `len` elements of `element` bytes.
    pub fn of(self, window: u32, rank: Rank, len: usize, element: usize) -> Error {
        match self {
            SegmentError::Size(why) => Error::Size { what: "window", window, len, element, why },
            SegmentError::Mismatch { rank, why } => Error::Mismatch { rank, why },
            SegmentError::Fabric(source) | SegmentError::Late(source) => Error::Fabric { window, rank, source },
        }
    }
}

impl From<FabricError> for SegmentError {
    fn from(error: FabricError) -> Self {
        SegmentError::Fabric(error)
    }
}

impl<F: Fabric> Segment<F> {
    /// Collective: allocates zeroed memory at this rank, with `words` words for protocols. The elements are in user
    /// memory if `own` is given. All ranks pass the same purpose, number and element type. A rank that cannot make its
    /// part tells the others, so either all ranks have the segment or none has, and no rank waits for one that failed.
    pub fn allocate(
        fabric: &F,
        purpose: Purpose,
        id: u32,
        (element, rest): (&str, u64),
        words: usize,
        size: Result<Size, &'static str>,
        own: Option<UserMemory>,
    ) -> Result<Self, SegmentError> {
        let base = (8 * words).next_multiple_of(64);
        let made = size.map_err(SegmentError::Size).and_then(|size| {
            let total = size.total(base).ok_or(SegmentError::Size("too many bytes"))?;
            let (region, key) = fabric.allocate(total)?;
            // SAFETY: the segment keeps the region to itself, and `Window::free` returns the memory only after it has
            // dropped the region.
            let (own, own_key) = own.map(|memory| unsafe { fabric.register(&memory) }).transpose()?.unzip();
            let own_key = &own_key.unwrap_or_default();
            let what = ObjectDesc { numbers: [purpose as u64, u64::from(id), rest], element };
            Ok((region, own, Record { what, size, key: &key, own_key }.to_bytes()))
        });
        let theirs = fabric.all_gather(made.as_ref().map_or(&[], |(_, _, record)| record))?;
        let (mut region, own, _) = made?;
        let mut records = Vec::with_capacity(theirs.len());
        for (rank, record) in theirs.iter().enumerate() {
            if record.is_empty() {
                return Err(unmade(rank, "it could not allocate its part").into());
            }
            let record = Record::from_bytes(record);
            let total = record.as_ref().and_then(|record| record.size.total(base));
            let why = || format!("rank {rank} makes a different collective call, perhaps a team");
            records.push(record.zip(total).ok_or_else(|| SegmentError::Mismatch { rank, why: why() })?);
        }
        // The first record that differs from rank 0's, so that all ranks report the same.
        let first = records[0].0.what;
        if let Some(rank) = records.iter().position(|(record, _)| record.what != first) {
            let why = format!("rank 0 makes {first}, rank {rank} makes {}", records[rank].0.what);
            return Err(SegmentError::Mismatch { rank, why });
        }
        let all = || records.iter().enumerate();
        let attach = || -> Result<_, FabricError> {
            let remotes: Result<_, _> =
                all().map(|(rank, (record, total))| fabric.attach_part(rank, record.key, *total, base)).collect();
            let attach_own = |(rank, (record, _)): (Rank, &(Record, usize))| {
                // SAFETY: the key is from that rank, for a window that all ranks make alike; every holder drops it
                // before `free` returns.
                unsafe { fabric.attach_user_memory(rank, record.own_key, record.size.bytes) }
            };
            let own = own.map(|region| Ok((region, all().map(attach_own).collect::<Result<_, _>>()?)));
            Ok((remotes?, own.transpose()?))
        };
        let attached = attach();
        // Keys are valid only while their owner keeps the memory: no rank goes on before all have attached, or one has
        // failed.
        let failed = fabric.all_gather(&[u8::from(attached.is_err())]).map_err(SegmentError::Late)?;
        let (remotes, mut own) = attached?;
        if let Some(rank) = failed.iter().position(|failed| failed[..] != [0]) {
            return Err(unmade(rank, "it could not access the parts of all other ranks").into());
        }
        fabric.close(&mut region);
        if let Some((own, _)) = &mut own {
            fabric.close(own);
        }
        let (fabric, rank) = (fabric.clone(), fabric.rank());
        let sizes = records.iter().map(|(record, _)| record.size).collect();
        Ok(Segment {
            fabric,
            region,
            remotes,
            sizes,
            base,
            own,
            counters: CounterCells::default(),
            rank,
            purpose,
            id,
            serial: SERIAL.fetch_add(1, Relaxed),
            asked: RateLimit::new(),
        })
    }

    /// The memory of `rank` that holds its elements, and their offset there.
    #[inline(always)]
    pub fn part(&self, rank: Rank) -> Option<(&F::Remote, usize)> {
        match &self.own {
            None => Some((self.remotes.get(rank)?, self.base)),
            Some((_, remotes)) => Some((remotes.get(rank)?, 0)),
        }
    }

    /// Ends the segment, and all access of other ranks to the user memory that holds its elements.
    pub fn withdraw(mut self) {
        if let Some((region, _)) = &mut self.own {
            self.fabric.withdraw(region);
        }
    }

    /// True if the elements are in user memory.
    #[inline(always)]
    pub fn is_user_memory(&self) -> bool {
        self.own.is_some()
    }

    /// This rank's own region, and the offset of its elements.
    #[inline(always)]
    pub fn own_part(&self) -> (&F::Region, usize) {
        match &self.own {
            None => (&self.region, self.base),
            Some((region, _)) => (region, 0),
        }
    }

    /// The cause of a protocol's error: the death or leaving behind it, rather than an earlier failed call or an
    /// abandoned synchronisation.
    #[cold]
    pub fn cause(&self, error: transom_locks::Error<FabricError>) -> transom_locks::Error<FabricError> {
        use transom_locks::Error::{Broken, GivenUp};
        match (error, self.fabric.lost()) {
            (Broken { .. }, Some(died @ FabricError::PeerDied { .. })) => died.into(),
            (GivenUp { .. }, Some(lost)) => lost.into(),
            (error, _) => error,
        }
    }

    /// Runs `check` for an operation that did not wait and found nothing, at most ten times per second: a check costs
    /// system calls, and the program may repeat the operation. Yields first, since the rank that is looked for may need
    /// this core.
    pub fn check_seldom(&self, check: impl FnOnce(&F) -> Result<(), FabricError>) -> Result<(), FabricError> {
        self.fabric.after_empty_poll();
        if self.asked.is_due() { check(&self.fabric) } else { Ok(()) }
    }

    /// Reports to the other ranks that this rank leaves without ending an operation that only it could end. After a
    /// death they know, and wait no more; this rank must not be blamed for giving up because of that death.
    #[cold]
    pub fn leave_unended(&self) {
        if !matches!(self.fabric.lost(), Some(FabricError::PeerDied { .. })) {
            self.fabric.fail();
        }
    }

    /// Reports this rank as failed if it panics while a request that it gave up is still queued. Dropping the lock
    /// would wait for other ranks, which may be waiting for this one.
    pub fn fail_unless_settled<N: Network>(&self, lock: &mut PassiveLock<N>) {
        if std::thread::panicking() && !lock.is_settled_mut() {
            self.leave_unended();
        }
    }

    /// Offset of a rank's slot, in bytes.
    pub fn slot_offset(&self, rank: Rank, slot: usize) -> usize {
        self.signal_offset(rank, self.sizes[rank].signals + SLOT_WORDS * slot)
    }

    /// Offset of a rank's signal, in bytes.
    #[inline]
    pub fn signal_offset(&self, rank: Rank, signal: usize) -> usize {
        self.base + self.sizes[rank].signal(signal)
    }

    #[inline(always)]
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

impl<F: Fabric> Segment<F> {
    #[inline(always)]
    fn wait_for(
        &self,
        word: usize,
        awaited: Awaited,
        deadline: Option<Instant>,
        until: impl Fn(u64) -> bool,
    ) -> Result<u64, FabricError> {
        let call = self.waiting(word, false);
        self.fabric.wait(&self.region, Wait { rank: self.rank, call: &call, awaited, deadline }, || {
            let value = self.fabric.word(&self.region, word.wrapping_mul(8))?;
            Ok(until(value).then_some(value))
        })
    }

    fn waiting(&self, word: usize, watched: bool) -> Waiting {
        Waiting { purpose: self.purpose, id: self.id, ranks: self.remotes.len(), word, watched }
    }
}

impl<F: Fabric> Network for Segment<F> {
    type Error = FabricError;
    type Pending = F::Pending;
    type Found = F::Word;

    #[inline(always)]
    fn rank(&self) -> Rank {
        self.rank
    }

    #[inline(always)]
    fn ranks(&self) -> usize {
        self.remotes.len()
    }

    #[inline(always)]
    fn cas(&self, at: At, expected: u64, new: u64, wake: Wake) -> Result<u64, FabricError> {
        self.counters.word_cas.bump();
        let (remote, offset) = self.at(at)?;
        self.fabric.cas(remote, offset, expected, new, wake)
    }

    #[inline(always)]
    fn start_add(&self, at: At, delta: u64, wake: Wake) -> Result<F::Pending, FabricError> {
        self.counters.word_adds.bump();
        let (remote, offset) = self.at(at)?;
        self.fabric.start_add(remote, offset, delta, wake)
    }

    #[inline(always)]
    fn finish(&self, pending: F::Pending) -> Result<u64, FabricError> {
        self.fabric.finish(pending)
    }

    fn find(&self, at: At) -> Option<F::Word> {
        self.fabric.find_word(self.remotes.get(at.rank)?, at.word.checked_mul(8)?)
    }

    #[inline(always)]
    fn cas_found(&self, word: &F::Word, expected: u64, new: u64) -> u64 {
        self.counters.word_cas.bump();
        word.cas(expected, new)
    }

    #[inline(always)]
    fn add_found(&self, word: &F::Word, delta: u64) -> u64 {
        self.counters.word_adds.bump();
        word.add(delta)
    }

    #[inline(always)]
    fn notify(&self, at: At, value: u64, wake: Wake) -> Result<(), FabricError> {
        self.counters.notifications.add(u64::from(at.rank != self.rank));
        let (remote, offset) = self.at(at)?;
        self.fabric.notify(remote, offset, value, wake)
    }

    #[inline(always)]
    fn read_own(&self, word: usize) -> Result<u64, FabricError> {
        self.fabric.word(&self.region, word.wrapping_mul(8))
    }

    #[inline(always)]
    fn wait(&self, word: usize, on: Awaited, until: impl Fn(u64) -> bool) -> Result<u64, FabricError> {
        self.wait_for(word, on, None, until)
    }

    fn wait_until(
        &self,
        word: usize,
        on: Awaited,
        deadline: Instant,
        until: impl Fn(u64) -> bool,
    ) -> Result<Option<u64>, FabricError> {
        let ends = |value| until(value) || Instant::now() >= deadline;
        Ok(Some(self.wait_for(word, on, Some(deadline), ends)?).filter(|&value| until(value)))
    }

    #[inline(always)]
    fn watches(&self, _: Rank) -> bool {
        self.fabric.watches()
    }

    fn watch(&self, at: At, awaited: Awaited, until: impl Fn(u64) -> bool) -> Result<u64, FabricError> {
        let ((remote, offset), call) = (self.at(at)?, self.waiting(at.word, true));
        self.fabric.watch(remote, Wait { rank: self.rank, call: &call, awaited, deadline: None }, || {
            let value = self.fabric.read_word(remote, offset)?;
            Ok(until(value).then_some(value))
        })
    }
}
