//! The value behind a lock: how it is made, locked, read, written back and poisoned. Its handle and its guards share
//! this.

use crate::segment::{Segment, SegmentError, Size};
use crate::words::{Purpose, Words, element};
use crate::{Error, Fabric, FabricError, ValueName};
use bytemuck::Pod;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use transom_locks::{Awaited, Held, Mode, PassiveLock, QueuePosition, Rank};

/// A value in the memory of one rank, with the lock that protects it.
pub(crate) struct ValueLock<T, F: Fabric> {
    pub id: u32,
    pub home: Rank,
    /// Offset of the value in the home rank's bytes. The poison mark follows it, a byte that is nonzero if the value is
    /// poisoned, so that one read gets both.
    at: usize,
    family: Arc<Family<F>>,
    value: PhantomData<fn() -> T>,
}

/// The locks of at most one value per rank.
struct Family<F: Fabric> {
    data: Arc<Segment<F>>,
    lock: PassiveLock<Arc<Segment<F>>>,
    kind: Kind,
    /// The number of the first value of the array; `None` for a single value.
    first: Option<u32>,
}

/// The kind of object that the program has made, for errors.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Mutex,
    RwLock,
}

impl Kind {
    fn one(self) -> &'static str {
        match self {
            Kind::Mutex => "mutex",
            Kind::RwLock => "rw_lock",
        }
    }

    fn many(self) -> &'static str {
        match self {
            Kind::Mutex => "mutexes",
            Kind::RwLock => "rw_locks",
        }
    }
}

/// The lock of a value, held by a thread.
pub(crate) type HeldLock<'l, F> = Held<'l, Arc<Segment<F>>>;

/// The values that one call makes.
#[derive(Clone, Copy)]
pub(crate) enum ValueSet {
    /// One value, in the memory of this rank.
    Single(Rank),
    /// An array of values, dealt to the ranks round-robin.
    RoundRobin(usize),
}

impl ValueSet {
    fn len(self) -> usize {
        match self {
            ValueSet::Single(_) => 1,
            ValueSet::RoundRobin(len) => len,
        }
    }

    fn home(self, index: usize, ranks: usize) -> Rank {
        match self {
            ValueSet::Single(home) => home,
            ValueSet::RoundRobin(_) => index % ranks,
        }
    }

    /// The number of values at a rank.
    fn at(self, rank: Rank, ranks: usize) -> usize {
        match self {
            ValueSet::Single(home) => usize::from(home == rank),
            ValueSet::RoundRobin(len) => len.saturating_sub(rank).div_ceil(ranks),
        }
    }
}

impl<T: Pod, F: Fabric> ValueLock<T, F> {
    /// Distance between two values of a rank, in bytes: no two share a cache line.
    const STRIDE: Option<usize> = (size_of::<T>() + 1).checked_next_multiple_of(64);

