//! The service of a rank: accepts connections, and serves those of windows. Its thread sleeps until something arrives.
//! Program threads that wait in the library [help](Service::help): they serve at once what would first wake the thread.
//! Neither ever waits for one peer.

use crate::carrier::{Carrier, Socket};
use crate::endpoint::keep_alive;
use crate::execute::Executor;
use crate::greet::{Greeting, Hello, Secret, Step, Use};
use crate::mail::Mail;
use crate::serve::{self, Wants};
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, TryLockError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use transom_launch::lock;
use transom_shm_loopback::messages::Arrivals;

/// Time within which a connection must have proved its rank.
const GREET_WITHIN: Duration = Duration::from_secs(10);
/// Most connections that have not, besides one for each use of each rank.
const STRANGERS: usize = 64;
/// Time for which the thread looks again before it sleeps, if the ranks have a core each.
const LOOK: Duration = Duration::from_micros(30);
/// Interval between checks of connections that have not proved their rank, and pause when descriptors are exhausted.
const TICK: Duration = Duration::from_millis(500);

/// Time for which the thread leaves connections to a program thread that helps, and the longest time since its last help.
const STANDBY: Duration = Duration::from_micros(40);
const HELPED: Duration = Duration::from_micros(20);
/// Time after which a help takes up no further connection.
const HELP: Duration = Duration::from_micros(100);

const WAKE: u64 = 0;
const LISTENER: u64 = 1;
const FIRST: u64 = 2;
/// The bit of a watched descriptor's number.
const WATCHED: u64 = 1 << 63;
/// Most events of one look.
const EVENTS: usize = 64;

/// State of the job that the thread uses.
pub struct House {
    pub me: u32,
    /// Each rank's secret.
    pub secrets: Arc<[Secret]>,
    pub mail: Arc<Mail>,
    /// The ranks of this host share cores.
    pub is_oversubscribed: bool,
}

/// The running service. Dropping it ends its thread and its connections.
pub struct Service {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    epoll: Arc<OwnedFd>,
    /// Wakes the thread if it is to end, or if a helper left requests.
    wake: OwnedFd,
    ends: AtomicBool,
    state: Mutex<Loop>,
    began: Instant,
    /// When a program thread last helped, in nanoseconds since `began`; 0 before the first time.
    helped: AtomicU64,
}

impl Service {
    pub fn start(listener: TcpListener, house: House, executor: Executor) -> io::Result<Service> {
        let name = format!("transom tcp {}", house.me);
        let shared = Arc::new(Shared::open(listener, house, executor)?);
        let run = shared.clone();
        let thread = std::thread::Builder::new().name(name).spawn(move || run.run())?;
        Ok(Service { shared, thread: Some(thread) })
    }

    /// Serves what has arrived, unless another thread does. For threads that wait for something else.
    pub fn help(&self) {
        self.shared.help();
    }

    /// Watches a descriptor for a thread that sleeps elsewhere.
    pub fn watch(&self, descriptor: Arc<OwnedFd>) -> Watch {
        self.shared.watch(descriptor)
    }

    /// [`help`](Self::help) for a lane, which may outlive the service.
    pub fn helper(&self) -> impl Fn() + Send + Sync + 'static {
        let shared = self.shared.clone();
        move || shared.help()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shared.ends.store(true, SeqCst);
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // A lane may keep the rest.
        let mut state = lock(&self.shared.state);
        state.served.clear();
        state.strangers.clear();
        state.watched.clear();
    }
}

/// A descriptor whose arrivals notify, once for each time that the watch is armed.
///
/// A watch does not keep the service alive. The waiter that owns a watch may be reachable from the service's memory.
pub struct Watch {
    epoll: Arc<OwnedFd>,
    shared: Weak<Shared>,
    descriptor: Arc<OwnedFd>,
    number: u64,
}

impl Arrivals for Watch {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    fn notify_by(&self, notify: Box<dyn Fn() + Send + Sync>) {
        if let Some(shared) = self.shared.upgrade() {
            let watched = Watched { descriptor: self.descriptor.clone(), notify };
            lock(&shared.state).watched.insert(self.number, watched);
        }
    }

