//! Names of a message: its receiver, its source and its tag.

use std::fmt;
use std::marker::PhantomData;
use transom_locks::Rank;

/// Distinguishes messages between two ranks, and fixes their element type. A program that uses one `Tag` constant at
/// both ends cannot disagree on the type.
///
/// # Examples
/// ```
/// use transom::messages::Tag;
/// const HALO: Tag<f64> = Tag::new(1);
/// assert_eq!(HALO.number(), 1);
/// ```
/// A message of zero-sized elements has a length of 0, whatever the number of elements sent:
/// ```
/// use transom::messages::Tag;
/// const READY: Tag<()> = Tag::new(2);
/// let world = transom::init()?;
/// world.send(0, READY, &[(); 3])?;
/// assert_eq!(world.recv(0, READY)?.1.len, 0);
/// # Ok::<(), transom::Error>(())
/// ```
pub struct Tag<T>(u32, PhantomData<fn(T) -> T>);

/// The tags that a receive takes: one, or any. A receive of any tag interprets every message as elements of type `T`.
///
/// # Examples
/// ```
/// use transom::messages::{Tag, Tags};
/// let one: Tags<u8> = Tag::new(7).into();
/// assert_eq!((one.number(), Tag::<u8>::any().number()), (Some(7), None));
/// ```
pub struct Tags<T>(Option<u32>, PhantomData<fn(T) -> T>);

impl<T> Tag<T> {
    /// Makes the tag with this number.
    pub const fn new(number: u32) -> Self {
        Tag(number, PhantomData)
    }

    /// Matches any tag, in receives.
    pub const fn any() -> Tags<T> {
        Tags(None, PhantomData)
    }

    /// Returns the number of the tag.
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl<T> Tags<T> {
    /// Returns the number of the tag; `None` for any tag.
    pub const fn number(self) -> Option<u32> {
        self.0
    }
}

impl<T> Clone for Tag<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Tag<T> {}

impl<T> fmt::Debug for Tag<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tag({})", self.0)
    }
}

impl<T> Clone for Tags<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Tags<T> {}

impl<T> fmt::Debug for Tags<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(number) => write!(f, "Tag({number})"),
            None => f.write_str("any tag"),
        }
    }
}

impl<T> From<Tag<T>> for Tags<T> {
    fn from(tag: Tag<T>) -> Self {
        Tags(Some(tag.0), PhantomData)
    }
}

/// The source of a receive.
///
/// # Examples
/// ```
/// use transom::messages::Source;
/// assert_eq!(Source::from(3), Source::Rank(3));
/// assert_eq!(Source::from(0_usize.checked_sub(1)), Source::None); // beyond the first rank
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// Messages of this rank only.
    Rank(Rank),
    /// Messages of any rank, the first that matches.
    Any,
    /// No rank: the receive ends at once without elements, as one from beyond an edge of a grid (`MPI_PROC_NULL`).
    None,
}

/// The receiver of a message.
///
/// # Examples
/// ```
/// use transom::messages::Peer;
/// assert_eq!((Peer::from(3), Peer::from(None)), (Peer::Rank(3), Peer::None));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Peer {
    /// The rank with this number.
    Rank(Rank),
    /// No rank: the message is dropped, as one to beyond an edge of a grid (`MPI_PROC_NULL`).
    None,
}

impl From<Rank> for Source {
    fn from(rank: Rank) -> Self {
        Source::Rank(rank)
    }
}

impl From<Option<Rank>> for Source {
    fn from(rank: Option<Rank>) -> Self {
        rank.map_or(Source::None, Source::Rank)
    }
}

impl From<Rank> for Peer {
    fn from(rank: Rank) -> Self {
        Peer::Rank(rank)
    }
}

impl From<Option<Rank>> for Peer {
    fn from(rank: Option<Rank>) -> Self {
        rank.map_or(Peer::None, Peer::Rank)
    }
}

/// Source, tag and length of a message.
///
/// # Examples
/// ```
/// use transom::messages::{Source, Tag};
/// let world = transom::init()?;
/// let (nothing, status) = world.recv(Source::None, Tag::<u8>::new(1))?;
/// assert_eq!((nothing.len(), status.from), (0, transom::messages::Status::NOBODY));
/// # Ok::<(), transom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// The sender, or [`NOBODY`](Self::NOBODY); for a send, the receiver.
    pub from: Rank,
    /// The tag of the message.
    pub tag: u32,
    /// Length in elements; 0 for zero-sized elements, whatever the number sent.
    pub len: usize,
}

impl Status {
    /// The rank in the status of a receive from [`Source::None`] or a send to [`Peer::None`].
    pub const NOBODY: Rank = Rank::MAX;
}
