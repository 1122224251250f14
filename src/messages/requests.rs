//! Sets of requests, returned in the order in which they end.

use super::ended_lists::ListId;
use super::error::{Error, Failed};
use super::pending::{Sealed, Ways};
use super::progress_engine::ProgressEngine;
use super::request::{Call, Done, Request, RequestState, Under};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transom_locks::Awaited;

/// A set of requests that are returned in the order in which they end. Each request has a number, counted from 0 in the
/// order of [`push`](Self::push), that does not change.
///
/// # Examples
/// ```
/// use transom::messages::{Requests, Source, Tag};
/// const ECHO: Tag<usize> = Tag::new(3);
/// transom::threads(4, |world| -> Result<(), transom::Error> {
///     if world.rank() > 0 {
///         return Ok(world.send(0, ECHO, &[world.rank()])?);
///     }
///     let mut coming: Requests<_> = (1..4).map(|rank| world.irecv(rank, ECHO)).collect();
///     while let Some((number, got)) = coming.wait_any() {
///         assert_eq!(got?, [number + 1]); // in any order
///     }
///     Ok(())
/// })?.into_iter().collect::<Result<(), _>>()?;
/// # Ok::<(), transom::Error>(())
/// ```
/// A receive and an rget whose buffers have the same type:
/// ```
/// use transom::Requests;
/// use transom::messages::Tag;
/// const EDGE: Tag<u64> = Tag::new(1);
/// transom::threads(2, |world| -> Result<(), transom::Error> {
///     let (me, other) = (world.rank(), 1 - world.rank());
///     let mut window = world.allocate::<u64>(1)?;
///     window.local().set(0, 10 + me as u64)?;
///     window.fence()?;
///     let epoch = window.lock_shared(other)?;
///     world.send(other, EDGE, &[20 + me as u64])?;
///     let mut coming = Requests::new();
///     coming.push(world.irecv(other, EDGE));
///     coming.push(epoch.rget(0, 1)?);
///     while let Some((number, got)) = coming.wait_any() {
///         assert_eq!(got?, [[20, 10][number] + other as u64]);
///     }
///     drop(coming); // the requests borrow the epoch
///     epoch.unlock()
/// })?.into_iter().collect::<Result<(), _>>()?;
/// # Ok::<(), transom::Error>(())
/// ```
pub struct Requests<'a, B> {
    /// Lists of ended requests, one for each engine. Dropped before the requests.
    lists: Vec<List>,
    /// Remaining requests, with their numbers.
    slots: Vec<Option<(usize, Request<'a, B>)>>,
    /// Slots without a request.
    free: Vec<usize>,
    /// Slots whose requests have not been tested yet, in the order in which they were added.
    unlisted: VecDeque<usize>,
    /// Slots of window operations in flight, which are polled since no list has them. The slots polled last are at the
    /// end.
    polled: VecDeque<usize>,
    /// The next test polls window operations before it reads the lists. The order alternates, so that neither kind
    /// hides the other.
    polls_first: bool,
    added: usize,
}

/// The list of slots whose requests have ended, for one rank of this process.
struct List {
    progress_engine: Arc<ProgressEngine>,
    id: ListId,
}

impl Drop for List {
    fn drop(&mut self) {
        let _ = self.progress_engine.with(|core| core.lists.close(self.id));
    }
}

impl<'a, B> Requests<'a, B> {
    /// Makes an empty set.
    pub fn new() -> Self {
        Requests {
            lists: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            unlisted: VecDeque::new(),
            polled: VecDeque::new(),
            polls_first: false,
            added: 0,
        }
    }

    /// Adds a request, which may be a window operation. Returns its number: the number of requests added before.
    pub fn push(&mut self, request: impl Into<Request<'a, B>>) -> usize {
        let request = request.into();
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some((self.added, request));
        self.unlisted.push_back(slot);
        self.added += 1;
        self.added - 1
    }

    /// Number of remaining requests.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns true if no request remains.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes out a request that has ended, and returns its number and result; `None` if no remaining request has ended.
    /// Like [`wait_any`](Self::wait_any), the call looks at each message and collective once, and later only at those
    /// that have ended. Each call polls all window operations in flight.
    pub fn test_any(&mut self) -> Option<(usize, Done<B>)> {
        self.take_ended().map(|(number, request)| (number, request.wait()))
    }

    fn take_ended(&mut self) -> Option<(usize, Request<'a, B>)> {
        self.ended().or_else(|| {
            self.lists.iter().for_each(|list| list.progress_engine.progress_now());
            self.ended()
        })
    }

