//! Values that serde can serialise, each sent as one message.

use super::error::{Error, Failed};
use super::probe::Message;
use super::request::Request;
use super::tag::{Peer, Source, Status, Tag, Tags};
use crate::world::World;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::any::type_name;
use std::time::Duration;

/// Length of the type mark before the value, in bytes.
const MARK: usize = 8;

impl World {
    /// Sends a value of any type that serde can serialise, as one message: 8 bytes that identify the type, then the
    /// encoding by postcard. The call costs a copy and an allocation more than [`send`](Self::send), which is for
    /// elements that are plain data.
    ///
    /// Give values tags of their own: a receive of plain elements with the same tag number takes the message as bytes,
    /// type mark included, and cannot detect that it is a value.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send); [`Error::Unserialised`].
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
        self.send(to, Tag::<u8>::new(tag.number()), &serialised(value)?)
    }

    /// Starts a [`send_object`](Self::send_object). The value can be used again at once, since the request owns its
    /// encoding. Ranks that exchange long values use this call, since `send_object` waits until a long one is received.
    ///
    /// # Errors
    /// The request reports the errors of [`send_object`](Self::send_object).
    ///
    /// # Examples
    /// ```
    /// use transom::messages::Tag;
    /// const LINES: Tag<Vec<String>> = Tag::new(1);
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let (other, mine) = (1 - world.rank(), vec![format!("of {}", world.rank()); 10_000]);
    ///     let sent = world.isend_object(other, LINES, &mine);
    ///     let (theirs, _) = world.recv_object(other, LINES)?;
    ///     assert_eq!(theirs[9_999], format!("of {other}"));
    ///     sent.wait()?;
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[must_use = "wait for it, or `drop` it: a dropped send completes"]
    pub fn isend_object<T: Serialize>(&self, to: impl Into<Peer>, tag: Tag<T>, value: &T) -> Request<'static, Vec<u8>> {
        match serialised(value) {
            Ok(bytes) => self.isend(to, Tag::<u8>::new(tag.number()), bytes),
            Err(error) => Request::over(Err(Failed { error, buffer: None })),
        }
    }

    /// Receives a value that [`send_object`](Self::send_object) sent. The status has the length of the message, in
    /// bytes.
    ///
    /// # Errors
    /// - The errors of [`recv`](Self::recv).
    /// - [`Error::OtherObject`] if the message is not a value of this type; the message is consumed.
    /// - [`Error::Misuse`] for [`Source::None`], which sends no value.
    ///
    /// # Examples
    /// See [`send_object`](Self::send_object).
    pub fn recv_object<T: DeserializeOwned>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tags<T>>,
    ) -> Result<(T, Status), Error> {
        let (bytes, status) = self.recv(somebody(from.into())?, bytes_of(tag.into()))?;
        Ok((value_of(bytes, status)?, status))
    }

    /// Starts to receive a value. The request returns the value, also in a set of [`Requests`](super::Requests) and as
    /// a future.
    ///
    /// # Errors
    /// The request reports the errors of [`recv_object`](Self::recv_object).
    ///
    /// # Examples
    /// ```
    /// use transom::messages::{Requests, Tag};
    /// const DONE: Tag<(usize, String)> = Tag::new(1);
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     if world.rank() > 0 {
    ///         return Ok(world.send_object(0, DONE, &(world.rank(), "a result".to_owned()))?);
    ///     }
    ///     let mut coming: Requests<_> = (1..3).map(|rank| world.irecv_object(rank, DONE)).collect();
    ///     while let Some((number, done)) = coming.wait_any() {
    ///         let (rank, _) = done?; // in the order of their ends
    ///         assert_eq!(rank, number + 1);
    ///     }
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[must_use = "wait for it: a dropped receive is withdrawn, or its message is lost"]
    pub fn irecv_object<T: DeserializeOwned>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tags<T>>,
    ) -> Request<'static, T> {
        match somebody(from.into()) {
            Ok(from) => self.irecv(from, bytes_of(tag.into())).of_value(value_of),
            Err(error) => Request::over(Err(Failed { error, buffer: None })),
        }
    }

    /// Receives as [`recv_object`](Self::recv_object) a value that arrives within `limit`; otherwise returns `None`. If
    /// a long value has been announced by then, the call waits for its data.
    ///
    /// # Errors
    /// The errors of [`recv_object`](Self::recv_object), reported as soon as they occur.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use transom::messages::{Source, Tag};
    /// const NAME: Tag<String> = Tag::new(1);
    /// let world = transom::init()?;
    /// assert!(world.recv_object_for(Source::Any, NAME, Duration::from_millis(10))?.is_none());
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn recv_object_for<T: DeserializeOwned>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tags<T>>,
        limit: Duration,
    ) -> Result<Option<(T, Status)>, Error> {
        let Some(message) = self.probe_for(somebody(from.into())?, bytes_of(tag.into()), limit)? else {
            return Ok(None);
        };
        let status = message.status();
        Ok(Some((value_of(message.recv()?, status)?, status)))
    }

    /// Receives as [`recv_object`](Self::recv_object) if a value has arrived; otherwise returns `None`. If a long value
    /// has been announced, the call waits for its data.
    ///
    /// # Errors
    /// The errors of [`recv_object`](Self::recv_object); without a message, those of [`try_probe`](Self::try_probe).
    ///
    /// # Examples
    /// ```
    /// use transom::messages::{Source, Tag};
    /// const NAME: Tag<String> = Tag::new(1);
    /// let world = transom::init()?;
    /// assert!(world.try_recv_object(Source::Any, NAME)?.is_none());
    /// world.send_object(0, NAME, &"Ada".to_owned())?;
    /// assert_eq!(world.try_recv_object(Source::Any, NAME)?.expect("the message has arrived").0, "Ada");
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn try_recv_object<T: DeserializeOwned>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tags<T>>,
    ) -> Result<Option<(T, Status)>, Error> {
        let Some(message) = self.try_probe(somebody(from.into())?, bytes_of(tag.into()))? else { return Ok(None) };
        let status = message.status();
        Ok(Some((value_of(message.recv()?, status)?, status)))
    }
}

