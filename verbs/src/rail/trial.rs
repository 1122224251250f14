//! Trial of a rail: makes on it what a job needs. Devices report less than they support, or more.

use super::Rail;
use crate::VerbsError;
use crate::sys::{Access, Capacity, CompletionQueue, Datagrams, QueuePair, Registered, SharedQueue};
use crate::wr::{Completions, RemoteAddress, Request, Token, Verb, WorkQueue};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire};
use std::time::{Duration, Instant};

/// Receive buffers of a rank's shared queue, at most.
pub(crate) const SHARED_RECEIVES: u32 = 1024;

/// Longest time for an atomic of this rank on its own memory.
const ANSWER: Duration = Duration::from_secs(5);

impl Rail {
    /// Makes a datagram queue pair, a shared receive queue, a reliable connection of this rank to itself, and an atomic
    /// on it. Functions that the device does not report are left out: only a device that the user named gets here
    /// without them.
    pub fn try_out(&self) -> Result<(), VerbsError> {
        self.try_datagrams().map_err(|error| self.without("datagrams (UD)", error))?;
        let limits = &self.context().limits;
        if limits.max_srq > 0 {
            let depth = SHARED_RECEIVES.min(limits.max_srq_wr.max(1) as u32);
            SharedQueue::new(&self.domain, depth).map_err(|error| self.without("shared receive queues", error))?;
        }
        let words = Box::new([0, 0].map(AtomicU64::new));
        // SAFETY: the words stay in place until the registration is dropped; all accesses are atomic.
        let registered =
            unsafe { Registered::new(&self.domain, NonNull::from(&*words).cast(), size_of_val(&*words), Access::All) }
                .map_err(|error| self.without("registration of memory", error))?;
        // Dropped before the registration, so that no request outlives it.
        let (queue, completions) =
            self.connected_to_itself().map_err(|error| self.without("reliable connections (RC)", error))?;
        if self.has_atomics() {
            self.try_atomic(&queue, &completions, &registered).map_err(|error| self.without("atomics", error))?;
            let found = words[0].load(Acquire);
            if found != 1 {
                let why = std::io::Error::other(format!("adding 1 to a word that was 0 made it {found}"));
                return Err(self.without("atomics", VerbsError::system("fetch-and-add", why)));
            }
        }
        Ok(())
    }

    fn try_datagrams(&self) -> Result<(), VerbsError> {
        let completions = Arc::new(CompletionQueue::new(self.context(), 1)?);
        let capacity = Capacity { depth: 1, receives: 1, inline: 0, scatter: 1 };
        Datagrams::new(&self.domain, &completions, &completions, capacity, &self.near_end(0), 1).map(drop)
    }

    /// Adds 1 to the first word of `registered`. The second word gets the value found.
    fn try_atomic(
        &self,
        queue: &QueuePair,
        completions: &CompletionQueue,
        registered: &Registered,
    ) -> Result<(), VerbsError> {
        let failed = |source| VerbsError::system("fetch-and-add", source);
        let request = Request {
            token: Token::new(0, 0),
            verb: Verb::Add(1),
            to: RemoteAddress { address: registered.address, key: registered.remote_key() },
            piece: registered.piece(size_of::<u64>(), size_of::<u64>()),
            signalled: true,
            fenced: false,
            inline: false,
        };
        // SAFETY: the memory stays registered for longer than the queue pair exists.
        unsafe { queue.post(&request) }.map_err(failed)?;
        let (began, mut result) = (Instant::now(), None);
        while result.is_none() {
            if began.elapsed() > ANSWER {
                return Err(failed(std::io::ErrorKind::TimedOut.into()));
            }
            completions.poll(&mut |completion| result = Some(completion.result)).map_err(failed)?;
            std::thread::yield_now();
        }
        match result {
            Some(Err(failure)) => Err(failed(std::io::Error::other(self.context().status(failure.status)))),
            _ => Ok(()),
        }
    }

    /// The error of a device without a working function.
    fn without(&self, function: &str, error: VerbsError) -> VerbsError {
        let todo = "TRANSOM_FABRIC=tcp does without RDMA, TRANSOM_VERBS_DEVICE selects another device";
        let why = format!("it has no working {function} ({error}); {todo}");
        VerbsError::unusable(format!("RDMA device {}", self.name()), why)
    }
}
