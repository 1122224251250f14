//! Whether a rail works: what its device and completion queues have said against it.

use crate::sys::Event;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What a rank knows of a rail of its own.
#[derive(Default)]
pub(crate) struct Health {
    broken: OnceLock<Broken>,
    port_down: AtomicBool,
}

/// Why a rail will not work again: requests on it will never be told complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    Device,
    CompletionQueue { why: String },
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Device => write!(f, "it failed, or was taken away; see `dmesg`"),
            Broken::CompletionQueue { why } => write!(f, "its completion queue failed: {why}"),
        }
    }
}

impl Health {
    pub fn broken(&self) -> Option<&Broken> {
        self.broken.get()
    }

    /// Whether its port was last said to be down: it may come up again.
    pub fn port_down(&self) -> bool {
        self.port_down.load(Relaxed)
    }

    pub fn has_broken(&self, why: Broken) {
        if self.broken.set(why.clone()).is_ok() {
            tracing::error!(%why, "an RDMA device is lost");
        }
    }

    /// Takes note of what the device said; which queue pair failed, if that is what.
    pub fn note(&self, event: Event, port: u8) -> Option<u32> {
        match event {
            Event::DeviceFatal => self.has_broken(Broken::Device),
            Event::CompletionQueue => self.has_broken(Broken::CompletionQueue { why: "its device says so".into() }),
            Event::Port { port: of, active } if of == port => {
                if self.port_down.swap(!active, Relaxed) == active {
                    tracing::warn!(port, active, "an RDMA port changed");
                }
            }
            Event::QueuePair { number } => return Some(number),
            Event::Port { .. } | Event::LastBuffer { .. } | Event::Other(_) => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_may_come_up_again_and_a_device_does_not() {
        let health = Health::default();
        assert_eq!(health.note(Event::Port { port: 2, active: false }, 1), None);
        assert!(!health.port_down(), "another port");
        health.note(Event::Port { port: 1, active: false }, 1);
        assert!(health.port_down() && health.broken().is_none());
        health.note(Event::Port { port: 1, active: true }, 1);
        assert!(!health.port_down());
        assert_eq!(health.note(Event::QueuePair { number: 5 }, 1), Some(5));
        health.note(Event::Other(3), 1);
        assert_eq!(health.broken(), None);
        health.note(Event::DeviceFatal, 1);
        health.note(Event::CompletionQueue, 1);
        assert_eq!(health.broken(), Some(&Broken::Device), "the first that was said");
        let health = Health::default();
        health.note(Event::CompletionQueue, 1);
        assert!(matches!(health.broken(), Some(Broken::CompletionQueue { .. })));
    }
}