    /// Collective: makes values in one segment, numbered from `id` on. Each home rank provides the initial values of
    /// its own.
    pub fn make(
        fabric: &F,
        id: u32,
        kind: Kind,
        which: ValueSet,
        mut value: impl FnMut(usize) -> T,
    ) -> Result<Vec<Self>, Error> {
        let (rank, ranks, size, len) = (fabric.rank(), fabric.size(), size_of::<T>(), which.len());
        let (words, families) = (Words::new(ranks).locks(), len.div_ceil(ranks));
        let (what, first) = match which {
            ValueSet::Single(_) => (kind.one(), None),
            ValueSet::RoundRobin(_) => (kind.many(), Some(id)),
        };
        let lost = |source| Error::Collective { call: what, source };
        let wrong = |home, source| Error::Value { value: name(kind, id, first, home), source };
        let failed = |source| match (source, which) {
            (SegmentError::Size(_), ValueSet::Single(home)) if home >= ranks => {
                wrong(home, transom_locks::Error::NoSuchRank { rank: home, ranks })
            }
            (SegmentError::Size(why), _) => Error::Size { what, window: id, len, element: size, why },
            (SegmentError::Mismatch { rank, why }, _) => Error::Mismatch { rank, why },
            (SegmentError::Fabric(source) | SegmentError::Late(source), _) => lost(source),
        };
        let bytes = match which {
            ValueSet::Single(home) if home >= ranks => Err("it has no home rank"),
            _ if size == 0 => Err("a value needs at least 1 byte; for a lock alone, use a u8"),
            _ => Self::STRIDE.and_then(|stride| stride.checked_mul(which.at(rank, ranks))).ok_or("too many bytes"),
        };
        let words_here = families.checked_mul(words).filter(|words| *words <= isize::MAX as usize / 16);
        let size_here =
            bytes.and_then(|bytes| words_here.map(|_| Size { bytes, ..Size::default() }).ok_or("too many locks"));
        // All ranks must make the same object, of the same type, at the same home ranks.
        let (purpose, rest) = match which {
            ValueSet::Single(home) => (Purpose::Value, home as u64),
            ValueSet::RoundRobin(len) => (Purpose::Values, len as u64),
        };
        let element = element::<T>();
        let all_words = words_here.unwrap_or_default();
        let data =
            Segment::allocate(fabric, purpose, id, (&element, rest), all_words, size_here, None).map_err(failed)?;
        let (data, stride) = (Arc::new(data), Self::STRIDE.unwrap_or_default());
        let mut stored = Ok(());
        for index in (0..len).filter(|&index| which.home(index, ranks) == rank) {
            let (at, value) = (data.base + index / ranks * stride, value(index));
            stored = stored.and(fabric.store(&data.region, at, bytemuck::bytes_of(&value)));
        }
        // No rank goes on before all home ranks have stored their values.
        let told = fabric.all_gather(&[u8::from(stored.is_err())]);
        stored.map_err(lost)?;
        if let Some(home) = told.map_err(lost)?.iter().position(|failed| failed[..] != [0]) {
            return Err(lost(FabricError::GivenUp { rank: home }));
        }
        let mut all = Vec::with_capacity(len);
        for start in (0..len).step_by(ranks) {
            let lock = PassiveLock::new(data.clone(), start / ranks * words);
            let lock = lock.map_err(|source| wrong(which.home(start, ranks), source))?;
            let family = Arc::new(Family { data: data.clone(), lock, kind, first });
            all.extend((start..len.min(start + ranks)).map(|index| ValueLock {
                id: id.wrapping_add(index as u32),
                home: which.home(index, ranks),
                at: index / ranks * stride,
                family: family.clone(),
                value: PhantomData,
            }));
        }
        tracing::debug!(id, rank, len, bytes = size, "{what} created");
        Ok(all)
    }
}

fn name(kind: Kind, id: u32, first: Option<u32>, home: Rank) -> Box<ValueName> {
    Box::new(ValueName { what: kind.one(), id, index: first.map(|first| id.wrapping_sub(first) as usize), home })
}

