//! Partitioned messages, whose parts become ready and arrive one by one.
//!
//! Each part is a message in a context of its own, apart from the program's messages. The sender chooses one tag for
//! each part, and announces the tags once, under the tag that the program named. Both ends thus meet in the order in
//! which they were made, whichever end is dropped before they meet. An empty message marks a lost part, since no real
//! part is empty.
//!
//! A dropped send end sends a farewell: an empty message with the tag after those of its parts. A receive that is
//! unmatched when the farewell has come fails. Parts that no receive end takes are discarded until the farewell has
//! come.

mod arriving;
mod cut;
mod discard;
mod expected;
mod pieces;

pub use arriving::{Arriving, PartitionedReceive};
pub(super) use expected::Expected;

use super::comm::{ANNOUNCED, Comm, PARTS};
use super::error::Error;
use super::hold::{Parts as _, Shares};
use super::locked::{Core, Key};
use super::tag::{Peer, Tag};
use crate::world::World;
use bytemuck::Pod;
use cut::{Announcement, Cut};
use pieces::{Piece, Pieces};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard};
use transom_channel::wire::Data;
use transom_launch::lock;
use transom_windows::Element;

/// A persistent partitioned send. Any thread that has filled a part marks it ready.
///
/// # Examples
/// ```
/// use transom::messages::Tag;
/// const ROWS: Tag<u64> = Tag::new(1);
/// transom::threads(2, |world| -> Result<(), transom::Error> {
///     if world.rank() == 0 {
///         let mut sending = world.psend_init(1, ROWS, vec![0; 1000], 4)?;
///         for step in 0..3 {
///             let mut parts = sending.start()?;
///             std::thread::scope(|threads| {
///                 for mut part in parts.parts() {
///                     threads.spawn(move || {
///                         part.fill(step); // compute it ...
///                         part.ready(); // ... and send it
///                     });
///                 }
///             });
///             parts.wait()?;
///         }
///     } else {
///         let mut coming = world.precv_init(0, ROWS, vec![0; 1000], 2)?; // cut into two parts
///         for step in 0..3 {
///             let arriving = coming.start()?;
///             for half in 0..2 {
///                 assert_eq!(arriving.part(half)?, [step; 500]);
///             }
///             arriving.wait()?;
///         }
///     }
///     Ok(())
/// })?.into_iter().collect::<Result<(), _>>()?;
/// # Ok::<(), transom::Error>(())
/// ```
pub struct Partitioned<T: Pod + Send> {
    comm: Comm,
    /// `None` for a send to [`Peer::None`].
    to: Option<u32>,
    /// Tag of the first part. The tags of the other parts and of the farewell follow it.
    first: u32,
    cut: Cut,
    buffer: Arc<Shares<T>>,
    pieces: Mutex<Pieces>,
}

/// A started partitioned send. If it is dropped, parts that are ready are sent, and the other parts are lost.
#[must_use = "only its completion shows that all parts are sent"]
pub struct Parts<'p, T: Pod + Send>(&'p mut Partitioned<T>);

/// A part that is not ready, whose elements the thread that holds it can write. A dropped part is available again from
/// [`Parts::parts`]; a part that is not ready when the program waits for the message is lost.
#[must_use = "a part is sent by `ready`, and lost if dropped"]
pub struct Part<'a, T: Pod + Send> {
    of: &'a Partitioned<T>,
    index: usize,
    elements: &'a mut [T],
}

impl World {
    /// Makes a persistent send of a partitioned message, without sending. The elements are cut as evenly as possible;
    /// if the division leaves a remainder, the first parts have one element more.
    ///
    /// The n-th call for a rank and tag meets the n-th [`precv_init`](Self::precv_init) of that rank with the tag, even
    /// if the program drops one of the two before they meet. The receiver may cut the message into another number of
    /// parts. If the receiver drops its end, the library there receives the parts and discards them.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`], [`Error::Unavailable`]; [`Error::Misuse`] if there are no parts, or fewer elements than parts.
    ///
    /// # Examples
    /// See [`Partitioned`].
    pub fn psend_init<T: Element + Send>(
        &self,
        to: impl Into<Peer>,
        tag: Tag<T>,
        buffer: Vec<T>,
        parts: usize,
    ) -> Result<Partitioned<T>, Error> {
        let comm = self.space().comm()?;
        let (to, cut) = (comm.target(to.into())?, Cut::new(buffer.len(), parts, size_of::<T>())?);
        let first = match to {
            Some(to) => comm.progress_engine.with(|core| announce(core, comm, to, tag.number(), cut))??,
            None => 0,
        };
        let pieces = Mutex::new(Pieces::new(parts, Piece::Ended(Ok(()))));
        Ok(Partitioned { comm: comm.clone(), to, first, cut, buffer: Shares::new(buffer), pieces })
    }
}

/// Announces the tags of the parts and of the farewell to the receiver: the next tags that this rank has not used to
/// that rank.
fn announce(core: &mut Core, comm: &Comm, to: u32, tag: u32, cut: Cut) -> Result<u32, Error> {
    let next = core.opened.entry((comm.context + PARTS, to)).or_default();
    let first = *next;
    let after = u32::try_from(cut.parts).ok().and_then(|parts| first.checked_add(parts)?.checked_add(1));
    *next = after.ok_or_else(|| Error::Misuse {
        why: format!(
            "too many parts of messages to one rank: {first} tags are used, and {} more do not fit into 32 bits",
            cut.parts
        ),
    })?;
    let bytes = Announcement::new(first, cut).encode().to_vec().hold();
    let length = bytes.len();
    let id = core.engine.send(to, comm.context + ANNOUNCED, tag, bytes, length, false);
    core.forget(Key::Message(id));
    Ok(first)
}