    /// Takes the first request that has ended: from the lists and polled operations first, then from new requests. A
    /// program that keeps adding requests that end at once must not hide the others.
    fn ended(&mut self) -> Option<(usize, Request<'a, B>)> {
        self.polls_first = !self.polls_first;
        let polls_first = self.polls_first;
        let mut ended = if polls_first { self.poll() } else { None };
        ended = ended.or_else(|| {
            self.lists.iter().find_map(|list| match list.progress_engine.with(|core| core.lists.pop(list.id)) {
                Ok(slot) => slot,
                Err(_) => self.first_of(&list.progress_engine),
            })
        });
        if !polls_first {
            ended = ended.or_else(|| self.poll());
        }
        let ended = ended.or_else(|| {
            while let Some(slot) = self.unlisted.pop_front() {
                if self.enlist(slot) {
                    return Some(slot);
                }
            }
            None
        })?;
        self.take(ended)
    }

    /// Polls the window operations in flight until one has ended.
    fn poll(&mut self) -> Option<usize> {
        for _ in 0..self.polled.len() {
            let slot = self.polled.pop_front()?;
            if self.slots[slot].as_mut().is_some_and(|(_, request)| request.has_ended()) {
                return Some(slot);
            }
            self.polled.push_back(slot);
        }
        None
    }

    /// Makes the request put its slot on the list of its engine when it ends, or schedules it for polling. Returns true
    /// if the request has already ended.
    fn enlist(&mut self, slot: usize) -> bool {
        let Some((_, request)) = &mut self.slots[slot] else { return true };
        let RequestState::UnderWay(Under { comm, id, .. }) = &request.state else {
            let ended = request.has_ended();
            if !ended {
                self.polled.push_back(slot);
            }
            return ended;
        };
        let list = match self.lists.iter().find(|list| Arc::ptr_eq(&list.progress_engine, &comm.progress_engine)) {
            Some(list) => Ok(list.id),
            None => comm.progress_engine.with(|core| core.lists.open()).inspect(|list| {
                self.lists.push(List { progress_engine: comm.progress_engine.clone(), id: *list });
            }),
        };
        list.and_then(|list| comm.progress_engine.with(|core| core.list(*id, list, slot))).is_err()
    }

    /// Finds a request of an engine that is closed: all its requests have ended.
    fn first_of(&self, progress_engine: &Arc<ProgressEngine>) -> Option<usize> {
        let is_of = |slot: &Option<(usize, Request<'a, B>)>| {
            slot.as_ref().is_some_and(|(_, request)| request.progress_engine() == Some(Arc::as_ptr(progress_engine)))
        };
        self.slots.iter().position(is_of)
    }

    fn take(&mut self, slot: usize) -> Option<(usize, Request<'a, B>)> {
        let taken = self.slots[slot].take();
        self.free.push(slot);
        taken
    }

    /// Waits until a request has ended, takes it out, and returns its number and result; `None` if the set is empty.
    pub fn wait_any(&mut self) -> Option<(usize, Done<B>)> {
        self.take_within(None).map(|(number, request)| (number, request.wait()))
    }

