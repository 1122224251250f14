//! Tests of the provider over real sockets: ranks are threads, each as if on a host of its own.

mod departures;
mod hostile;
mod lanes;
mod messages;
mod route;
mod windows;

use crate::Tcp;
use std::sync::Arc;
use transom_channel::Config;
use transom_network::{Bootstrap, Hybrid, Node};
use transom_shm_loopback::Loopback;

/// Runs `body` on a rank for each entry of `hosts`, the number of its host.
fn on_hosts(hosts: &[u32], body: impl Fn(Hybrid<Tcp>) + Sync) {
    on_hosts_by(hosts, |job| job, body);
}

/// Runs `body` as [`on_hosts`]; each rank uses the bootstrap that `wrap` makes of its own.
fn on_hosts_by(
    hosts: &[u32],
    wrap: impl Fn(Arc<dyn Bootstrap>) -> Arc<dyn Bootstrap> + Sync,
    body: impl Fn(Hybrid<Tcp>) + Sync,
) {
    let jobs = Loopback::threads(hosts.len()).unwrap();
    let numbered = |host: u32| hosts.iter().enumerate().filter(move |(_, of)| **of == host);
    let mut here = vec![Vec::new(); hosts.len()];
    let mut nodes: Vec<Option<Loopback>> = vec![None; hosts.len()];
    for host in 0..=hosts.iter().copied().max().unwrap() {
        let memories = Loopback::threads(numbered(host).count()).unwrap();
        for ((rank, _), memory) in numbered(host).zip(memories) {
            nodes[rank] = Some(memory);
            here[rank] = (0..hosts.len()).map(|other| numbered(host).position(|(rank, _)| rank == other)).collect();
        }
    }
    std::thread::scope(|scope| {
        for ((job, here), memory) in jobs.into_iter().zip(here).zip(nodes) {
            let (body, wrap) = (&body, &wrap);
            scope.spawn(move || {
                let bootstrap = wrap(Arc::new(job.clone()));
                let ended = Leaving(job);
                let node = Node::some(memory.unwrap(), here, hosts);
                body(Hybrid::open(bootstrap, node, &Config::default()).unwrap());
                drop(ended);
            });
        }
    });
}

/// Leaves the job when dropped, so that no rank waits for one that panicked.
struct Leaving(Loopback);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.leave();
    }
}
