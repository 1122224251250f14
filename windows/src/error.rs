//! Errors of windows: which window, which rank, where.

use crate::array_error::{ArrayError, LayoutError};
use crate::{Assert, FabricError, Op, ValueName};
use std::panic::Location;
use transom_locks::Rank;

/// Why a call failed, on a window, an epoch of it, a value behind a lock, a global array, or all ranks of a world. `?` also
/// makes it of a [`FabricError`], and of the errors of the layers above ([`Error::other`]), so that one type serves a whole
/// program.
///
/// # Examples
/// ```
/// let error = transom_windows::Error::OutOfBounds { window: 1, rank: 2, offset: 9, len: 4, size: 10 };
/// assert_eq!(error.to_string(), "window 1, rank 2: elements 9..13 are outside the 10 that it exposes");
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Elements outside what the target exposes.
    #[error("window {window}, rank {rank}: elements {offset}..{} are outside the {size} that it exposes", offset.saturating_add(*len))]
    OutOfBounds {
        /// The number of the window, in the order in which the job made them.
        window: u32,
        /// The target.
        rank: Rank,
        /// The first element.
        offset: usize,
        /// How many.
        len: usize,
        /// How many elements the target exposes.
        size: usize,
    },
    /// A target outside `0..size`.
    #[error("window {window}: there is no rank {rank}; ranks are 0 to {}", size.saturating_sub(1))]
    NoSuchRank {
        /// The window.
        window: u32,
        /// The rank named.
        rank: Rank,
        /// How many ranks share the window.
        size: usize,
    },
    /// A target that the `start` or `lock_ranks` of the epoch did not name.
    #[error(
        "window {window}: this epoch does not reach rank {rank}; name it in the `start` or `lock_ranks` that opens it"
    )]
    NotStarted {
        /// The window.
        window: u32,
        /// The rank named.
        rank: Rank,
    },
    /// A signal word that the rank does not have.
    #[error("window {window}, rank {rank}: there is no signal {signal}; it has {signals}, see allocate_with_signals")]
    NoSuchSignal {
        /// The window.
        window: u32,
        /// Whose.
        rank: Rank,
        /// The signal named.
        signal: usize,
        /// How many it has.
        signals: usize,
    },
    /// A flag that there is not.
    #[error("flags {flags}: there is no flag {flag}; there are {len}, see World::flags")]
    NoSuchFlag {
        /// The number of the flags, which counts with the windows.
        flags: u32,
        /// The flag named.
        flag: usize,
        /// How many there are.
        len: usize,
    },
    /// A wait for one of no signals.
    #[error("window {window}: a wait for one of no signals would never end; name one at least")]
    NoSignalNamed {
        /// The window.
        window: u32,
    },
    /// More memory than can be addressed, or none that can be divided into elements.
    #[error("{what} {window} of {len} elements of {element} bytes cannot be made: {why}")]
    Size {
        /// What was to be made: a window, or a mutex.
        what: &'static str,
        /// Its number, or that of the first of an array.
        window: u32,
        /// Elements asked for.
        len: usize,
        /// Bytes each.
        element: usize,
        /// What is wrong with that.
        why: &'static str,
    },
    /// Ranks that make different windows, or values behind locks, in one collective call. Types of elements are compared by their size
    /// and their name, without its paths.
    #[error("{why}: all ranks make the same windows and values, in the same order, of elements of the same type")]
    Mismatch {
        /// The first rank that makes another one than rank 0.
        rank: Rank,
        /// Who makes what.
        why: String,
    },
    /// An operation that means nothing on the elements: a bitwise or logical one on floats.
    #[error("window {window}, rank {rank}: {op:?} means nothing on elements of type {element}")]
    Operation {
        /// The window.
        window: u32,
        /// The target.
        rank: Rank,
        /// The operation.
        op: Op,
        /// The type of the elements.
        element: &'static str,
    },
    /// A lock call out of turn, too many ranks for the lock, or a peer that died while it was waited for.
    #[error("window {window}, lock of rank {rank}: {source}")]
    Lock {
        /// The window.
        window: u32,
        /// The target.
        rank: Rank,
        /// What was wrong.
        #[source]
        source: transom_locks::Error<FabricError>,
    },
    /// The synchronisation of all ranks failed.
    #[error("window {window}, {call}: {source}")]
    Sync {
        /// The window.
        window: u32,
        /// The call.
        call: &'static str,
        /// What was wrong.
        #[source]
        source: transom_locks::Error<FabricError>,
    },
    /// The provider failed.
    #[error("window {window}, rank {rank}: {source}")]
    Fabric {
        /// The window.
        window: u32,
        /// The target, or this rank if the call has none.
        rank: Rank,
        /// What was wrong.
        #[source]
        source: FabricError,
    },
    /// A buffer that is not as long as what it is for: a section, or the operands of a get_accumulate.
    #[error("window {window}, rank {rank}: a buffer of {buffer} elements, where {needed} are needed")]
    BufferLength {
        /// The window.
        window: u32,
        /// The target.
        rank: Rank,
        /// How many elements it must have.
        needed: usize,
        /// How many it has.
        buffer: usize,
    },
    /// A put of a section whose blocks overlap: which of them would stay is not defined.
    #[error("window {window}, rank {rank}: element {offset} is in two blocks of the section to put")]
    SectionOverlap {
        /// The window.
        window: u32,
        /// The target.
        rank: Rank,
        /// An element of two blocks.
        offset: usize,
    },
    /// Memory that cannot be viewed as elements of another type.
    #[error("window {window}, rank {rank}: there is no view of such elements from byte {offset} on: {why}")]
    View {
        /// The window.
        window: u32,
        /// The target.
        rank: Rank,
        /// The byte at which the view was to begin.
        offset: usize,
        /// What is wrong.
        why: &'static str,
    },
    /// The memory of a rank that is not shared with this one, where that is needed.
    #[error("window {window}, rank {rank}: its memory is not shared with this rank; use put and get in an epoch")]
    NotShared {
        /// The window.
        window: u32,
        /// Whose memory.
        rank: Rank,
    },
    /// An assertion that does not hold, or means nothing to the call.
    #[error("window {window}, {call} of rank {rank}: {asserted:?} was asserted, but {why}")]
    Assertion {
        /// The window.
        window: u32,
        /// Who called.
        rank: Rank,
        /// The call.
        call: &'static str,
        /// What was asserted.
        asserted: Assert,
        /// What is otherwise.
        why: &'static str,
    },
    /// No more memory can be attached at the same time.
    #[error("window {window}, rank {rank}: its {slots} slots for attached memory are taken; detach some, or make more")]
    NoSlot {
        /// The window.
        window: u32,
        /// This rank.
        rank: Rank,
        /// How many it has.
        slots: usize,
    },
    /// An address whose memory its owner has detached.
    #[error("window {window}, rank {rank}: what was attached in slot {slot} under this address has been detached")]
    Detached {
        /// The window.
        window: u32,
        /// Who had attached it.
        rank: Rank,
        /// Where.
        slot: usize,
    },
    /// An address of another window or another rank than it is used on, or one that nobody made.
    #[error("window {window}: an address of rank {rank}, slot {slot}, does not lead anywhere here")]
    NotHere {
        /// The window.
        window: u32,
        /// The rank that the address names.
        rank: Rank,
        /// The slot that it names.
        slot: usize,
    },
    /// A call on a global array named what the array does not have.
    #[error(transparent)]
    Array(#[from] ArrayError),
    /// There is no such layout of an array.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A call of all ranks, not on a window.
    #[error("{call}: {source}")]
    Collective {
        /// The call.
        call: &'static str,
        /// What was wrong.
        #[source]
        source: FabricError,
    },
    /// A call of a provider, outside any window.
    #[error(transparent)]
    Provider(#[from] FabricError),
    /// An error of a layer above windows, such as starting a job; [`downcast_ref`](Self::downcast_ref) tells which.
    #[error(transparent)]
    Other(Other),
    /// A call on a mutex or rw_lock: of a thread that has it already, or that needs a rank which died; or the provider failed.
    #[error("{value}: {}", crate::value_name::why(source))]
    Value {
        /// Which.
        value: Box<ValueName>,
        /// What was wrong.
        #[source]
        source: transom_locks::Error<FabricError>,
    },
    /// A holder of a mutex or rw_lock panicked while it could write to its value. The lock was released;
    /// [`GlobalMutex::lock_ignoring_poison`](crate::GlobalMutex::lock_ignoring_poison) takes it all the same.
    #[error("{value} is poisoned, as who held it panicked: its value may be half changed")]
    Poisoned {
        /// Which.
        value: Box<ValueName>,
    },
}

impl Error {
    /// The error of a layer above windows, as an [`Error`].
    ///
    /// # Examples
    /// ```
    /// use transom_windows::Error;
    /// let error = Error::other(std::io::Error::other("no network"));
    /// assert_eq!(error.to_string(), "no network");
    /// assert!(error.downcast_ref::<std::io::Error>().is_some());
    /// ```
    #[track_caller]
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Error::other_lost(error, None)
    }

    /// As [`other`](Self::other), of an error that may have its cause in the loss of a rank.
    ///
    /// # Examples
    /// ```
    /// use transom_windows::Error;
    /// let error = Error::other_lost("nobody answers", Some(3));
    /// assert_eq!((error.to_string().as_str(), error.lost_rank()), ("nobody answers", Some(3)));
    /// ```
    #[track_caller]
    pub fn other_lost(error: impl Into<Box<dyn std::error::Error + Send + Sync>>, rank: Option<Rank>) -> Self {
        Error::Other(Other { error: error.into(), lost: rank, at: Location::caller() })
    }

    /// What [`other`](Self::other) made this of, if it is of that type.
    pub fn downcast_ref<E: std::error::Error + 'static>(&self) -> Option<&E> {
        match self {
            Error::Other(other) => other.error.downcast_ref(),
            _ => None,
        }
    }

    /// The rank whose death, leaving or giving up made the call fail, if that is why.
    ///
    /// # Examples
    /// ```
    /// use transom_windows::{Error, FabricError};
    /// let error = Error::Fabric { window: 0, rank: 1, source: FabricError::PeerDied { rank: 3 } };
    /// assert_eq!(error.lost_rank(), Some(3));
    /// ```
    pub fn lost_rank(&self) -> Option<Rank> {
        let source = match self {
            Error::Sync { source: transom_locks::Error::GivenUp { rank }, .. } => return Some(*rank),
            Error::Other(other) => return other.lost,
            Error::Lock { source: transom_locks::Error::Network(source), .. }
            | Error::Value { source: transom_locks::Error::Network(source), .. }
            | Error::Sync { source: transom_locks::Error::Network(source), .. }
            | Error::Fabric { source, .. }
            | Error::Collective { source, .. }
            | Error::Provider(source) => source,
            _ => return None,
        };
        source.lost_rank()
    }
}

