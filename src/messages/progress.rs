//! Messages that move while the program does something else: a thread that turns them, and a descriptor to sleep on beside others.

use super::error::Error;
use super::hub::Hub;
use crate::world::World;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use transom_launch::lock;

/// The thread of a rank that turns its messages, if there is one.
#[derive(Default)]
pub(crate) struct Thread(Mutex<Option<JoinHandle<()>>>);

impl Thread {
    fn lock(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        lock(&self.0)
    }

    /// Starts it, unless it runs. It ends when the rank leaves.
    pub fn begin(&self, hub: &Arc<Hub>) -> Result<(), Error> {
        let mut thread = self.lock();
        if thread.is_none() {
            let hub = hub.clone();
            let started = std::thread::Builder::new().name("transom progress".into()).spawn(move || hub.attend());
            let why =
                |error| Error::Unavailable { why: format!("a thread that moves them cannot be started: {error}") };
            *thread = Some(started.map_err(why)?);
        }
        Ok(())
    }

    pub fn runs(&self) -> bool {
        self.lock().is_some()
    }

    /// Waits for its end, which must have been told; unless it is this thread, which a waker of the program's may be run by.
    pub fn end(&self) {
        let thread = self.lock().take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            // It does not panic: who panics with the engine ends the process.
            let _ = thread.join();
        }
    }
}

/// What is readable when something has happened.
#[derive(Clone)]
pub(crate) struct Events(Arc<OwnedFd>);

impl Events {
    pub fn new() -> Result<Events, Error> {
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let why = |error| Error::Unavailable { why: format!("no event descriptor can be made: {error}") };
        made.map(|fd| Events(Arc::new(fd))).map_err(why)
    }

    pub fn tell(&self) {
        // It can only fail where it is told already.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// From now on it is not readable before it is told again.
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
    /// Starts the thread that moves the messages of this rank while the program does not, as with TRANSOM_PROGRESS=thread; nothing if it
    /// runs. Futures of an executor other than [`block_on`](Self::block_on) then sleep until the thread wakes them, and are not polled
    /// again and again. The thread sleeps while nothing comes, and ends with the rank's last world.
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
        let hub = &self.space().comm()?.hub;
        hub.thread.begin(hub)
    }

    /// A descriptor that becomes readable when something has happened to the messages of this rank, for programs that wait for
    /// other things as well, by `poll`, `epoll` or the reactor of an async runtime. Only to be polled for reading; it is the same
    /// for all worlds of the rank. It starts the [progress thread](Self::start_progress_thread).
    ///
    /// It is told once for each [`arm`](Self::arm): arm, look (at requests, probes, pipes), and only then sleep. One thread of a rank does so:
    /// what another arms takes back what this one has not looked at yet.
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

    /// Has [`event_fd`](Self::event_fd) be readable once something happens after this call: a request ends, a message comes, a pipe has
    /// bytes, or room, a rank is gone. It may also be readable though nothing has changed that the program looks at.
    ///
    /// # Errors
    /// [`Error::Unavailable`]; [`Error::Closed`] once the rank has left its job.
    ///
    /// # Examples
    /// See there.
    pub fn arm(&self) -> Result<(), Error> {
        let hub = &self.space().comm()?.hub;
        let events = self.space().events()?;
        hub.with(|core| {
            events.quiet();
            core.engine.take_news();
            core.armed.get_or_insert_default().events = Some(events.clone());
        })
    }
}
