//! Errors of windows, with the window, the rank and the position.

use crate::array_error::{ArrayError, LayoutError};
use crate::{Assert, FabricError, Op, ValueName};
use std::panic::Location;
use transom_locks::Rank;

/// The reason why a call failed: on a window, an epoch of it, a value behind a lock, a global array, or all ranks of a
/// world. `?` converts a [`FabricError`] and the errors of the layers above ([`Error::other`]) into it, so that one
/// type serves a whole program.
///
/// # Examples
/// ```
/// let error = transom_windows::Error::OutOfBounds { window: 1, rank: 2, offset: 9, len: 4, size: 10 };
/// assert_eq!(error.to_string(), "window 1, rank 2: elements 9..13 are outside the 10 that it exposes");
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Elements outside the target's part.
    #[error("window {window}, rank {rank}: elements {offset}..{} are outside the {size} that it exposes", offset.saturating_add(*len))]
    OutOfBounds {
        /// The number of the window, in the order of creation by the job.
        window: u32,
        /// The target.
        rank: Rank,
        /// The first element.
        offset: usize,
        /// The number of elements.
        len: usize,
        /// The number of elements in the target's part.
        size: usize,
    },
    /// A target outside `0..size`.
    #[error("window {window}: there is no rank {rank}; ranks are 0 to {}", size.saturating_sub(1))]
    NoSuchRank {
        /// The window.
        window: u32,
        /// The rank named.
        rank: Rank,
        /// The number of ranks that share the window.
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
        /// The rank whose signal it is.
        rank: Rank,
        /// The signal named.
        signal: usize,
        /// The number of its signals.
        signals: usize,
    },
    /// A flag that does not exist.
    #[error("flags {flags}: there is no flag {flag} among its {len} flags, see World::flags")]
    NoSuchFlag {
        /// The number of the flags object, counted together with the windows.
        flags: u32,
        /// The flag named.
        flag: usize,
        /// The number of flags.
        len: usize,
    },
    /// A wait for one signal of an empty list.
    #[error("window {window}: a wait for no signal would never end; name at least one")]
    NoSignalNamed {
        /// The window.
        window: u32,
    },
    /// More memory than can be addressed, or elements without a size.
    #[error("{what} {window} of {len} elements of {element} bytes cannot be made: {why}")]
    Size {
        /// The object to be made: a window, or a mutex.
        what: &'static str,
        /// The object's number, or that of the first of an array.
        window: u32,
        /// The number of elements requested.
        len: usize,
        /// Bytes per element.
        element: usize,
        /// The reason.
        why: &'static str,
    },
    /// Ranks that make different windows, or values behind locks, in one collective call. Element types are compared by
    /// size and by name, without the name's path.
    #[error("{why}: all ranks must make the same windows and values, in the same order, with the same element types")]
    Mismatch {
        /// The first rank that makes another object than rank 0.
        rank: Rank,
        /// The objects, by rank.
        why: String,
    },
    /// An operation that is not defined for the elements: a bitwise or logical one on floats.
    #[error("window {window}, rank {rank}: {op:?} is not defined for elements of type {element}; see Atomic::supports")]
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
    /// A lock call out of order, too many ranks for the lock, or the death of an awaited peer.
    #[error("window {window}, lock of rank {rank}: {source}")]
    Lock {
        /// The window.
        window: u32,
        /// The target.
        rank: Rank,
        /// The cause.
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
        /// The cause.
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
        /// The cause.
        #[source]
        source: FabricError,
    },
    /// A buffer of the wrong length, for a section or the operands of a get_accumulate.
    #[error("window {window}, rank {rank}: the buffer has {buffer} elements, expected {needed}")]
    BufferLength {
        /// The window.
        window: u32,
        /// The target.
        rank: Rank,
        /// The length required, in elements.
        needed: usize,
        /// The buffer's length, in elements.
        buffer: usize,
    },
    /// A put of a section whose blocks overlap: the result would be undefined.
    #[error("window {window}, rank {rank}: element {offset} is in two blocks of the section to put")]
    SectionOverlap {
        /// The window.
        window: u32,
        /// The target.
        rank: Rank,
        /// An element that is in two blocks.
        offset: usize,
    },
    /// Memory that cannot be viewed as elements of another type.
    #[error("window {window}, rank {rank}: cannot view the memory from byte {offset} on as these elements: {why}")]
    View {
        /// The window.
        window: u32,
        /// The target.
        rank: Rank,
        /// The byte at which the view was to begin.
        offset: usize,
        /// The reason.
        why: &'static str,
    },
    /// The memory of a rank is not shared with this one, as the call requires.
    #[error("window {window}, rank {rank}: its memory is not shared with this rank; use put and get in an epoch")]
    NotShared {
        /// The window.
        window: u32,
        /// The rank whose memory it is.
        rank: Rank,
    },
    /// An assertion that does not hold, or that the call does not accept.
    #[error("window {window}, {call} of rank {rank}: {asserted:?} was asserted, but {why}")]
    Assertion {
        /// The window.
        window: u32,
        /// The calling rank.
        rank: Rank,
        /// The call.
        call: &'static str,
        /// The assertion.
        asserted: Assert,
        /// The fact that contradicts it.
        why: &'static str,
    },
    /// All slots for attached memory are in use.
    #[error(
        "window {window}, rank {rank}: all {slots} slots for attached memory are in use; detach some, or make the window with more"
    )]
    NoSlot {
        /// The window.
        window: u32,
        /// This rank.
        rank: Rank,
        /// The number of its slots.
        slots: usize,
    },
    /// An address whose memory its owner has detached.
    #[error(
        "window {window}, rank {rank}: the memory at this address, slot {slot}, has been detached; get a new address from its owner"
    )]
    Detached {
        /// The window.
        window: u32,
        /// The rank that had attached it.
        rank: Rank,
        /// The slot.
        slot: usize,
    },
    /// An address that is used on another window or rank than its own, or one that `attach` never returned.
    #[error(
        "window {window}: the address of rank {rank}, slot {slot}, is of another window or rank, or was never returned by attach"
    )]
    NotHere {
        /// The window.
        window: u32,
        /// The rank that the address names.
        rank: Rank,
        /// The slot that the address names.
        slot: usize,
    },
    /// A call on a global array named elements that the array does not have.
    #[error(transparent)]
    Array(#[from] ArrayError),
    /// A layout of an array that is impossible.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A collective call that is not on a window.
    #[error("{call}: {source}")]
    Collective {
        /// The call.
        call: &'static str,
        /// The cause.
        #[source]
        source: FabricError,
    },
    /// A call of a provider, outside any window.
    #[error(transparent)]
    Provider(#[from] FabricError),
    /// An error of a layer above windows, such as the start of a job; see [`downcast_ref`](Self::downcast_ref).
    #[error(transparent)]
    Other(Other),
    /// One of several requests that were waited for together failed: the first in their order.
    #[error("request {index} (from 0) of those waited for failed: {source}")]
    Request {
        /// The index of the request among those waited for.
        index: usize,
        /// The error of the request.
        source: Box<Error>,
    },
    /// A failed call on a mutex or rw_lock: the thread holds it already, a rank died that the call needs, or the
    /// provider failed.
    #[error("{value}: {}", crate::value_name::why(source))]
    Value {
        /// The lock.
        value: Box<ValueName>,
        /// The cause.
        #[source]
        source: transom_locks::Error<FabricError>,
    },
    /// A holder of a mutex or rw_lock panicked while it could write to the value. The lock was released;
    /// [`GlobalMutex::lock_ignoring_poison`](crate::GlobalMutex::lock_ignoring_poison) takes it regardless.
    #[error(
        "{value} is poisoned: a holder panicked, so the value may be half changed; repair it under lock_ignoring_poison (write_ignoring_poison), then call clear_poison"
    )]
    Poisoned {
        /// The lock.
        value: Box<ValueName>,
    },
}

impl Error {
    /// Wraps the error of a layer above windows.
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

    /// [`other`](Self::other) for an error that may be due to the loss of a rank.
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

    /// The error that [`other`](Self::other) wrapped, if it is of type `E`. For an [`Error::Request`], the error that the
    /// request's error wraps.
    pub fn downcast_ref<E: std::error::Error + 'static>(&self) -> Option<&E> {
        match self {
            Error::Other(other) => other.error.downcast_ref(),
            Error::Request { source, .. } => source.downcast_ref(),
            _ => None,
        }
    }

    /// The rank whose death, leaving or abandoning made the call fail, if that is the reason.
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
            Error::Request { source, .. } => return source.lost_rank(),
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

/// An error of a layer above windows, displayed as itself. Its `Debug`, which a `main` that returns it prints, adds the
/// line where it became an [`Error`], usually that of the `?` after the call.
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
            Error::Request { index, source } => {
                write!(f, "request {index} (from 0) of those waited for failed: {source:?}")
            }
            error => std::fmt::Display::fmt(error, f),
        }
    }
}

/// Makes `Debug` of an error print its message instead of its fields, for a `main` that returns it.
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

/// Makes an error of another crate readable in a `main`, and convertible to [`Error`] by `?`.
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
