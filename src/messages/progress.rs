//! Progress while the program computes: a progress thread, and an event descriptor to sleep on together with others.

use super::error::Error;
use super::progress_engine::ProgressEngine;
use crate::world::World;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use transom_launch::lock;

/// The progress thread of a rank, if it has one.
#[derive(Default)]
pub(crate) struct Thread(Mutex<Option<JoinHandle<()>>>);

impl Thread {
    fn lock(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        lock(&self.0)
    }

    /// Starts the thread, unless it runs. The thread ends when the rank leaves.
    pub fn begin(&self, progress_engine: &Arc<ProgressEngine>) -> Result<(), Error> {
        let mut thread = self.lock();
        if thread.is_none() {
            let progress_engine = progress_engine.clone();
            let started =
                std::thread::Builder::new().name("transom progress".into()).spawn(move || progress_engine.attend());
            let why = |error| Error::Unavailable { why: format!("the progress thread cannot be started: {error}") };
            *thread = Some(started.map_err(why)?);
        }
        Ok(())
    }

    pub fn runs(&self) -> bool {
        self.lock().is_some()
    }

    /// Joins the thread, after the engine was closed. A waker of the program may run on the progress thread itself,
    /// which is then not joined.
    pub fn end(&self) {
        let thread = self.lock().take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            // The thread does not panic: a panic with the engine locked aborts the process.
            let _ = thread.join();
        }
    }
}

/// Event descriptor that is readable after an event.
#[derive(Clone)]
pub(crate) struct Events(Arc<OwnedFd>);

impl Events {
    pub fn new() -> Result<Events, Error> {
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let why = |error| Error::Unavailable { why: format!("cannot create an event descriptor: {error}") };
        made.map(|fd| Events(Arc::new(fd))).map_err(why)
    }

    pub fn tell(&self) {
        // The write can only fail if the descriptor is already readable.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable until the next event.
    fn quiet(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0; 8]);
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl World {
    /// Starts the progress thread of this rank, unless it runs. TRANSOM_PROGRESS=thread does the same.
    ///
    /// The thread makes progress while the program makes no calls. Futures of an executor other than
    /// [`block_on`](Self::block_on) then sleep until the thread wakes them, instead of being polled in a loop. The
    /// thread sleeps while nothing arrives, and ends with the rank's last world.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    ///
    /// # Examples
    /// ```
    /// use transom::messages::Tag;
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     world.start_progress_thread()?;
    ///     let other = 1 - world.rank();
    ///     let coming = world.irecv(other, Tag::<u8>::new(1));
    ///     drop(world.isend(other, Tag::new(1), vec![42_u8; 100_000])); // moves while the program computes
    ///     assert_eq!(coming.wait()?.len(), 100_000);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn start_progress_thread(&self) -> Result<(), Error> {
        let progress_engine = &self.space().comm()?.progress_engine;
        progress_engine.thread.begin(progress_engine)
    }

    /// Returns a descriptor that becomes readable after an event of this rank's messages. A program waits for it
    /// together with other descriptors, by `poll`, `epoll` or the reactor of an async runtime.
    ///
    /// Only poll the descriptor for reading. All worlds of the rank share it. The call also starts the [progress
    /// thread](Self::start_progress_thread).
    ///
    /// Each [`arm`](Self::arm) reports one event: arm, test (requests, probes, pipes), and only then sleep. Only one
    /// thread of a rank may do so: an `arm` by another thread clears an event that this thread has not handled yet.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    ///
    /// # Examples
    /// ```
    /// use rustix::event::{PollFd, PollFlags, poll};
    /// use transom::messages::Tag;
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let other = 1 - world.rank();
    ///     let mut coming = world.irecv(other, Tag::<u8>::new(1));
    ///     drop(world.isend(other, Tag::new(1), vec![42_u8]));
    ///     let messages = world.event_fd()?;
    ///     loop {
    ///         world.arm()?;
    ///         if coming.test() {
    ///             break;
    ///         }
    ///         let mut both = [PollFd::new(&messages, PollFlags::IN)]; // and sockets, timers ...
    ///         poll(&mut both, None).map_err(transom::Error::other)?;
    ///     }
    ///     assert_eq!(coming.wait()?, [42]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        self.start_progress_thread()?;
        Ok(self.space().events()?.as_fd())
    }

    /// Makes [`event_fd`](Self::event_fd) readable at the next event after this call: the end of a request, a message,
    /// bytes or space in a pipe, or the loss of a rank. Spurious events are possible.
    ///
    /// # Errors
    /// [`Error::Unavailable`]; [`Error::Closed`] once the rank has left its job.
    ///
    /// # Examples
    /// See [`event_fd`](Self::event_fd).
    pub fn arm(&self) -> Result<(), Error> {
        let progress_engine = &self.space().comm()?.progress_engine;
        let events = self.space().events()?;
        progress_engine.with(|core| {
            events.quiet();
            core.engine.take_news();
            core.armed.get_or_insert_default().events = Some(events.clone());
        })
    }
}
