//! Fake queues, with which the policy layers are tested without a device.

use super::lane::Start;
use super::wr::{Completion, Completions, Course, Failure, Kind, RemoteAddress, Request, Token, Verb, WorkQueue};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};

/// Start of a fake connection, just before packet numbers wrap around.
pub(super) const START: Start = Start { generation: 1, psn: 0xff_fffe, mtu: 1024 };

/// A fake queue that records posted requests and the order of events.
#[derive(Clone)]
pub(super) struct Queue {
    pub number: u32,
    pub depth: u32,
    pub posted: Arc<Mutex<Vec<Request>>>,
    pub events: Events,
    /// Called within each post, which blocks until it returns.
    pub hold: Option<Arc<dyn Fn() + Send + Sync>>,
    pub alive: Arc<()>,
    /// The queue belongs to another rail, on which memory with key [`UNNAMED`] has no key.
    pub failover: bool,
    pub fences: bool,
    /// Atomics that the peer was asked to perform.
    pub asked: Arc<Mutex<Vec<u64>>>,
}

pub(super) const UNNAMED: u32 = 66;

/// Events in order.
pub(super) type Events = Arc<Mutex<Vec<&'static str>>>;

impl Queue {
    pub fn new(number: u32, depth: u32) -> Self {
        let (posted, events, alive, asked) = Default::default();
        Queue { number, depth, posted, events, hold: None, alive, failover: false, fences: true, asked }
    }

    pub fn take(&self) -> Vec<Request> {
        std::mem::take(&mut self.posted.lock().unwrap())
    }
}

impl WorkQueue for Queue {
    fn number(&self) -> u32 {
        self.number
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn inline(&self) -> u32 {
        16
    }

    unsafe fn post(&self, request: &Request) -> io::Result<()> {
        if let Some(hold) = &self.hold {
            hold();
        }
        self.posted.lock().unwrap().push(*request);
        Ok(())
    }

    fn fences(&self) -> bool {
        self.fences
    }

    fn is_failover(&self) -> bool {
        self.failover
    }

    fn course(&self, verb: Verb, to: RemoteAddress) -> Course {
        match (self.failover, verb.kind()) {
            (true, Kind::Atomic) => Course::Asked,
            (true, _) if to.key == UNNAMED => Course::Waits,
            _ => Course::Posted,
        }
    }

    fn ask(&self, number: u64, _: Verb, _: RemoteAddress) {
        self.asked.lock().unwrap().push(number);
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // The test holds a clone.
        if Arc::strong_count(&self.alive) > 1 {
            self.events.lock().unwrap().push("queue gone");
        }
    }
}

/// A lent object that records when it is freed.
#[derive(Debug)]
pub(super) struct Thing(pub &'static str, pub Events);

impl Drop for Thing {
    fn drop(&mut self) {
        self.1.lock().unwrap().push(self.0);
    }
}

/// A completion queue that returns what a test has put in.
#[derive(Default)]
pub(super) struct CompletionQueue(pub Mutex<VecDeque<io::Result<Completion>>>);

impl Completions for CompletionQueue {
    fn poll(&self, each: &mut dyn FnMut(Completion)) -> io::Result<()> {
        while let Some(next) = { self.0.lock().unwrap().pop_front() } {
            each(next?);
        }
        Ok(())
    }
}

/// A completion of a lane's request on a queue pair.
pub(super) fn completion(lane: u32, queue_pair: u32, request: u64, result: Result<(), Failure>) -> Completion {
    Completion { token: Token::new(lane, request), queue_pair, bytes: 0, value: None, result }
}