impl<T: Pod, F: Fabric> ValueLock<T, F> {
    /// Takes the lock.
    #[inline(always)]
    pub fn acquire(&self, mode: Mode) -> Result<HeldLock<'_, F>, Error> {
        match self.family.lock.acquire(self.home, mode) {
            Ok((held, ahead)) => {
                self.acquired(mode, ahead);
                Ok(held)
            }
            Err(source) => Err(self.lock_error(source)),
        }
    }

    /// [`acquire`](Self::acquire), if that needs no waiting.
    pub fn try_acquire(&self, mode: Mode) -> Result<Option<HeldLock<'_, F>>, Error> {
        let acquired = self.family.lock.try_acquire(self.home, mode).map_err(|source| self.lock_error(source))?;
        match &acquired {
            Some(_) => self.acquired(mode, QueuePosition::default()),
            None => self.check_seldom()?,
        }
        Ok(acquired)
    }

    /// [`acquire`](Self::acquire) with a time limit.
    pub fn acquire_for(&self, mode: Mode, limit: Duration) -> Result<Option<HeldLock<'_, F>>, Error> {
        let acquired =
            self.family.lock.acquire_for(self.home, mode, limit).map_err(|source| self.lock_error(source))?;
        match acquired {
            Some((held, ahead)) => {
                self.acquired(mode, ahead);
                Ok(Some(held))
            }
            None => self.check_seldom().map(|()| None),
        }
    }

    #[inline(always)]
    fn acquired(&self, mode: Mode, ahead: QueuePosition) {
        self.data().counters.locks.bump();
        if ahead != QueuePosition::default() {
            waited(self.id, mode, ahead.exclusive, ahead.readers);
        }
    }

    /// Checks for a death, as a wait for the lock would. That all other ranks have left is no error here, since another
    /// thread of this rank may hold the lock.
    fn check_seldom(&self) -> Result<(), Error> {
        match self.data().check_seldom(|fabric| fabric.check_peers(Awaited::Anyone)) {
            Err(FabricError::PeerLeft { .. }) | Ok(()) => Ok(()),
            Err(lost) => Err(self.lock_error(lost.into())),
        }
    }

    /// The words of a small value and its mark, if loads and stores reach the home rank's memory.
    #[inline(always)]
    pub fn words(&self) -> Option<&[AtomicU64]> {
        match Value::<T>::IS_SMALL {
            true => self.data().fabric.words(self.remote(), self.place(0), Value::<T>::WORDS),
            false => None,
        }
    }

    /// Reads the value while the lock is held, through its [`words`](Self::words) if they are given.
    #[allow(clippy::needless_range_loop, reason = "constant indices: the words stay in registers")]
    #[inline(always)]
    pub fn read(&self, words: Option<&[AtomicU64]>) -> Result<Value<T>, Error> {
        let mut value = Value::<T>::EMPTY;
        match words {
            // Word by word into registers: a load wider than the stores just made would stall on them.
            Some(words) => {
                self.data().counters.gets.bump();
                for i in 0..Value::<T>::WORDS {
                    value.small[i] = words[i].load(Relaxed);
                }
            }
            None => {
                let read = self.read_bytes()?;
                value.copy_small(&read);
                value.large = read.large;
            }
        }
        Ok(value)
    }

    #[cold]
    #[inline(never)]
    fn read_bytes(&self) -> Result<Value<T>, Error> {
        let mut value = Value::<T>::zeroed();
        self.get(0, value.with_mark())?;
        Ok(value)
    }

    #[inline]
    pub fn get(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        self.data().counters.gets.bump();
        self.data().fabric.get(self.remote(), self.place(offset), into).map_err(|source| self.error(source))
    }

    #[inline]
    pub fn put(&self, offset: usize, source: &[u8]) -> Result<(), Error> {
        self.data().counters.puts.bump();
        self.data().fabric.put(self.remote(), self.place(offset), source).map_err(|source| self.error(source))
    }

    /// Writes the value back, if there is one, and marks it if it is poisoned; the next holder sees both. Uses the
    /// value's [`words`](Self::words) if they are given.
    #[allow(clippy::needless_range_loop, reason = "constant indices: the words stay in registers")]
    #[inline(always)]
    pub fn store(&self, words: Option<&[AtomicU64]>, value: Option<Value<T>>, poisoned: bool) -> Result<(), Error> {
        match (words, &value) {
            (_, None) if !poisoned => Ok(()),
            // The release of the lock orders these stores. No word of the value may contain the mark, which can change
            // without the lock.
            (Some(words), Some(value)) if !poisoned && size_of::<T>().is_multiple_of(8) => {
                self.data().counters.puts.bump();
                for i in 0..size_of::<T>() / 8 {
                    words[i].store(value.small[i], Relaxed);
                }
                Ok(())
            }
            _ => self.store_bytes(value, poisoned),
        }
    }

    #[inline(never)]
    fn store_bytes(&self, value: Option<Value<T>>, poisoned: bool) -> Result<(), Error> {
        // The mark goes first: if the value does not arrive, the mark reports that.
        let marked = if poisoned { self.put(size_of::<T>(), &[1]) } else { Ok(()) };
        let stored = value.as_ref().map_or(Ok(()), |value| self.put(0, bytemuck::bytes_of::<T>(value)));
        let order = || self.data().fabric.order(self.remote()).map_err(|source| self.error(source));
        let ordered = if poisoned || value.is_some() { order() } else { Ok(()) };
        marked.and(stored).and(ordered)
    }
}

impl<T, F: Fabric> ValueLock<T, F> {
    /// Releases the lock.
    #[inline(always)]
    pub fn release(&self, held: HeldLock<'_, F>) -> Result<(), Error> {
        match held.release() {
            Ok(()) => Ok(()),
            Err(source) => Err(self.lock_error(source)),
        }
    }

    /// Releases the lock of a value that could not be written; returns the error `unwritten`.
    #[cold]
    #[inline(never)]
    pub fn release_unwritten(&self, held: HeldLock<'_, F>, unwritten: Error) -> Result<(), Error> {
        let _ = self.release(held);
        Err(unwritten)
    }

    #[inline(always)]
    pub fn data(&self) -> &Segment<F> {
        &self.family.data
    }

    /// Offset of a byte of the value in its home rank's region.
    #[inline(always)]
    fn place(&self, offset: usize) -> usize {
        self.data().base + self.at + offset
    }

