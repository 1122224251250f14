//! Many requests, waited for as they end.

use super::locked::Core;
use super::request::{Call, Done, Request, State, Under};
use std::sync::Arc;
use std::time::{Duration, Instant};
use transom_locks::Awaited;

/// How long who waits for requests of several ranks of this process sleeps between two looks.
const BETWEEN_LOOKS: Duration = Duration::from_micros(50);

/// Requests that are waited for in the order in which they end. Each has a number, in the order in which they were added,
/// that stays its own.
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
///         assert_eq!(got?, [number + 1]); // in whichever order they come
///     }
///     Ok(())
/// })?.into_iter().collect::<Result<(), _>>()?;
/// # Ok::<(), transom::Error>(())
/// ```
pub struct Requests<'a, B> {
    /// With their numbers, in no certain order.
    left: Vec<(usize, Request<'a, B>)>,
    added: usize,
    /// Index at which the next look begins, behind the request taken last: a request that ends again and again must not hide others.
    next: usize,
}

impl<'a, B> Requests<'a, B> {
    /// None yet.
    pub fn new() -> Self {
        Requests { left: Vec::new(), added: 0, next: 0 }
    }

    /// Adds a request, and returns its number: how many were added before.
    pub fn push(&mut self, request: Request<'a, B>) -> usize {
        self.left.push((self.added, request));
        self.added += 1;
        self.added - 1
    }

    /// How many are left.
    pub fn len(&self) -> usize {
        self.left.len()
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// Takes out one that has ended: its number, and how it ended. None if none that is left has ended now.
    pub fn test_any(&mut self) -> Option<(usize, Done<B>)> {
        self.take_ended().map(|(number, request)| (number, request.wait()))
    }

    fn take_ended(&mut self) -> Option<(usize, Request<'a, B>)> {
        let ended = self.ended().or_else(|| {
            self.turn();
            self.ended()
        })?;
        self.next = ended + 1;
        Some(self.left.swap_remove(ended))
    }

    /// A turn for all of a rank; in a process of several ranks there may be some of others.
    fn turn(&self) {
        let mut before = None;
        for (_, request) in &self.left {
            if std::mem::replace(&mut before, request.hub()) != request.hub() {
                request.turn();
            }
        }
    }

    fn ended(&self) -> Option<usize> {
        let (first, last) = self.left.split_at(self.next.min(self.left.len()));
        let ended = |requests: &[(usize, Request<'a, B>)]| requests.iter().position(|(_, request)| request.has_ended());
        ended(last).map(|at| first.len() + at).or_else(|| ended(first))
    }

    /// Waits until one has ended, and takes it out. None if none is left.
    pub fn wait_any(&mut self) -> Option<(usize, Done<B>)> {
        self.take_within(None).map(|(number, request)| (number, request.wait()))
    }

    /// Waits for so long at most until one has ended, and takes that out: its number, and itself, which tells by
    /// [`wait_status`](Request::wait_status) also from whom a message came. None if none has ended, or none is left.
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
    ///         let (got, status) = request.wait_status()?; // at once
    ///         assert_eq!(got, [10 * status.from as u64]);
    ///     }
    ///     assert!(coming.is_empty()); // else nobody has sent for ten seconds
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
        let State::UnderWay(Under { comm, .. }) = &self.left.first()?.1.state else { return self.take_ended() };
        let (hub, left) = (comm.hub.clone(), &self.left);
        if left.iter().any(|(_, request)| request.hub().is_some_and(|of| of != Arc::as_ptr(&hub))) {
            return self.take_of_several_ranks(until);
        }
        let ids = || {
            left.iter().filter_map(|(_, request)| match &request.state {
                State::UnderWay(under) => Some(under.id),
                _ => None,
            })
        };
        let call = Call::Message { name: "wait_any", tag: None };
        let look = |core: &mut Core| ids().any(|id| core.has_ended(id).is_some()).then_some(());
        // An error says that the rank has left, which each of them tells.
        let _ = match until {
            Some(until) => hub.wait_until(&call, Awaited::Anyone, until, look).map(drop),
            None => hub.wait(&call, Awaited::Anyone, look),
        };
        self.take_ended()
    }

    /// Nobody wakes a thread for several ranks: it looks again and again.
    fn take_of_several_ranks(&mut self, until: Option<Instant>) -> Option<(usize, Request<'a, B>)> {
        loop {
            let ended = self.take_ended();
            if ended.is_some() || until.is_some_and(|until| until <= Instant::now()) {
                return ended;
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
    }

    /// Waits for all that are left; how they ended, by their numbers.
    pub fn wait_all(mut self) -> Vec<(usize, Done<B>)> {
        let mut done: Vec<_> = self.left.drain(..).map(|(number, request)| (number, request.wait())).collect();
        done.sort_by_key(|(number, _)| *number);
        done
    }
}

impl<B> Default for Requests<'_, B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a, B> Extend<Request<'a, B>> for Requests<'a, B> {
    fn extend<I: IntoIterator<Item = Request<'a, B>>>(&mut self, requests: I) {
        for request in requests {
            self.push(request);
        }
    }
}

impl<'a, B> FromIterator<Request<'a, B>> for Requests<'a, B> {
    fn from_iter<I: IntoIterator<Item = Request<'a, B>>>(requests: I) -> Self {
        let mut all = Requests::new();
        all.extend(requests);
        all
    }
}