/// An error of a layer above windows, which reads as that. Its `Debug`, which a `main` that returns it prints, also tells the line where
/// it became an [`Error`], most often that of the `?` behind the call.
pub struct Other {
    error: Box<dyn std::error::Error + Send + Sync>,
    lost: Option<Rank>,
    at: &'static Location<'static>,
}

impl std::fmt::Display for Other {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Other {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl std::fmt::Debug for Other {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self} ({}:{})", self.at.file(), self.at.line())
    }
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Other(other) => std::fmt::Debug::fmt(other, f),
            error => std::fmt::Display::fmt(error, f),
        }
    }
}

/// Makes the `Debug` of an error, which a `main` that returns it prints, its message and not its fields.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_is_message {
    ($($error:ty),* $(,)?) => {$(
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    )*};
}

/// Makes an error of another crate readable in a `main` and convertible by `?` to [`Error`].
#[doc(hidden)]
#[macro_export]
macro_rules! joins_error {
    ($($error:ty),* $(,)?) => {
        $crate::debug_is_message!($($error),*);
        $(impl From<$error> for $crate::Error {
            #[track_caller]
            fn from(error: $error) -> Self {
                $crate::Error::other(error)
            }
        })*
    };
}

debug_is_message!(ArrayError, LayoutError, FabricError);
