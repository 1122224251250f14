//! Checksums of packets, by datagrams and by connections.

use crate::datagrams::{NONE, Receives, Wires, conditions, config};
use crate::model::changed::{Change, Changed};
use transom_channel::delivery::{Delivery, Settings};
use transom_channel::sim::{Conditions, Faults, Sim, SimMemory, SimWire};
use transom_channel::wire::{Event, Rail, RailKind, WireMemory};
use transom_channel::{Config, Wire};

#[test]
fn checksum_detects_flipped_bits() {
    let faults = Faults { flipped: 200, ..NONE };
    let settings = Settings { checksum: true, ..Settings::default() };
    let over = |wire| Delivery::new(wire, settings);
    let mut sim = Sim::over(9, conditions(faults), vec![config(); 2], over).unwrap();
    for number in 0..100 {
        let length = 10_000;
        sim.engine(0).send(1, 0, 0, SimMemory::pattern(number, length), length, false);
    }
    let receives = Receives::post(&mut sim, 1, 100);
    sim.wake(0, 0);
    sim.wake(1, 0);
    while sim.step().is_some() {}
    receives.check(&mut sim, 1, 10_000);
    assert!(sim.engine(1).counters().spoiled > 30);
}

/// Flips a bit of each fifth packet that arrives.
struct Flip {
    came: usize,
}

impl Change for Flip {
    fn poll(&mut self, wire: &mut SimWire) -> Option<Event<SimMemory>> {
        let event = wire.poll();
        if let Some(Event::Arrived { slot, at, length, .. }) = &event {
            self.came += 1;
            if self.came.is_multiple_of(5) {
                let at = at + self.came % length;
                let mut byte = [0];
                slot.read(at, &mut byte);
                SimMemory::bytes(&[byte[0] ^ 4]).copy(0, 1, slot, at);
            }
        }
        event
    }
}

/// Short messages would take a ring, long ones would be read or written in place.
#[test]
fn checksum_covers_connections() {
    let settings = Settings { checksum: true, ..Settings::default() };
    let config = Config { checksum: true, ring_after: 1, ..Config::default() };
    let over = |wire| Delivery::new(Changed { wire, change: Flip { came: 0 } }, settings);
    let mut sim = Sim::over(9, Conditions::default(), vec![config; 2], over).unwrap();
    for length in [100, 100_000] {
        for number in 0..100 {
            sim.engine(0).send(1, 0, 0, SimMemory::pattern(number, length), length, false);
        }
        let receives = Receives::post(&mut sim, 1, 100);
        (0..2).for_each(|rank| sim.wake(rank, 0));
        while sim.step().is_some() {}
        receives.check(&mut sim, 1, length);
    }
    let traffic = sim.traffic(0)[0];
    assert_eq!((traffic.puts.requests, traffic.moves.requests), (0, 0), "a packet without a checksum");
    assert!(sim.engine(1).counters().spoiled > 100, "{:?}", sim.engine(1).counters());
}

/// Only the first of two connections is made before it is cut.
#[test]
fn checked_packets_of_a_cut_connection_go_on_by_another() {
    let rail = Conditions::default().rails[0];
    let conditions = Conditions { rails: vec![rail; 2], ..Conditions::default() };
    let settings = Settings { checksum: true, ..Settings::default() };
    let config = Config { checksum: true, ..config() };
    let mut sim = Sim::over(9, conditions, vec![config; 2], |wire| Delivery::new(wire, settings)).unwrap();
    for round in 0..2 {
        for number in 0..100 {
            sim.engine(0).send(1, 0, 0, SimMemory::pattern(number, 1000), 1000, false);
        }
        let receives = Receives::post(&mut sim, 1, 100);
        (0..2).for_each(|rank| sim.wake(rank, 0));
        (0..50).for_each(|_| _ = sim.step());
        sim.cut(0, true);
        while sim.step().is_some() {}
        receives.check(&mut sim, 1, 1000);
        assert!(round > 0 || sim.traffic(0)[0].sends.requests > 0, "the first rail was not used");
    }
    assert!(sim.traffic(0)[1].sends.requests >= 100, "{:?}", sim.traffic(0));
}

#[test]
fn checked_packets_of_a_cut_connection_go_on_as_datagrams() {
    let mut conditions = conditions(NONE);
    let datagrams = conditions.rails[0];
    conditions.rails.insert(0, Rail { kind: RailKind::Connection, longest: 16 << 10, ..datagrams });
    let settings = Settings { checksum: true, ..Settings::default() };
    let config = Config { checksum: true, connect_after: 1, ..config() };
    let mut sim = Sim::over(9, conditions, vec![config; 2], |wire| Delivery::new(wire, settings)).unwrap();
    let sends = |sim: &mut Sim<Wires>, cut: bool| {
        let before = sim.traffic(0).map(|traffic| traffic.sends.requests);
        for number in 0..100 {
            sim.engine(0).send(1, 0, 0, SimMemory::pattern(number, 10_000), 10_000, false);
        }
        let receives = Receives::post(sim, 1, 100);
        (0..2).for_each(|rank| sim.wake(rank, 0));
        (0..50).for_each(|_| _ = sim.step());
        sim.cut(0, cut);
        while sim.step().is_some() {}
        receives.check(sim, 1, 10_000);
        let after = sim.traffic(0).map(|traffic| traffic.sends.requests);
        [after[0] - before[0], after[1] - before[1]]
    };
    let [connection, _] = sends(&mut sim, false);
    assert!(connection > 0);
    sends(&mut sim, true);
    let [cut, datagrams] = sends(&mut sim, true);
    assert!(cut == 0 && datagrams >= 300, "{cut} by the cut connection, {datagrams} datagrams");
}