    fn arm(&self) {
        // Added for one notification only: otherwise each arrival would cost a look here, although the rank does not sleep.
        // The descriptor is there already if an earlier sleep ended without a notification. If the call fails, the sleep
        // lasts as long as one without arrivals.
        let data = epoll::EventData::new_u64(self.number);
        let _ = epoll::add(&self.epoll, &self.descriptor, data, epoll::EventFlags::IN);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = epoll::delete(&self.epoll, &self.descriptor);
        if let Some(shared) = self.shared.upgrade() {
            lock(&shared.state).watched.remove(&self.number);
        }
    }
}

impl Shared {
    fn watch(self: &Arc<Self>, descriptor: Arc<OwnedFd>) -> Watch {
        let mut state = lock(&self.state);
        let number = WATCHED | state.next;
        state.next += 1;
        Watch { epoll: self.epoll.clone(), shared: Arc::downgrade(self), descriptor, number }
    }

    fn open(listener: TcpListener, house: House, executor: Executor) -> io::Result<Shared> {
        listener.set_nonblocking(true)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        let (strangers, served, watched, ready) = Default::default();
        let state = Loop {
            epoll: epoll.clone(),
            listener,
            house,
            executor,
            strangers,
            served,
            watched,
            ready,
            next: FIRST,
            paused: None,
        };
        let (ends, began, helped) = (AtomicBool::new(false), Instant::now(), AtomicU64::new(0));
        Ok(Shared { epoll, wake, ends, state: Mutex::new(state), began, helped })
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// The thread.
    fn run(&self) {
        // Short sleeps end in time. By default they may take 50 us longer.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut events = Vec::with_capacity(EVENTS);
        let (mut worked, mut timeout) = (Instant::now(), None);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return tracing::error!(%error, "the service thread of TCP cannot wait, and ends"),
            }
            if events.iter().any(|event| event.data.u64() == WAKE) {
                // In this order: the read takes a wake-up that comes before it, and so `ends` is seen.
                let _ = rustix::io::read(&self.wake, &mut [0; 8]);
                if self.ends.load(SeqCst) {
                    return;
                }
            } else if !events.is_empty() && self.is_helped() && events.iter().all(|event| event.data.u64() < WATCHED) {
                std::thread::sleep(STANDBY);
                continue;
            }
            if !events.is_empty() {
                worked = Instant::now();
            }
            let mut state = lock(&self.state);
            state.step(&events, None);
            timeout = state.timeout(worked);
        }
    }

    fn is_helped(&self) -> bool {
        let helped = self.helped.load(Relaxed);
        helped > 0 && self.began.elapsed().as_nanos() as u64 <= helped + HELPED.as_nanos() as u64
    }

    fn help(&self) {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        self.helped.store(self.began.elapsed().as_nanos() as u64, Relaxed);
        let mut memory = [const { MaybeUninit::uninit() }; EVENTS];
        // The thread reports a failure.
        let Ok((mut events, _)) = epoll::wait(&self.epoll, &mut memory, Some(&Timespec::default())) else { return };
        let (had_timer, until) = (state.has_timer(), Instant::now() + HELP);
        while !(events.is_empty() && state.ready.is_empty()) && Instant::now() < until {
            state.step(events, Some(until));
            events = &mut [];
        }
        // The thread may sleep without a timeout.
        if !state.ready.is_empty() || state.has_timer() && !had_timer {
            self.wake();
        }
    }
}

/// A connection that has not proved its rank.
struct Stranger {
    stream: OwnedFd,
    greeting: Greeting,
    since: Instant,
}

/// A connection that carries a rank's requests.
struct Served {
    carrier: Socket,
    peer: u32,
    wants: Wants,
}

/// A descriptor of a thread that sleeps elsewhere, and what to call once it is readable.
struct Watched {
    descriptor: Arc<OwnedFd>,
    notify: Box<dyn Fn() + Send + Sync>,
}