    /// Waits for at most `time` until a request has ended, and takes it out. Returns its number and the request itself,
    /// whose [`wait_status`](Request::wait_status) also returns the source of a message; `None` if no request has
    /// ended, or the set is empty.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use transom::messages::{Requests, Source, Tag};
    /// const JOB: Tag<u64> = Tag::new(3);
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     if world.rank() > 0 {
    ///         return Ok(world.send(0, JOB, &[10 * world.rank() as u64])?);
    ///     }
    ///     let mut coming: Requests<_> = (1..3).map(|_| world.irecv(Source::Any, JOB)).collect();
    ///     while let Some((_, request)) = coming.take_any_for(Duration::from_secs(10)) {
    ///         let (got, status) = request.wait_status()?; // returns at once
    ///         assert_eq!(got, [10 * status.from as u64]);
    ///     }
    ///     assert!(coming.is_empty()); // otherwise no message came for ten seconds
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn take_any_for(&mut self, time: Duration) -> Option<(usize, Request<'a, B>)> {
        self.take_within(Instant::now().checked_add(time))
    }

    fn take_within(&mut self, until: Option<Instant>) -> Option<(usize, Request<'a, B>)> {
        if let Some(ended) = self.take_ended() {
            return Some(ended);
        }
        if self.is_empty() {
            return None;
        }
        let (0, [List { progress_engine, id }]) = (self.polled.len(), &self.lists[..]) else {
            return self.take_polling(until);
        };
        let call = Call::Message { name: "wait_any", tag: None };
        let slot = match until {
            Some(until) => progress_engine.wait_until(&call, Awaited::Anyone, until, |core| core.lists.pop(*id)),
            None => progress_engine.wait(&call, Awaited::Anyone, |core| core.lists.pop(*id)).map(Some),
        };
        match slot {
            Ok(slot) => slot.and_then(|slot| self.take(slot)),
            Err(_) => self.ended(),
        }
    }

    /// Polls in a loop: no wake-up covers several engines, or window operations.
    fn take_polling(&mut self, until: Option<Instant>) -> Option<(usize, Request<'a, B>)> {
        let ways = Ways::of(self.slots.iter().flatten().map(|(_, request)| request.way()));
        ways.wait("wait_any", until, || self.ended())
    }

    /// Waits for all remaining requests, and returns their numbers and buffers in the order of their numbers.
    ///
    /// # Errors
    /// [`Error::Request`], with the number and the error of the first request that failed, and its buffer. All requests
    /// are waited for even so. [`wait_any`](Self::wait_any) returns the result of each.
    pub fn wait_all(mut self) -> Result<Vec<(usize, B)>, Failed<B>> {
        let mut ended: Vec<_> =
            self.slots.drain(..).flatten().map(|(number, request)| (number, request.wait())).collect();
        ended.sort_by_key(|(number, _)| *number);
        let buffer = |(number, ended): (usize, Done<B>)| match ended {
            Ok(buffer) => Ok((number, buffer)),
            Err(Failed { error, buffer }) => Err(Failed { error: Error::of_request(number, error), buffer }),
        };
        ended.into_iter().map(buffer).collect()
    }
}

impl<B> Default for Requests<'_, B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a, B, R: Into<Request<'a, B>>> Extend<R> for Requests<'a, B> {
    fn extend<I: IntoIterator<Item = R>>(&mut self, requests: I) {
        for request in requests {
            self.push(request);
        }
    }
}

impl<'a, B, R: Into<Request<'a, B>>> FromIterator<R> for Requests<'a, B> {
    fn from_iter<I: IntoIterator<Item = R>>(requests: I) -> Self {
        let mut all = Requests::new();
        all.extend(requests);
        all
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::messages::{Source, Tag};

    /// Posts receives of 30,000 tags; the first posted end last.
    #[test]
    fn wait_any_checks_only_completed_requests() {
        const MANY: u32 = 30_000;
        let tag = |number| Tag::<u32>::new(number);
        let ended = crate::threads(1, |world| -> Result<(), crate::Error> {
            let progress_engine = &world.space().comm()?.progress_engine;
            let looks = || progress_engine.with(|core| core.looks.get()).unwrap();
            let mut coming: Requests<_> = (0..MANY).map(|number| world.irecv(Source::Any, tag(number))).collect();
            let before = looks();
            assert!(coming.test_any().is_none());
            assert_eq!(looks() - before, MANY as usize, "each is looked at once");
            for number in (0..MANY).rev() {
                world.send(0, tag(number), &[number])?;
                let before = looks();
                let (of, got) =
                    if number % 2 == 0 { coming.wait_any() } else { coming.test_any() }.expect("one has ended");
                assert_eq!((of, got?), (number as usize, vec![number]));
                // Taking the result looks at the request itself.
                assert!(looks() - before <= 2, "{} requests were looked at", looks() - before);
            }
            assert!(coming.is_empty() && coming.wait_any().is_none());
            Ok(())
        });
        ended.unwrap().into_iter().for_each(|ended| ended.unwrap());
    }

    #[test]
    fn dropped_set_releases_its_completion_list() {
        let ended = crate::threads(1, |world| -> Result<(), crate::Error> {
            let progress_engine = &world.space().comm()?.progress_engine;
            for _ in 0..3 {
                let mut coming: Requests<_> = (0..9).map(|_| world.irecv(Source::Any, Tag::<u8>::new(1))).collect();
                assert!(coming.take_any_for(Duration::ZERO).is_none());
                assert_eq!(progress_engine.with(|core| core.lists.len())?, 1);
            }
            assert_eq!(progress_engine.with(|core| core.lists.len())?, 0);
            Ok(())
        });
        ended.unwrap().into_iter().for_each(|ended| ended.unwrap());
    }
}
