//! Waits for requests of any kinds and types together.

use super::error::Error;
use super::locked::{Core, Key};
use super::persistent::Active;
use super::progress_engine::ProgressEngine;
use super::request::Request;
use super::waits::WaitingForSome;
use bytemuck::Pod;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A request of any kind: a message, a collective, or a window operation.
///
/// [`wait_any`], [`wait_all`], [`wait_some`], [`test_any`], [`test_all`] and [`test_some`] take requests of all kinds
/// and buffer types, as `&mut dyn Pending`. The program then takes the buffer from the request itself.
///
/// [`Request`], [`windows::Request`](crate::windows::Request) and [`Active`] implement it; types outside this crate cannot.
pub trait Pending: Sealed {}

impl<B> Pending for Request<'_, B> {}
impl<B> Pending for transom_windows::Request<'_, B> {}
impl<T: Pod> Pending for Active<'_, T> {}

/// Methods of a request that the waits below use.
pub trait Sealed {
    /// Returns true if the request has ended, in success or failure.
    fn has_ended(&mut self) -> bool;

    /// Returns how the end of a request in flight becomes known.
    fn way(&self) -> Way;

    /// Returns the error of a request that has ended. The request keeps its result.
    fn failure(&mut self) -> Option<Error>;
}

/// Engine of a request in flight, and its key there; `None` if the wait must poll the request.
pub struct Way(pub(super) Option<(Arc<ProgressEngine>, Key)>);

impl<B> Sealed for transom_windows::Request<'_, B> {
    fn has_ended(&mut self) -> bool {
        self.test()
    }

    fn way(&self) -> Way {
        Way(None)
    }

    fn failure(&mut self) -> Option<Error> {
        transom_windows::Request::failure(self).map(Error::Window)
    }
}

/// Waits until a request has ended, in success or failure. Returns its index, the lowest if several have ended; `None`
/// if the slice is empty. A wait for that request then returns at once. Leave the request out of the next call, which
/// would otherwise return it again. The request keeps its result, also an error, which its `wait` returns.
///
/// The wait makes progress on messages and polls the provider for window operations. It sleeps if only messages and
/// collectives are in flight. Requests to a rank that dies end with an error that names the rank.
///
/// # Cost
/// Each poll tests each request.
///
/// # Examples
/// A receive, an rget and an all_reduce, of different types:
/// ```
/// use transom::messages::Tag;
/// use transom::{Op, Pending, wait_any};
/// const EDGE: Tag<f64> = Tag::new(1);
/// transom::threads(3, |world| -> Result<(), transom::Error> {
///     let (me, next) = (world.rank(), (world.rank() + 1) % world.size());
///     let mut window = world.allocate::<u64>(1)?;
///     window.local().set(0, 10 * me as u64)?;
///     window.fence()?;
///     let epoch = window.lock_shared(next)?;
///     drop(world.isend(next, EDGE, vec![0.5]));
///
///     let mut edge = world.irecv((me + 2) % 3, EDGE);
///     let mut word = epoch.rget(0, 1)?;
///     let mut sum = world.iall_reduce(vec![me as i32], Op::Sum);
///     let mut left: Vec<&mut dyn Pending> = vec![&mut edge, &mut word, &mut sum];
///     while let Some(ended) = wait_any(&mut left) {
///         left.swap_remove(ended);
///         // ... work that waits for that one ...
///     }
///     assert_eq!((edge.wait()?, word.wait()?, sum.wait()?), (vec![0.5], vec![10 * next as u64], vec![3]));
///     epoch.unlock()
/// })?.into_iter().collect::<Result<(), _>>()?;
/// # Ok::<(), transom::Error>(())
/// ```
#[must_use = "the request keeps its result, also an error, until a wait for it"]
pub fn wait_any(requests: &mut [&mut dyn Pending]) -> Option<usize> {
    wait_until("wait_any", requests, None)
}