struct Loop {
    epoll: Arc<OwnedFd>,
    listener: TcpListener,
    house: House,
    executor: Executor,
    strangers: BTreeMap<u64, Stranger>,
    served: BTreeMap<u64, Served>,
    watched: BTreeMap<u64, Watched>,
    /// Connections with requests that have arrived and were not executed yet.
    ready: Vec<u64>,
    /// Number of the next connection.
    next: u64,
    /// Time until which nothing is accepted, because no descriptor was left.
    paused: Option<Instant>,
}

impl Loop {
    /// Time for which the thread may sleep. `worked`: when something last arrived.
    fn timeout(&self, worked: Instant) -> Option<Timespec> {
        let time = if !self.ready.is_empty() || !self.house.is_oversubscribed && worked.elapsed() < LOOK {
            Some(Duration::ZERO)
        } else {
            self.has_timer().then_some(TICK)
        };
        time.map(|time| Timespec { tv_sec: 0, tv_nsec: time.as_nanos() as _ })
    }

    /// Returns whether something is due at a time, without an event.
    fn has_timer(&self) -> bool {
        self.paused.is_some() || !self.strangers.is_empty()
    }

    /// Serves connections with requests that were not executed yet, and those that the events name; takes up none after
    /// `until`. Events that are left out come again.
    fn step(&mut self, events: &[epoll::Event], until: Option<Instant>) {
        let is_late = || until.is_some_and(|until| Instant::now() >= until);
        let ready = std::mem::take(&mut self.ready);
        for (at, &number) in ready.iter().enumerate() {
            if is_late() {
                self.ready.extend(&ready[at..]);
                break;
            }
            self.serve(number);
        }
        for event in events {
            if is_late() {
                break;
            }
            match event.data.u64() {
                WAKE => {}
                LISTENER => self.accept(),
                number if self.strangers.contains_key(&number) => self.greet(number),
                number if number >= WATCHED => self.notify(number),
                number => self.serve(number),
            }
        }
        self.tick();
    }

    /// Notifies a thread that sleeps elsewhere, and not again before its watch is armed.
    fn notify(&self, number: u64) {
        let Some(Watched { descriptor, notify }) = self.watched.get(&number) else { return };
        let _ = epoll::delete(&self.epoll, descriptor);
        notify();
    }

    /// Ends connections that have not proved their rank in time, and accepts again after a pause.
    fn tick(&mut self) {
        while let Some((&number, oldest)) = self.strangers.first_key_value()
            && oldest.since.elapsed() > GREET_WITHIN
        {
            self.refuse(number, &"it did not prove its rank in time");
        }
        if self.paused.is_some_and(|until| until <= Instant::now()) {
            self.paused = None;
            let flags = epoll::EventFlags::IN;
            let _ = epoll::modify(&self.epoll, &self.listener, epoll::EventData::new_u64(LISTENER), flags);
        }
    }

