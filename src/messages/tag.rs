//! What a message is named by: to whom, from whom, with which tag.

use std::fmt;
use std::marker::PhantomData;
use transom_locks::Rank;

/// What tells messages of a pair of ranks apart, and of which elements they are: both ends must agree, or the program does
/// not compile.
///
/// # Examples
/// ```
/// use transom::messages::Tag;
/// const HALO: Tag<f64> = Tag::new(1);
/// assert_eq!(HALO.number(), 1);
/// ```
/// A message of elements of no bytes says that it was sent, and not how many they were:
/// ```
/// use transom::messages::Tag;
/// const READY: Tag<()> = Tag::new(2);
/// let world = transom::init()?;
/// world.send(0, READY, &[(); 3])?;
/// assert_eq!(world.recv(0, READY)?.1.len, 0);
/// # Ok::<(), transom::Error>(())
/// ```
pub struct Tag<T>(u32, PhantomData<fn(T) -> T>);

/// The tags that a receive takes: one, or any. Messages with any tag are taken for elements of its type.
///
/// # Examples
/// ```
/// use transom::messages::{Tag, Tags};
/// let one: Tags<u8> = Tag::new(7).into();
/// assert_eq!((one.number(), Tag::<u8>::any().number()), (Some(7), None));
/// ```
pub struct Tags<T>(Option<u32>, PhantomData<fn(T) -> T>);

impl<T> Tag<T> {
    /// The tag of this number.
    pub const fn new(number: u32) -> Self {
        Tag(number, PhantomData)
    }

    /// Any tag, for receives.
    pub const fn any() -> Tags<T> {
        Tags(None, PhantomData)
    }

    /// Its number.
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl<T> Tags<T> {
    /// The number of the tag, if it is one.
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

/// From whom a receive takes.
///
/// # Examples
/// ```
/// use transom::messages::Source;
/// assert_eq!(Source::from(3), Source::Rank(3));
/// assert_eq!(Source::from(0_usize.checked_sub(1)), Source::None); // beyond the first rank
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// This rank.
    Rank(Rank),
    /// Whoever sends first.
    Any,
    /// Nobody: the receive is over at once, with nothing; as that from beyond an edge.
    None,
}

/// To whom a message goes.
///
/// # Examples
/// ```
/// use transom::messages::Peer;
/// assert_eq!((Peer::from(3), Peer::from(None)), (Peer::Rank(3), Peer::None));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Peer {
    /// This rank.
    Rank(Rank),
    /// Nobody: the message is dropped; as that beyond an edge.
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

/// What came.
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
    /// Who sent it, or [`NOBODY`](Self::NOBODY); of a send, to whom it went.
    pub from: Rank,
    /// Its tag.
    pub tag: u32,
    /// Its length in elements; of those of no bytes 0, however many were sent.
    pub len: usize,
}

impl Status {
    /// The rank of what is received from, or sent to, nobody.
    pub const NOBODY: Rank = Rank::MAX;
}
