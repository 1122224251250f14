//! What the thread that connects shares with the rank.

use crate::verbs::VerbsError;
use crate::verbs::device::Device;
use crate::verbs::engine::{Engine, Link, Maker};
use crate::verbs::settings::Settings;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;
use transom_locks::Rank;

pub(in crate::verbs) struct Core {
    pub me: Rank,
    engine: Mutex<Engine>,
    pub settings: Settings,
    /// Told when a connection came about, or cannot.
    connected: Condvar,
    commands: Mutex<Vec<Command>>,
    /// Readable when there are commands.
    pub(super) wake: OwnedFd,
    pub(super) maker: Maker,
    pub device: Arc<Device>,
}

/// What the rank tells the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Connect(Rank),
    Died(Rank),
    Stop,
}

impl Core {
    pub(super) fn new(me: Rank, device: Arc<Device>, engine: Engine, settings: Settings) -> Result<Self, VerbsError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| VerbsError::system("eventfd", errno.into()))?;
        let maker = engine.maker.clone();
        let (engine, connected, commands) = (Mutex::new(engine), Condvar::new(), Mutex::default());
        Ok(Core { me, engine, settings, connected, commands, wake, maker, device })
    }

    pub fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Sees to it that a connection comes about, or anew after a refusal; how far it is.
    pub fn want(&self, peer: Rank) -> Link {
        let mut engine = self.engine();
        let of = &mut engine.peers[peer];
        if of.failure.is_some() {
            // What failed is told by the operation.
            return Link::Ready;
        }
        if matches!(of.link, Link::Absent | Link::Refused { .. }) {
            of.link = Link::Wanted;
            drop(engine);
            self.command(Command::Connect(peer));
            return Link::Wanted;
        }
        of.link
    }

    /// Waits a while for a connection that is wanted; how far it is.
    pub fn await_connection(&self, peer: Rank, time: Duration) -> Link {
        let waiting = |engine: &mut Engine| engine.peers[peer].link == Link::Wanted;
        let waited = self.connected.wait_timeout_while(self.engine(), time, waiting);
        waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0.peers[peer].link
    }

    /// The job says that a peer died: its connection is gone, and there will be no other.
    pub fn died(&self, peer: Rank) {
        let mut engine = self.engine();
        // Whatever failed before, it is not to be asked any more.
        let is_asked = engine.peers[peer].link == Link::Wanted;
        if engine.give_up(peer) || is_asked {
            drop(engine);
            self.command(Command::Died(peer));
        }
    }

    pub(super) fn stop(&self) {
        self.command(Command::Stop);
    }

    fn command(&self, command: Command) {
        self.commands.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(command);
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub(super) fn commands(&self) -> Vec<Command> {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        std::mem::take(&mut self.commands.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Takes a note in the engine, and wakes whoever waits for a connection.
    pub(super) fn note<R>(&self, note: impl FnOnce(&mut Engine) -> R) -> R {
        let noted = note(&mut self.engine());
        self.connected.notify_all();
        noted
    }
}