/// Waits as [`wait_any`], for at most `time`. Returns `None` also if no request has ended.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use transom::messages::{Cancelled, Tag};
/// let world = transom::init()?;
/// let mut never = world.irecv(0, Tag::<u8>::new(1));
/// assert_eq!(transom::wait_any_for(&mut [&mut never], Duration::from_millis(2)), None);
/// assert!(matches!(never.cancel(), Cancelled::Withdrawn(_)));
/// # Ok::<(), transom::Error>(())
/// ```
#[must_use = "the request keeps its result, also an error, until a wait for it"]
pub fn wait_any_for(requests: &mut [&mut dyn Pending], time: Duration) -> Option<usize> {
    wait_until("wait_any_for", requests, Instant::now().checked_add(time))
}

/// Waits until all requests have ended, in success or failure. The requests keep their results: a wait for each of them
/// then returns its buffer or error at once.
///
/// # Errors
/// [`Error::Request`], with the index and the error of the first request that failed. All requests are waited for even
/// so.
///
/// # Examples
/// ```
/// use transom::messages::Tag;
/// const WORDS: Tag<u32> = Tag::new(1);
/// transom::threads(2, |world| -> Result<(), transom::Error> {
///     let other = 1 - world.rank();
///     let mut window = world.allocate::<f64>(4)?;
///     let epoch = window.lock_shared(other)?;
///     let (mut sent, mut coming) = (world.isend(other, WORDS, vec![7]), world.irecv(other, WORDS));
///     let mut put = epoch.rput(0, vec![0.5; 4])?;
///     transom::wait_all(&mut [&mut sent, &mut coming, &mut put])?;
///     assert_eq!(coming.wait()?, sent.wait()?);
///     assert_eq!(put.wait()?, [0.5; 4]);
///     epoch.unlock()
/// })?.into_iter().collect::<Result<(), _>>()?;
/// # Ok::<(), transom::Error>(())
/// ```
pub fn wait_all(requests: &mut [&mut dyn Pending]) -> Result<(), Error> {
    // Window operations go on while the call waits for a message.
    for request in &mut *requests {
        wait_until("wait_all", std::slice::from_mut(request), None);
    }
    first_failure(requests)
}

/// Waits as [`wait_any`]. Returns the indices of all requests that have ended, in ascending order.
///
/// # Examples
/// ```
/// let world = transom::init()?;
/// let mut window = world.allocate::<u64>(1)?;
/// let epoch = window.lock_shared(0)?;
/// let (mut there, mut word) = (world.ibarrier(), epoch.rget(0, 1)?);
/// let ended = transom::wait_some(&mut [&mut there, &mut word]);
/// assert!(ended.contains(&1));
/// # Ok::<(), transom::Error>(())
/// ```
#[must_use = "the request keeps its result, also an error, until a wait for it"]
pub fn wait_some(requests: &mut [&mut dyn Pending]) -> Vec<usize> {
    match wait_until("wait_some", requests, None) {
        Some(_) => ended(requests),
        None => Vec::new(),
    }
}

/// Returns the index of a request that has ended, the lowest if there are several. The call does not wait: if no
/// request has ended, it makes progress once.
///
/// # Examples
/// ```
/// use transom::messages::Tag;
/// let world = transom::init()?;
/// let mut coming = world.irecv(0, Tag::<u8>::new(1));
/// assert_eq!(transom::test_any(&mut [&mut coming]), None);
/// world.send(0, Tag::new(1), &[42_u8])?;
/// while transom::test_any(&mut [&mut coming]).is_none() {
///     // ... compute ...
/// }
/// assert_eq!(coming.wait()?, [42]);
/// # Ok::<(), transom::Error>(())
/// ```
#[must_use = "the request keeps its result, also an error, until a wait for it"]
pub fn test_any(requests: &mut [&mut dyn Pending]) -> Option<usize> {
    first(requests).or_else(|| {
        progress(requests);
        first(requests)
    })
}

/// Tests as [`test_any`]. Returns the indices of all requests that have ended, in ascending order.
///
/// # Examples
/// ```
/// let world = transom::init()?;
/// let mut window = world.allocate::<u64>(2)?;
/// let epoch = window.lock_shared(0)?;
/// let (mut put, mut get) = (epoch.rput(0, vec![1])?, epoch.rget(1, 1)?);
/// assert_eq!(transom::test_some(&mut [&mut put, &mut get]), [0, 1]); // this rank's own memory
/// # Ok::<(), transom::Error>(())
/// ```
#[must_use = "the request keeps its result, also an error, until a wait for it"]
pub fn test_some(requests: &mut [&mut dyn Pending]) -> Vec<usize> {
    match test_any(requests) {
        Some(_) => ended(requests),
        None => Vec::new(),
    }
}