    fn accept(&mut self) {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    let aborted = [io::ErrorKind::ConnectionAborted, io::ErrorKind::Interrupted];
                    if aborted.contains(&error.kind()) {
                        continue;
                    }
                    tracing::warn!(%error, "cannot accept a connection; trying again in {TICK:?}");
                    self.paused = Some(Instant::now() + TICK);
                    let (data, none) = (epoll::EventData::new_u64(LISTENER), epoll::EventFlags::empty());
                    let _ = epoll::modify(&self.epoll, &self.listener, data, none);
                    return;
                }
            };
            let _ = stream.set_nodelay(true);
            keep_alive(&stream);
            if self.strangers.len() >= STRANGERS + 2 * self.house.secrets.len()
                && let Some((&oldest, _)) = self.strangers.first_key_value()
            {
                self.refuse(oldest, &"too many connections have not proved their rank");
            }
            let number = self.next;
            self.next += 1;
            let stream = OwnedFd::from(stream);
            let data = epoll::EventData::new_u64(number);
            if epoll::add(&self.epoll, &stream, data, epoll::EventFlags::IN).is_ok() {
                let (greeting, since) = (Greeting::default(), Instant::now());
                self.strangers.insert(number, Stranger { stream, greeting, since });
            }
        }
    }

    fn greet(&mut self, number: u64) {
        let Some(stranger) = self.strangers.get_mut(&number) else { return };
        match greet(number, stranger, &self.house) {
            Ok(Some(hello)) => self.welcome(number, hello),
            Ok(None) => {}
            Err(error) => self.refuse(number, &error),
        }
    }

    /// Ends a connection that has not proved its rank.
    fn refuse(&mut self, number: u64, why: &dyn std::fmt::Display) {
        let Some(Stranger { stream, .. }) = self.strangers.remove(&number) else { return };
        self.house.mail.forget(number);
        // A child that the program forked may hold the connection open.
        let _ = epoll::delete(&self.epoll, &stream);
        let from = rustix::net::getpeername(&stream).map(|address| format!("{address:?}"));
        tracing::warn!(from = from.unwrap_or_default(), %why, "refused a connection");
    }

    /// Takes a connection that has proved its rank. It replaces an earlier one of the same rank.
    fn welcome(&mut self, number: u64, hello: Hello) {
        let Some(Stranger { stream, .. }) = self.strangers.remove(&number) else { return };
        if hello.to_use == Use::Messages {
            let _ = epoll::delete(&self.epoll, &stream);
            return self.house.mail.deliver(number, hello.from, stream);
        }
        let earlier = self.served.iter().find(|(_, served)| served.peer == hello.from).map(|(number, _)| *number);
        if let Some(earlier) = earlier {
            self.end(earlier, &"the rank has connected again");
        }
        let wants = Wants { turn: false, to_receive: true, to_send: false };
        self.served.insert(number, Served { carrier: Socket::new(stream), peer: hello.from, wants });
    }

    fn serve(&mut self, number: u64) {
        let Some(Served { carrier, wants, .. }) = self.served.get_mut(&number) else { return };
        match serve::turn(carrier, &mut self.executor) {
            Ok(next) => {
                let flags = |wants: Wants| {
                    let mut flags = epoll::EventFlags::empty();
                    flags.set(epoll::EventFlags::IN, wants.to_receive);
                    flags.set(epoll::EventFlags::OUT, wants.to_send);
                    flags
                };
                if flags(next) != flags(*wants) {
                    let data = epoll::EventData::new_u64(number);
                    let _ = epoll::modify(&self.epoll, carrier.descriptor(), data, flags(next));
                }
                *wants = next;
                // The connection is listed already if both its turn and an event led here.
                if next.turn && !self.ready.contains(&number) {
                    self.ready.push(number);
                }
            }
            Err(error) => self.end(number, &error),
        }
    }

    fn end(&mut self, number: u64, why: &dyn std::fmt::Display) {
        if let Some(Served { peer, carrier, .. }) = self.served.remove(&number) {
            let _ = epoll::delete(&self.epoll, carrier.descriptor());
            tracing::debug!(peer, %why, "a connection has ended");
        }
    }
}

/// Goes on with a handshake; returns the hello of a rank that has proved to be it.
fn greet(number: u64, stranger: &mut Stranger, house: &House) -> io::Result<Option<Hello>> {
    let Stranger { stream, greeting, .. } = stranger;
    let secrets_of = |hello: &Hello| {
        let from = house.secrets.get(hello.from as usize).filter(|_| hello.to == house.me && hello.from != house.me)?;
        Some([from, &house.secrets[house.me as usize]])
    };
    loop {
        let mut bytes = [0; 64];
        let most = greeting.wants().min(bytes.len());
        let received = match rustix::net::recv(&*stream, &mut bytes[..most], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((_, received)) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        match greeting.step(&bytes[..received], secrets_of)? {
            Step::More => {}
            Step::Answer(hello, answer) => {
                if hello.to_use == Use::Messages {
                    house.mail.expect(number, hello.from);
                }
                // The queue of a new connection has room for it.
                let sent = rustix::net::send(&*stream, &answer, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
                if sent < answer.len() {
                    return Err(io::ErrorKind::WriteZero.into());
                }
            }
            Step::Done(hello) => return Ok(Some(hello)),
        }
    }
}

#[cfg(test)]
mod tests;
