//! Packets of a wire, without an engine.

use super::on_hosts;
use crate::Tcp;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use transom_channel::Changes;
use transom_channel::wire::{Data, Event, Lane, Request, Why, WireMemory};
use transom_locks::Awaited;
use transom_network::{Hybrid, Network, NetworkWire};
use transom_shm_loopback::messages::Bytes;
use transom_windows::OobExchange;

/// Longest wait of a test for what must happen, and the time within which a departure must be reported. A rank whose
/// streams do not end is reported later.
pub const LONG: Duration = Duration::from_secs(20);

pub fn wire(world: &Hybrid<Tcp>) -> Box<dyn NetworkWire> {
    world.network().wire(&Changes::default()).unwrap().0
}

/// Polls until an event other than `Worked`.
fn next(wire: &mut Box<dyn NetworkWire>) -> Event<Bytes> {
    let since = Instant::now();
    loop {
        match wire.poll() {
            Some(Event::Worked) | None => assert!(since.elapsed() < LONG, "nothing has happened"),
            Some(event) => return event,
        }
        wire.look_for_the_gone();
        std::thread::sleep(Duration::from_micros(100));
    }
}

pub fn until_up(wire: &mut Box<dyn NetworkWire>) {
    assert!(matches!(next(wire), Event::Up(_)));
}

pub fn send(wire: &mut Box<dyn NetworkWire>, peer: u32, bytes: &[u8]) -> bool {
    wire.post(Lane { peer, rail: 0 }, Request::Send { head: bytes, body: Data::None }).is_ok()
}

/// The bytes of a packet, or the reason why its sender is lost.
pub fn received(wire: &mut Box<dyn NetworkWire>) -> Result<Vec<u8>, Why> {
    match next(wire) {
        Event::Arrived { slot, at, length, .. } => {
            let mut bytes = vec![0; length];
            slot.read(at, &mut bytes);
            Ok(bytes)
        }
        Event::Failed(_, why) => Err(why),
        Event::Up(_) => received(wire),
        event => panic!("{:?}", event.lane()),
    }
}

/// A peer receives nothing: the sender is busy before it has queued without bound. Then all packets arrive in order.
#[test]
fn queue_to_a_silent_peer_is_bounded() {
    let (most, is_done) = (64 << 20, AtomicBool::new(false));
    on_hosts(&[0, 1], |world| {
        let mut wire = wire(&world);
        let mut sent: u64 = 0;
        if world.rank() == 0 {
            wire.connect(Lane { peer: 1, rail: 0 });
            until_up(&mut wire);
            while send(&mut wire, 1, &sent.to_le_bytes().repeat(4000)) {
                sent += 1;
                assert!(sent * 32_000 < most, "the queue has no bound");
            }
        }
        let told = world.all_gather(&sent.to_le_bytes()).unwrap();
        if world.rank() == 0 {
            while !is_done.load(SeqCst) && world.check_peers(Awaited::Rank(1)).is_ok() {
                wire.poll(); // sends queued packets
            }
        } else {
            for number in 0..u64::from_le_bytes(told[0][..].try_into().unwrap()) {
                assert_eq!(received(&mut wire).unwrap()[..8], number.to_le_bytes());
            }
            is_done.store(true, SeqCst);
        }
        world.barrier().unwrap();
    });
}

/// Packets that have arrived are not delivered once the engine has aborted their sender.
#[test]
fn aborted_peer_delivers_nothing_more() {
    on_hosts(&[0, 1], |world| {
        let mut wire = wire(&world);
        if world.rank() == 1 {
            until_up(&mut wire);
            assert!((0..2).all(|_| send(&mut wire, 0, b"packet")));
            (0..2).for_each(|_| world.barrier().unwrap());
            return;
        }
        wire.connect(Lane { peer: 1, rail: 0 });
        until_up(&mut wire);
        world.barrier().unwrap();
        assert_eq!(received(&mut wire), Ok(b"packet".to_vec()));
        wire.abort_peer(1);
        (0..100).for_each(|_| assert!(matches!(wire.poll(), None | Some(Event::Worked))));
        world.barrier().unwrap();
    });
}
