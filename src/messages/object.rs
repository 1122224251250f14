//! Values that serde knows, each as one message.

use super::error::Error;
use super::tag::{Peer, Source, Status, Tag, Tags};
use crate::world::World;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::any::type_name;

/// Bytes before the value that tell its type.
const MARK: usize = 8;

impl World {
    /// Sends a value of any type that serde can serialise: one message of its bytes by postcard, behind 8 that tell its type. Costs
    /// a copy and an allocation beside [`send`](Self::send), which is for elements that are plain data.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`Error::Unserialised`].
    ///
    /// # Examples
    /// ```
    /// use transom::messages::{Source, Tag};
    /// const WORDS: Tag<Vec<String>> = Tag::new(1);
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     if world.rank() == 0 {
    ///         return Ok(world.send_object(1, WORDS, &vec!["one".to_owned(), "two".to_owned()])?);
    ///     }
    ///     let (words, status) = world.recv_object(Source::Any, WORDS)?;
    ///     assert_eq!((words.concat().as_str(), status.from), ("onetwo", 0));
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn send_object<T: Serialize>(&self, to: impl Into<Peer>, tag: Tag<T>, value: &T) -> Result<(), Error> {
        let bytes = postcard::to_extend(value, mark::<T>().to_vec());
        let bytes = bytes.map_err(|source| Error::Unserialised { name: type_name::<T>(), source })?;
        self.send(to, Tag::<u8>::new(tag.number()), &bytes)
    }

    /// Receives a value that [`send_object`](Self::send_object) sent. The length of the status is that of the value's bytes.
    ///
    /// # Errors
    /// As [`recv`](Self::recv); [`Error::OtherObject`] of what is no value of this type, and is consumed;
    /// [`Error::Misuse`] from [`Source::None`], which sends no value.
    ///
    /// # Examples
    /// See [`send_object`](Self::send_object).
    pub fn recv_object<T: DeserializeOwned>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tags<T>>,
    ) -> Result<(T, Status), Error> {
        let (from, tags) = (from.into(), tag.into().number().map_or(Tag::<u8>::any(), |tag| Tag::new(tag).into()));
        if from == Source::None {
            return Err(Error::Misuse { why: "nobody sends no value: receive from a rank, or from any".into() });
        }
        let (bytes, status) = self.recv(from, tags)?;
        let other = |source| Error::OtherObject { status, name: type_name::<T>(), source };
        let value = bytes.strip_prefix(&mark::<T>()).ok_or_else(|| other(None))?;
        match postcard::take_from_bytes(value).map_err(|source| other(Some(source)))? {
            (object, []) => Ok((object, Status { len: value.len(), ..status })),
            _ => Err(other(None)),
        }
    }
}

/// What tells a type from others in programs that are built of the same source.
fn mark<T>() -> [u8; MARK] {
    let hash = Sha256::digest(type_name::<T>());
    *hash.first_chunk().expect("a hash of 32 bytes")
}
