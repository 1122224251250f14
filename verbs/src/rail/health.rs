//! Health of a rail, from events of its device and errors of its completion queues.

use crate::sys::Event;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Health of one of this rank's rails.
#[derive(Default)]
pub(crate) struct Health {
    broken: OnceLock<Broken>,
    port_down: AtomicBool,
    /// Number of events after which addresses may differ from those known before.
    address_changes: AtomicU32,
}

/// The reason why a rail failed for good: its requests will never be reported complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    Device,
    CompletionQueue { why: String },
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Device => write!(f, "it failed or was removed; see `dmesg`"),
            Broken::CompletionQueue { why } => write!(f, "its completion queue failed: {why}"),
        }
    }
}

impl Health {
    pub fn broken(&self) -> Option<&Broken> {
        self.broken.get()
    }

    /// Returns whether the last port event was "down". The port may come up again.
    pub fn port_down(&self) -> bool {
        self.port_down.load(Relaxed)
    }

    /// Number of changes of the port's addresses or of its subnet manager so far. Address handles from before the last one
    /// may lead elsewhere.
    pub fn address_changes(&self) -> u32 {
        self.address_changes.load(Relaxed)
    }

    pub fn has_broken(&self, why: Broken) {
        if self.broken.set(why.clone()).is_ok() {
            tracing::error!(%why, "an RDMA device is lost");
        }
    }

    /// Records a device event; returns the queue pair that failed, if the event says so.
    pub fn note(&self, event: Event, port: u8) -> Option<u32> {
        match event {
            Event::DeviceFatal => self.has_broken(Broken::Device),
            Event::CompletionQueue => {
                self.has_broken(Broken::CompletionQueue { why: "its device reported an error".into() })
            }
            Event::Port { port: of, active } if of == port => {
                if self.port_down.swap(!active, Relaxed) == active {
                    tracing::warn!(port, active, "an RDMA port changed");
                }
            }
            Event::QueuePair { number } => return Some(number),
            Event::Address { port: of, change } if of == port => {
                self.address_changes.fetch_add(1, Relaxed);
                tracing::warn!(port, ?change, "addresses of an RDMA port changed; those of peers are resolved again");
            }
            Event::Port { .. } | Event::Address { .. } | Event::LastBuffer { .. } | Event::Other(_) => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::AddressChange;

    #[test]
    fn port_recovers_and_device_does_not() {
        let health = Health::default();
        assert_eq!(health.note(Event::Port { port: 2, active: false }, 1), None);
        assert!(!health.port_down(), "another port");
        health.note(Event::Port { port: 1, active: false }, 1);
        assert!(health.port_down() && health.broken().is_none());
        health.note(Event::Port { port: 1, active: true }, 1);
        assert!(!health.port_down());
        assert_eq!(health.note(Event::QueuePair { number: 5 }, 1), Some(5));
        health.note(Event::Other(3), 1);
        for port in [1, 2, 1] {
            health.note(Event::Address { port, change: AddressChange::Lid }, 1);
        }
        assert_eq!(health.address_changes(), 2, "those of the rail's port");
        assert_eq!(health.broken(), None);
        health.note(Event::DeviceFatal, 1);
        health.note(Event::CompletionQueue, 1);
        assert_eq!(health.broken(), Some(&Broken::Device), "the first error counts");
        let health = Health::default();
        health.note(Event::CompletionQueue, 1);
        assert!(matches!(health.broken(), Some(Broken::CompletionQueue { .. })));
    }
}