impl Message<u8> {
    /// Receives a value that [`send_object`](crate::World::send_object) sent, after a probe of any tag.
    ///
    /// # Errors
    /// The errors of [`recv_object`](crate::World::recv_object).
    ///
    /// # Examples
    /// ```
    /// use transom::messages::{Source, Tag};
    /// const READY: Tag<u64> = Tag::new(1);
    /// const RESULT: Tag<Vec<String>> = Tag::new(2);
    /// let world = transom::init()?;
    /// world.send_object(0, RESULT, &vec!["one".to_owned()])?;
    /// match world.probe(Source::Any, Tag::<u8>::any())?.of(READY) {
    ///     Ok(ready) => println!("{} works no more", ready.status().from),
    ///     Err(result) => assert_eq!(result.recv_object::<Vec<String>>()?, ["one"]),
    /// }
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn recv_object<T: DeserializeOwned>(self) -> Result<T, Error> {
        let status = self.status();
        value_of(self.recv()?, status)
    }
}

fn serialised<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    let bytes = postcard::to_extend(value, mark::<T>().to_vec());
    bytes.map_err(|source| Error::Unserialised { name: type_name::<T>(), source })
}

fn value_of<T: DeserializeOwned>(bytes: Vec<u8>, status: Status) -> Result<T, Error> {
    let other = |source| Error::OtherObject { status, name: type_name::<T>(), source };
    let value = bytes.strip_prefix(&mark::<T>()).ok_or_else(|| other(None))?;
    match postcard::take_from_bytes(value).map_err(|source| other(Some(source)))? {
        (object, []) => Ok(object),
        _ => Err(other(None)),
    }
}

/// Converts the tags to those of the encoded bytes.
fn bytes_of<T>(tags: Tags<T>) -> Tags<u8> {
    tags.number().map_or(Tag::<u8>::any(), |tag| Tag::new(tag).into())
}

fn somebody(from: Source) -> Result<Source, Error> {
    match from {
        Source::None => Err(Error::Misuse { why: "`None` sends no value: receive from a rank, or from any".into() }),
        from => Ok(from),
    }
}

/// Returns the mark of a type, which distinguishes types among programs built from the same source.
fn mark<T>() -> [u8; MARK] {
    let hash = Sha256::digest(type_name::<T>());
    *hash.first_chunk().expect("a hash of 32 bytes")
}