/// Returns true if all requests have ended. The call does not wait: if not all have ended, it makes progress once. The
/// requests keep their results.
///
/// # Errors
/// The errors of [`wait_all`], once all requests have ended.
///
/// # Examples
/// ```
/// let world = transom::init()?;
/// let (mut one, mut two) = (world.ibarrier(), world.iall_gather(vec![1]));
/// while !transom::test_all(&mut [&mut one, &mut two])? {
///     // ... compute ...
/// }
/// assert_eq!(two.wait()?, [1]);
/// # Ok::<(), transom::Error>(())
/// ```
pub fn test_all(requests: &mut [&mut dyn Pending]) -> Result<bool, Error> {
    let all = |requests: &mut [&mut dyn Pending]| requests.iter_mut().all(|request| request.has_ended());
    if !all(requests) {
        progress(requests);
        if !all(requests) {
            return Ok(false);
        }
    }
    first_failure(requests).map(|()| true)
}

/// Returns the error of the first of some ended requests that failed.
fn first_failure(requests: &mut [&mut dyn Pending]) -> Result<(), Error> {
    let mut failures = requests.iter_mut().map(|request| request.failure()).enumerate();
    let failure = failures.find_map(|(index, error)| Some(Error::of_request(index, error?)));
    failure.map_or(Ok(()), Err)
}

fn first(requests: &mut [&mut dyn Pending]) -> Option<usize> {
    requests.iter_mut().position(|request| request.has_ended())
}

fn ended(requests: &mut [&mut dyn Pending]) -> Vec<usize> {
    let ended = requests.iter_mut().enumerate().filter_map(|(index, request)| request.has_ended().then_some(index));
    ended.collect()
}

/// Makes progress once on each engine of the requests.
fn progress(requests: &[&mut dyn Pending]) {
    Ways::of(requests.iter().map(|request| request.way()))
        .hubs
        .iter()
        .for_each(|progress_engine| progress_engine.progress_now());
}

fn wait_until(call: &'static str, requests: &mut [&mut dyn Pending], until: Option<Instant>) -> Option<usize> {
    let found = first(requests);
    if found.is_some() || requests.is_empty() {
        return found;
    }
    Ways::of(requests.iter().map(|request| request.way())).wait(call, until, || first(requests))
}

/// The engines and keys of requests in flight, and whether some must be polled.
#[derive(Default)]
pub(super) struct Ways {
    hubs: Vec<Arc<ProgressEngine>>,
    keys: Vec<Key>,
    polls: bool,
}

/// Time between two polls of requests of several ranks of this process, which no wake-up covers.
const BETWEEN_LOOKS: Duration = Duration::from_micros(50);

impl Ways {
    pub fn of(ways: impl Iterator<Item = Way>) -> Ways {
        let mut all = Ways::default();
        for Way(way) in ways {
            match way {
                None => all.polls = true,
                Some((progress_engine, key)) => {
                    all.keys.push(key);
                    if !all.hubs.iter().any(|known| Arc::ptr_eq(known, &progress_engine)) {
                        all.hubs.push(progress_engine);
                    }
                }
            }
        }
        all
    }

    /// Waits until `look` returns a value; `None` after `until`.
    pub fn wait<R>(self, call: &'static str, until: Option<Instant>, mut look: impl FnMut() -> Option<R>) -> Option<R> {
        if let [progress_engine] = &self.hubs[..] {
            let keys = |core: &Core| self.keys.iter().copied().filter(|key| core.is_under_way(*key)).collect();
            return progress_engine.wait_for_any(
                &WaitingForSome { progress_engine, call, keys },
                until,
                self.polls,
                look,
            );
        }
        loop {
            self.hubs.iter().for_each(|progress_engine| progress_engine.progress_now());
            let found = look();
            if found.is_some() || until.is_some_and(|until| until <= Instant::now()) {
                return found;
            }
            match self.polls {
                true => std::thread::yield_now(),
                false => std::thread::sleep(BETWEEN_LOOKS),
            }
        }
    }
}