    #[inline(always)]
    pub fn remote(&self) -> &F::Remote {
        &self.data().remotes[self.home]
    }

    /// Releases the lock of a value that could not be read because of `unread`, or, if that is `None`, because it is
    /// poisoned.
    #[cold]
    #[inline(never)]
    pub fn refused(&self, held: HeldLock<'_, F>, unread: Option<Error>) -> Error {
        let released = self.release(held).err();
        unread.or(released).unwrap_or_else(|| Error::Poisoned { value: self.name() })
    }

    #[cold]
    #[inline(never)]
    pub fn error(&self, source: FabricError) -> Error {
        Error::Value { value: self.name(), source: source.into() }
    }

    #[cold]
    #[inline(never)]
    fn lock_error(&self, source: transom_locks::Error<FabricError>) -> Error {
        Error::Value { value: self.name(), source: self.data().cause(source) }
    }

    #[cold]
    pub fn name(&self) -> Box<ValueName> {
        name(self.family.kind, self.id, self.family.first, self.home)
    }
}

#[cold]
fn waited(id: u32, mode: Mode, behind: Option<Rank>, readers: u64) {
    tracing::trace!(id, ?mode, ?behind, readers, "lock granted after waiting");
}

impl<F: Fabric> Drop for Family<F> {
    /// A leaked guard keeps its lock, which no call could release after this.
    fn drop(&mut self) {
        self.data.fail_unless_settled(&mut self.lock);
        if !self.lock.release_held_mut() {
            self.data.leave_unended();
        }
    }
}

/// A copy of the value with its mark behind it, so that one read gets both. Values may be larger than a stack: larger
/// ones than a few words are on the heap.
pub(crate) struct Value<T> {
    small: [u64; SMALL],
    /// `None` for a small value. A value has at least one byte, so room for two values also holds the mark.
    large: Option<Box<[T; 2]>>,
}

/// Words available for a value and its mark without heap memory.
const SMALL: usize = 9;

impl<T: Pod> Value<T> {
    const IS_SMALL: bool = size_of::<T>() < 8 * SMALL && align_of::<T>() <= align_of::<u64>();
    /// Words that hold the value and its mark, if the value is small.
    const WORDS: usize = size_of::<T>() / 8 + 1;

    /// A value without heap memory, even if the type is large.
    const EMPTY: Self = Value { small: [0; SMALL], large: None };

    fn zeroed() -> Self {
        Value { small: [0; SMALL], large: if Self::IS_SMALL { None } else { Some(bytemuck::zeroed_box()) } }
    }

    /// Moves the value out; it must not be read here afterwards. Words that are always 0 are not moved.
    #[inline(always)]
    pub fn take(&mut self) -> Self {
        let mut taken = Value { large: self.large.take(), ..Self::EMPTY };
        taken.copy_small(self);
        taken
    }

    #[allow(clippy::needless_range_loop, reason = "constant indices: the words stay in registers")]
    #[inline(always)]
    fn copy_small(&mut self, from: &Self) {
        for i in 0..if Self::IS_SMALL { Self::WORDS } else { 0 } {
            self.small[i] = from.small[i];
        }
    }

    /// The bytes of the value and its mark.
    fn with_mark(&mut self) -> &mut [u8] {
        let bytes = match &mut self.large {
            None => bytemuck::cast_slice_mut(&mut self.small),
            Some(large) => bytemuck::cast_slice_mut(&mut large[..]),
        };
        &mut bytes[..=size_of::<T>()]
    }

    #[inline(always)]
    pub fn is_marked(&self) -> bool {
        let mark = size_of::<T>();
        if Self::IS_SMALL {
            return self.small[mark / 8].to_ne_bytes()[mark % 8] != 0;
        }
        self.large.as_ref().is_some_and(|large| bytemuck::cast_slice::<T, u8>(&large[..])[mark] != 0)
    }
}

impl<T: Pod> Deref for Value<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        if let (false, Some(large)) = (Self::IS_SMALL, &self.large) {
            return &large[0];
        }
        bytemuck::from_bytes(&bytemuck::cast_slice(&self.small)[..size_of::<T>()])
    }
}

impl<T: Pod> DerefMut for Value<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        if let (false, Some(large)) = (Self::IS_SMALL, &mut self.large) {
            return &mut large[0];
        }
        bytemuck::from_bytes_mut(&mut bytemuck::cast_slice_mut(&mut self.small)[..size_of::<T>()])
    }
}
