//! The service thread of a rank: accepts connections, and serves those of windows. It sleeps until something arrives, and
//! never waits for one peer.

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
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time within which a connection must have proved its rank.
const GREET_WITHIN: Duration = Duration::from_secs(10);
/// Most connections that have not, besides one for each use of each rank.
const STRANGERS: usize = 64;
/// Time for which the thread looks again before it sleeps, if the ranks have a core each.
const LOOK: Duration = Duration::from_micros(30);
/// Interval between checks of connections that have not proved their rank, and pause when descriptors are exhausted.
const TICK: Duration = Duration::from_millis(500);

const STOP: u64 = 0;
const LISTENER: u64 = 1;
const FIRST: u64 = 2;

/// State of the job that the thread uses.
pub struct House {
    pub me: u32,
    /// Each rank's secret.
    pub secrets: Arc<[Secret]>,
    pub mail: Arc<Mail>,
    /// The ranks of this host share cores.
    pub is_oversubscribed: bool,
}

/// The running thread. Dropping it ends the thread and its connections.
pub struct Service {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    pub fn start(listener: TcpListener, house: House, executor: Executor) -> io::Result<Service> {
        listener.set_nonblocking(true)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        let name = format!("transom tcp {}", house.me);
        let kept = stop.clone();
        let run = move || {
            let _stop = kept;
            let (strangers, served) = Default::default();
            Loop { epoll, listener, house, executor, strangers, served, ready: Vec::new(), next: FIRST, paused: None }
                .run();
        };
        let thread = std::thread::Builder::new().name(name).spawn(run)?;
        Ok(Service { stop, thread: Some(thread) })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
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

struct Loop {
    epoll: OwnedFd,
    listener: TcpListener,
    house: House,
    executor: Executor,
    strangers: BTreeMap<u64, Stranger>,
    served: BTreeMap<u64, Served>,
    /// Connections with requests that have arrived and were not executed yet.
    ready: Vec<u64>,
    /// Number of the next connection.
    next: u64,
    /// Time until which nothing is accepted, because no descriptor was left.
    paused: Option<Instant>,
}

impl Loop {
    fn run(&mut self) {
        let mut events = Vec::with_capacity(64);
        let mut worked = Instant::now();
        loop {
            let timeout = if !self.ready.is_empty() || !self.house.is_oversubscribed && worked.elapsed() < LOOK {
                Some(Duration::ZERO)
            } else {
                (self.paused.is_some() || !self.strangers.is_empty()).then_some(TICK)
            };
            let timeout = timeout.map(|time| Timespec { tv_sec: 0, tv_nsec: time.as_nanos() as _ });
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return tracing::error!(%error, "the service thread of TCP cannot wait, and ends"),
            }
            for number in std::mem::take(&mut self.ready) {
                self.serve(number);
            }
            if !events.is_empty() {
                worked = Instant::now();
            }
            for event in &events {
                match event.data.u64() {
                    STOP => return,
                    LISTENER => self.accept(),
                    number if self.strangers.contains_key(&number) => self.greet(number),
                    number => self.serve(number),
                }
            }
            self.tick();
        }
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
