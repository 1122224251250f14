//! A network within this process: words are atomics, and a rank is any holder of a handle.

#![allow(dead_code)] // Each test binary uses a part.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use transom_locks::{At, Awaited, FoundWord, LockLayout, LockWord, Network, Rank, Wake};

/// Panics, instead of waiting for ever, if `body` takes longer than a minute.
pub fn in_time(body: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let body = thread::spawn(move || {
        body();
        let _ = done.send(());
    });
    match ended.recv_timeout(Duration::from_secs(60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("a call of `body` waits for ever"),
        _ => body.join().unwrap(),
    }
}

/// The network as one rank sees it. Before each verb it calls `hook`, which may panic.
#[derive(Clone)]
pub struct Atomics<H> {
    memory: Arc<Vec<Vec<AtomicU64>>>,
    rank: Rank,
    hook: H,
    watches: bool,
    posts: bool,
    /// The verbs on words that this network has found; `None` if it finds none.
    found: Option<Arc<AtomicUsize>>,
}

/// A word that the network found.
pub struct Found {
    memory: Arc<Vec<Vec<AtomicU64>>>,
    at: At,
    verbs: Arc<AtomicUsize>,
}

impl Found {
    fn word(&self) -> &AtomicU64 {
        self.verbs.fetch_add(1, SeqCst);
        &self.memory[self.at.rank][self.at.word]
    }
}

impl FoundWord for Found {
    fn cas(&self, expected: u64, new: u64) -> u64 {
        self.word().compare_exchange(expected, new, SeqCst, SeqCst).unwrap_or_else(|found| found)
    }

    fn add(&self, delta: u64) -> u64 {
        self.word().fetch_add(delta, SeqCst)
    }

    fn read(&self) -> u64 {
        self.word().load(SeqCst)
    }
}

/// The verb that a hook is called for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Cas,
    Add,
    Notify,
    Wait,
}

/// A hook that does nothing.
pub fn quiet(_: Verb) {}

/// Memory for the locks of `ranks` ranks.
pub fn memory(ranks: usize) -> Arc<Vec<Vec<AtomicU64>>> {
    let words = |_| (0..LockLayout::words(ranks)).map(|_| AtomicU64::new(0)).collect();
    Arc::new((0..ranks).map(words).collect())
}

impl<H: Fn(Verb)> Atomics<H> {
    pub fn new(memory: &Arc<Vec<Vec<AtomicU64>>>, rank: Rank, hook: H) -> Self {
        Atomics { memory: memory.clone(), rank, hook, watches: false, posts: false, found: None }
    }

    /// The same network, watching the words of other ranks.
    pub fn watching(self) -> Self {
        Atomics { watches: true, ..self }
    }

    /// The same network, whose additions have no result before `finish`.
    pub fn posting(self) -> Self {
        Atomics { posts: true, ..self }
    }

    /// The same network, which finds words, and counts the verbs on them.
    pub fn finding(self, verbs: &Arc<AtomicUsize>) -> Self {
        Atomics { found: Some(verbs.clone()), ..self }
    }

    fn word(&self, verb: Verb, at: At) -> &AtomicU64 {
        (self.hook)(verb);
        &self.memory[at.rank][at.word]
    }
}

/// The lock word of a rank.
pub fn lock_word(memory: &[Vec<AtomicU64>], target: Rank) -> LockWord {
    LockWord(memory[target][0].load(SeqCst))
}

impl<H: Fn(Verb)> Network for Atomics<H> {
    type Error = std::convert::Infallible;
    type Pending = u64;
    type Found = Found;

    fn rank(&self) -> Rank {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.memory.len()
    }

    fn cas(&self, at: At, expected: u64, new: u64, _: Wake) -> Result<u64, Self::Error> {
        Ok(self.word(Verb::Cas, at).compare_exchange(expected, new, SeqCst, SeqCst).unwrap_or_else(|found| found))
    }

    fn start_add(&self, at: At, delta: u64, _: Wake) -> Result<u64, Self::Error> {
        Ok(self.word(Verb::Add, at).fetch_add(delta, SeqCst))
    }

    fn finish(&self, found: u64) -> Result<u64, Self::Error> {
        Ok(found)
    }

    fn try_finish(&self, found: u64) -> Result<u64, u64> {
        if self.posts { Err(found) } else { Ok(found) }
    }

    fn find(&self, at: At) -> Option<Found> {
        self.found.clone().map(|verbs| Found { memory: self.memory.clone(), at, verbs })
    }

    fn notify(&self, at: At, value: u64, _: Wake) -> Result<(), Self::Error> {
        self.word(Verb::Notify, at).store(value, SeqCst);
        Ok(())
    }

    fn wait(&self, word: usize, _: Awaited, until: impl Fn(u64) -> bool) -> Result<u64, Self::Error> {
        loop {
            let value = self.word(Verb::Wait, At { rank: self.rank, word }).load(SeqCst);
            if until(value) {
                return Ok(value);
            }
            thread::yield_now();
        }
    }

    fn watches(&self, _: Rank) -> bool {
        self.watches
    }
}
