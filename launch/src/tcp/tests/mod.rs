//! Tests with ranks as threads around a hub.

mod hostile;
mod hubs;
mod members;
mod networks;
mod scale;
mod teams;
mod traffic;
mod uplinks;

use super::frames::{ASK, FORM, GATHERED, HERE, HOST, JOB, LONGEST, LONGEST_HOST, PART, PART_OF_HOST, RUNS, WELCOME};
use super::wire::{ANSWER, Answer, Body, HELLO, Hello, Opener, Sealer, greet};
use super::*;
use crate::descriptors;
use crate::process::ProcessId;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use transom_locks::{Awaited, Rank};
use transom_windows::{FabricError, OobExchange};

const LIMIT: Duration = Duration::from_secs(30);

struct Job {
    hub: Hub,
    secret: Secret,
    size: usize,
    /// This machine's address in another network, while a test visits that network.
    seen_from: std::sync::Mutex<Option<[u8; 4]>>,
}

impl Job {
    fn start(size: usize) -> Self {
        Self::with(size, Secret::fresh().unwrap())
    }

    fn with(size: usize, secret: Secret) -> Self {
        Job { hub: Hub::start(size, secret.clone()).unwrap(), secret, size, seen_from: Default::default() }
    }

    fn address(&self) -> SocketAddr {
        (self.seen_from.lock().unwrap().unwrap_or([127, 0, 0, 1]), self.hub.port()).into()
    }

    fn join(&self, rank: Rank) -> Tcp {
        join(rank, self.size, self.address(), &self.secret, HubAt::Launcher)
    }

    fn all(&self) -> Vec<Tcp> {
        (0..self.size).map(|rank| self.join(rank)).collect()
    }

    /// The connection of a host with these ranks.
    fn uplink(&self, ranks: impl IntoIterator<Item = Rank>) -> Uplink {
        Uplink::start(contact(self.address(), &self.secret), self.size, ranks.into_iter().collect()).unwrap()
    }

    /// Joins through the connection of the rank's host.
    fn join_via(&self, uplink: &Uplink, rank: Rank) -> Tcp {
        join(rank, self.size, uplink.address(), &self.secret, HubAt::Launcher)
    }

    fn connection(&self) -> TcpStream {
        let connection = TcpStream::connect(self.address()).unwrap();
        connection.set_read_timeout(Some(LIMIT)).unwrap();
        connection
    }
}

fn process(rank: Rank) -> ProcessId {
    ProcessId::new("host", rank as u32)
}

fn hello(rank: Rank, size: usize) -> Hello {
    Hello { rank, size, process: process(rank) }
}

fn contact(address: SocketAddr, secret: &Secret) -> Contact {
    Contact { via: None, addresses: vec![address], secret: secret.clone() }
}

fn join(rank: Rank, size: usize, address: SocketAddr, secret: &Secret, hub: HubAt) -> Tcp {
    Tcp::join(rank, size, process(rank), &contact(address, secret), hub).unwrap()
}

/// Runs `body` on a thread; panics if it takes longer than [`LIMIT`].
fn within<R: Send + 'static>(body: impl FnOnce() -> R + Send + 'static) -> R {
    let (send, receive) = mpsc::channel();
    let thread: JoinHandle<()> = std::thread::spawn(move || drop(send.send(body())));
    match receive.recv_timeout(LIMIT) {
        Ok(returned) => returned,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the call takes longer than {LIMIT:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => std::panic::resume_unwind(thread.join().unwrap_err()),
    }
}

/// Runs `body` for all ranks, each on a thread of its own.
fn on_all<R: Send + 'static>(ranks: Vec<Tcp>, body: impl Fn(Tcp) -> R + Send + Sync + Clone + 'static) -> Vec<R> {
    let run = |rank| {
        let body = body.clone();
        std::thread::spawn(move || body(rank))
    };
    let running: Vec<_> = ranks.into_iter().map(run).collect();
    within(move || running.into_iter().map(|rank| rank.join().unwrap()).collect())
}

/// Polls until `so` returns true.
fn until(mut so: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !so() {
        assert!(Instant::now() < until, "the condition is false after {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The connection of a rank without its reading thread.
fn raw(job: &Job, rank: Rank) -> (TcpStream, Sealer, Opener) {
    raw_at(job.address(), job, rank)
}

fn raw_at(address: SocketAddr, job: &Job, rank: Rank) -> (TcpStream, Sealer, Opener) {
    match greet(&address, hello(rank, job.size), &job.secret).unwrap() {
        Answer::Welcome(stream, to, from) => (stream, to, from),
        Answer::Refused(_) => panic!("refused"),
    }
}

fn frame(to: &mut Sealer, kind: u8, group: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    to.frame(kind, group, &Body::new(body.to_vec()).unwrap()).write_to(&mut bytes).unwrap();
    bytes
}