impl<T: Pod + Send> Partitioned<T> {
    /// Starts a round, in which parts can be written and made ready. First waits for the last start, if the program has
    /// not.
    ///
    /// # Errors
    /// [`Error::Closed`] if the world was dropped. [`Parts::wait`] reports other errors.
    pub fn start(&mut self) -> Result<Parts<'_, T>, Error> {
        // The program did not wait for the last start, so its result is discarded.
        let _ = self.finish();
        self.comm.progress_engine.with(|_| ())?;
        *self.pieces() = Pieces::new(self.cut.parts, Piece::Held);
        Ok(Parts(self))
    }

    fn pieces(&self) -> MutexGuard<'_, Pieces> {
        lock(&self.pieces)
    }

    /// Sends a part, which nothing accesses until the message has ended.
    fn send(&self, core: &mut Core, index: usize) -> Piece {
        let Some(to) = self.to else { return Piece::Ended(Ok(())) };
        let (context, tag) = (self.comm.context + PARTS, self.first + index as u32);
        // SAFETY: the holder of the part has given it up, and the part is not handed out again before its message has
        // ended.
        let elements = unsafe { self.buffer.read(self.cut.range(index)) };
        if core.engine.try_send(to, context, tag, Data::Bytes(bytemuck::cast_slice(elements))) {
            return Piece::Ended(Ok(()));
        }
        // SAFETY: as above.
        let bytes = unsafe { self.buffer.part(self.cut.range(index), false) }.hold();
        let length = bytes.len();
        let id = core.engine.send(to, context, tag, bytes, length, false);
        Piece::UnderWay(Key::Message(id))
    }

    /// Sends an empty message: a lost part; or, at the index after the last part, the farewell.
    fn send_nothing(&self, core: &mut Core, index: usize) {
        let Some(to) = self.to else { return };
        let (context, tag) = (self.comm.context + PARTS, self.first + index as u32);
        let id = core.engine.send(to, context, tag, Vec::<u8>::new().hold(), 0, false);
        core.forget(Key::Message(id));
    }

    /// Marks the parts that are not ready as lost, and notifies the receiver.
    fn lose(&self) {
        if !self.pieces().all().iter().any(Piece::is_held) {
            return;
        }
        // An error means that the world was dropped, which waiting calls report.
        let _ = self.comm.progress_engine.with(|core| {
            let mut pieces = self.pieces();
            for (index, piece) in pieces.all().iter_mut().enumerate().filter(|(_, piece)| piece.is_held()) {
                self.send_nothing(core, index);
                *piece = Piece::PeerFailure;
            }
        });
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.lose();
        let all = 0..self.cut.parts;
        let take = |core: &mut Core| self.pieces().take(core, &self.comm, all.clone(), |_, _| Piece::Ended(Ok(())));
        self.comm.progress_engine.wait(&"psend", self.comm.awaited(self.to), |core| take(core).then_some(()))?;
        self.pieces().outcome(all)
    }
}

impl<T: Pod + Send> Parts<'_, T> {
    /// Returns the parts that are not ready, in order.
    pub fn parts(&mut self) -> std::vec::IntoIter<Part<'_, T>> {
        let of = &*self.0;
        let held: Vec<usize> = {
            let mut pieces = of.pieces();
            let held = pieces.all().iter().enumerate().filter(|(_, piece)| piece.is_held());
            held.map(|(index, _)| index).collect()
        };
        let part = |index| {
            // SAFETY: the engine holds no part that is not ready. Parts do not overlap. This borrow prevents a second
            // hand-out while they exist.
            let elements = unsafe { of.buffer.write(of.cut.range(index)) };
            Part { of, index, elements }
        };
        held.into_iter().map(part).collect::<Vec<_>>().into_iter()
    }

    /// Waits until all parts are sent, as [`World::send`] would; the buffer can be written again.
    ///
    /// # Errors
    /// [`Error::PartsNotReady`] if parts were dropped before they were ready; the receiver is notified too, and the
    /// other parts are sent. The errors of [`World::send`].
    pub fn wait(self) -> Result<(), Error> {
        self.0.finish()
    }
}

impl<T: Pod + Send> Drop for Parts<'_, T> {
    fn drop(&mut self) {
        self.0.lose();
    }
}

impl<T: Pod + Send> Part<'_, T> {
    /// Returns the index of the part.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Sends the part, which is written.
    pub fn ready(self) {
        let Part { of, index, .. } = self;
        let piece =
            of.comm.progress_engine.with(|core| of.send(core, index)).unwrap_or_else(|error| Piece::Ended(Err(error)));
        of.pieces().all()[index] = piece;
    }
}

impl<T: Pod + Send> Deref for Part<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.elements
    }
}

impl<T: Pod + Send> DerefMut for Part<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.elements
    }
}

impl<T: Pod + Send> Drop for Partitioned<T> {
    fn drop(&mut self) {
        self.lose();
        let _ = self.comm.progress_engine.with(|core| {
            self.send_nothing(core, self.cut.parts);
            self.pieces().forget(core);
        });
    }
}
