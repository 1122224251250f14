//! The two halves of delivery alone, on a network that loses, duplicates and reorders. A plain model records
//! the packets that have arrived and those known to the sender. `SEED=n` reruns one seed, `SEEDS=n` runs n of
//! them.

use std::collections::BTreeSet;
use transom_channel::delivery::{Acknowledgement, Come, Expired, FLYING, Incoming, Outgoing, RoundTrip, Settings};

const SETTINGS: Settings =
    Settings { floor: 1000, ceiling: 50_000, give_up: 400_000, delay: 50, every: 4, checksum: false, room: 64 };

struct Job {
    rng: fastrand::Rng,
    now: u64,
    outgoing: Outgoing<u64>,
    incoming: Incoming,
    /// Packets and acknowledgements in flight.
    packets: Vec<(u64, u64)>,
    told: Vec<Acknowledgement>,
    pushed: u64,
    came: BTreeSet<u64>,
    acked: BTreeSet<u64>,
    permitted: u16,
}

impl Job {
    fn new(seed: u64) -> Job {
        let (outgoing, incoming) = (Outgoing::new(&SETTINGS), Incoming::default());
        let rng = fastrand::Rng::with_seed(seed);
        let (packets, told, came, acked) = Default::default();
        Job { rng, now: 5, outgoing, incoming, packets, told, pushed: 0, came, acked, permitted: 64 }
    }

    fn push(&mut self) {
        self.outgoing.push(self.pushed);
        self.pushed += 1;
    }

    fn send(&mut self) {
        let Some((number, sending, packet)) = self.outgoing.next() else { return };
        assert_eq!(number, *packet, "packet sent out of order");
        let unknown = self.acked.len() as u64;
        assert!(number < unknown + FLYING, "more packets in flight than the acknowledgement mask covers");
        self.packets.push((number, sending));
        self.outgoing.sent(number, self.now, 0);
    }

    fn arrive(&mut self, packet: (u64, u64)) {
        let (number, sending) = packet;
        let first = self.came.insert(number);
        let expected = if first { Come::New } else { Come::Again };
        assert_eq!(self.incoming.came(number, sending, self.now), expected, "packet {number}");
    }

    fn tell(&mut self) {
        self.told.push(self.incoming.acknowledgement(self.permitted));
        self.incoming.told();
    }

    fn hear(&mut self, told: Acknowledgement) {
        let mut freed = Vec::new();
        self.outgoing.acknowledged(told, self.now, &mut freed).unwrap();
        for packet in freed {
            assert!(self.came.contains(&packet), "packet {packet} was freed before it arrived");
            assert!(self.acked.insert(packet), "packet {packet} was freed twice");
        }
        let known = |number: &u64| {
            *number < told.before || (1..=64).any(|i| told.mask >> (i - 1) & 1 == 1 && *number == told.before + i)
        };
        assert!(self.came.iter().filter(|number| known(number)).all(|number| self.acked.contains(number)));
        assert_eq!(
            self.outgoing.kept() as u64,
            self.pushed - (0..).take_while(|n| self.acked.contains(n)).count() as u64
        );
    }

    fn any<T>(rng: &mut fastrand::Rng, all: &mut Vec<T>) -> Option<T> {
        (!all.is_empty()).then(|| all.swap_remove(rng.usize(..all.len())))
    }

    /// Advances time to the next timer.
    fn wait(&mut self) -> bool {
        let due = [self.outgoing.due(), self.incoming.due(&SETTINGS)].into_iter().flatten().min();
        let Some(due) = due else { return false };
        self.now = self.now.max(due);
        if self.incoming.due(&SETTINGS).is_some_and(|due| due <= self.now) {
            self.tell();
        }
        assert_ne!(self.outgoing.expire(self.now), Expired::Unreachable);
        while self.outgoing.next().is_some() {
            self.send();
        }
        true
    }
}

#[test]
fn packets_arrive_exactly_once_despite_loss() {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let seeds = number("SEED").map_or(0..number("SEEDS").unwrap_or(3000), |seed| seed..seed + 1);
    let (mut resends, mut full) = (0, 0);
    for seed in seeds {
        let mut job = Job::new(seed);
        let (lost, steps) = (job.rng.u32(..60), job.rng.usize(10..2000));
        for _ in 0..steps {
            match job.rng.u32(..100) {
                0..30 => job.push(),
                30..55 => job.send(),
                55..75 => {
                    if let Some(packet) = Job::any(&mut job.rng, &mut job.packets) {
                        match job.rng.u32(..100) {
                            dice if dice < lost => {}
                            dice => {
                                job.arrive(packet);
                                if dice > 90 {
                                    job.packets.push(packet);
                                }
                            }
                        }
                    }
                }
                75..80 => job.tell(),
                80..90 => {
                    if let Some(told) = Job::any(&mut job.rng, &mut job.told) {
                        match job.rng.u32(..100) {
                            dice if dice < lost => {}
                            dice => {
                                job.hear(told);
                                if dice > 90 {
                                    job.told.push(told);
                                }
                            }
                        }
                    }
                }
                90..92 => job.permitted = job.rng.u16(1..=64),
                _ => job.now += job.rng.u64(..200),
            }
        }
        full += usize::from(job.outgoing.kept() as u64 > FLYING);
        // From here on nothing is lost: all packets arrive, and both sides come to rest.
        job.permitted = 64;
        for round in 0.. {
            assert!(round < 10_000, "SEED={seed}: not finished after 10,000 rounds");
            while let Some(packet) = Job::any(&mut job.rng, &mut job.packets) {
                job.arrive(packet);
            }
            while let Some(told) = Job::any(&mut job.rng, &mut job.told) {
                job.hear(told);
            }
            if !job.wait() && job.packets.is_empty() && job.told.is_empty() {
                break;
            }
        }
        assert_eq!(job.came, (0..job.pushed).collect(), "SEED={seed}");
        assert_eq!(job.acked, job.came, "SEED={seed}");
        resends += job.outgoing.resends();
    }
    assert!(resends > 0 && full > 0, "{resends} resends, window full {full} times; expected some of each");
}

/// Two ends with a latency of `way` in each direction. Packets stay in order; those whose transmission `lose`
/// selects are lost.
fn run(packets: u64, way: u64, lose: impl Fn(u64) -> bool) -> Job {
    let mut job = Job::new(0);
    (0..packets).for_each(|_| job.push());
    let (mut there, mut back) = (Vec::new(), Vec::new());
    for steps in 0.. {
        assert!(steps < 1_000_000, "not finished after 1,000,000 steps");
        while job.outgoing.next().is_some() {
            job.send();
            let packet = job.packets.pop().unwrap();
            if !lose(packet.1) {
                there.push((job.now + way, packet));
            }
            job.now += 1;
        }
        if job.incoming.due(&SETTINGS).is_some_and(|due| due <= job.now) {
            job.tell();
            let told = job.told.pop().unwrap();
            back.push((job.now + way, told));
        }
        let due = [job.outgoing.due(), job.incoming.due(&SETTINGS)].into_iter().flatten();
        let moving = there.first().map(|first| first.0).into_iter().chain(back.first().map(|first| first.0));
        let Some(next) = due.chain(moving).min() else { break };
        job.now = job.now.max(next);
        while there.first().is_some_and(|first| first.0 <= job.now) {
            let (_, packet) = there.remove(0);
            job.arrive(packet);
        }
        while back.first().is_some_and(|first| first.0 <= job.now) {
            let (_, told) = back.remove(0);
            job.hear(told);
        }
        job.outgoing.expire(job.now);
    }
    job
}

#[test]
fn lossless_path_has_no_resends() {
    // The largest latency below the timeout before the first measurement, and the longest acknowledgement
    // delay.
    for way in [0, 1, 400, 4000] {
        assert_eq!(run(1000, way, |_| false).outgoing.resends(), 0, "{way}");
    }
}

#[test]
fn lost_packet_is_resent_after_later_arrivals() {
    // A packet in the middle is lost: no timer is needed, which would take at least 1000.
    let before = run(200, 10, |_| false).now;
    let job = run(200, 10, |sending| sending == 20);
    assert_eq!(job.outgoing.resends(), 1);
    assert!(job.now < before + 200, "{} and {before}", job.now);
    // The first resend of it is lost as well.
    let job = run(200, 10, |sending| [20, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40].contains(&sending));
    assert!(job.now < before + 400, "{}", job.now);
    // The last packet has no later one: the timer resends it.
    let job = run(200, 10, |sending| sending == 200);
    assert!(job.outgoing.resends() == 1 && job.now > before + 900, "{}", job.now);
}

#[test]
fn reordering_threshold_adapts_to_late_packets() {
    let mut job = Job::new(0);
    let mut resends = 0;
    for round in 0..20 {
        (0..10).for_each(|_| job.push());
        (0..10).for_each(|_| job.send());
        // The first packet arrives after the fifth.
        let mut packets = std::mem::take(&mut job.packets);
        let first = packets.remove(0);
        packets.insert(5, first);
        for packet in packets {
            job.arrive(packet);
            job.tell();
            let told = job.told.pop().unwrap();
            job.hear(told);
            job.send();
        }
        for packet in std::mem::take(&mut job.packets) {
            job.arrive(packet);
        }
        if round == 0 {
            resends = job.outgoing.resends();
        }
    }
    assert_eq!((resends, job.outgoing.resends()), (1, 1), "resent again after the reordering threshold was adapted");
}

#[test]
fn lost_burst_costs_one_timeout() {
    let mut job = Job::new(0);
    (0..64).for_each(|_| job.push());
    (0..64).for_each(|_| job.send());
    job.packets.clear();
    assert_eq!(job.outgoing.next(), None);
    // Ten times the floor before the first measurement.
    assert_eq!(job.outgoing.due(), Some(10_005));
    job.now = 10_005;
    assert_eq!(job.outgoing.expire(10_004), Expired::No);
    assert_eq!(job.outgoing.expire(10_005), Expired::Again);
    job.send();
    assert_eq!(
        (job.packets.clone(), job.outgoing.next()),
        (vec![(0, 65)], None),
        "expected one probe for the whole burst"
    );
    assert_eq!(job.outgoing.due(), Some(10_005 + 20_000), "expected a doubled timeout");
    job.arrive((0, 65));
    job.tell();
    let told = job.told.pop().unwrap();
    job.hear(told);
    // All packets sent long enough before the received one are lost as well.
    let mut sent = Vec::new();
    while let Some((number, ..)) = job.outgoing.next() {
        job.outgoing.sent(number, job.now, 0);
        sent.push(number);
    }
    assert_eq!(sent, (1..=61).collect::<Vec<_>>());
}

#[test]
fn peer_limits_packets_in_flight() {
    let mut job = Job::new(0);
    (0..100).for_each(|_| job.push());
    job.send();
    job.arrive((0, 1));
    job.permitted = 3;
    job.tell();
    let told = job.told.pop().unwrap();
    job.hear(told);
    (0..10).for_each(|_| job.send());
    assert_eq!(job.packets.len() - 1, 3, "more packets in flight than the peer permits");
    // Never zero: the sender would never be notified of a larger value.
    job.hear(Acknowledgement { permitted: 0, ..told });
    let all = Acknowledgement { before: 4, newest: 4, permitted: 0, mask: 0 };
    job.came.extend(1..4);
    job.hear(all);
    (0..10).for_each(|_| job.send());
    assert_eq!(job.packets.len() - 1, 4);
    // A late acknowledgement does not change the current limit.
    job.hear(Acknowledgement { permitted: 64, ..told });
    assert_eq!(job.outgoing.next(), None);
}

/// A rail whose sends never complete accepts no more.
#[test]
fn packet_that_no_rail_accepts_ends_the_peer() {
    let mut outgoing = Outgoing::new(&SETTINGS);
    outgoing.push(());
    let mut now = 1_000_000;
    while outgoing.expire(now) != Expired::Unreachable {
        outgoing.refused(now);
        now += 1000;
        assert!(now < 2_000_000, "refusals do not count");
    }
    assert_eq!(now, 1_400_000);
    // A packet that was accepted late has the whole timeout of 10 thousand.
    let mut outgoing = Outgoing::new(&SETTINGS);
    outgoing.push(());
    outgoing.refused(0);
    outgoing.sent(0, 9000, 0);
    assert_eq!([outgoing.expire(18_999), outgoing.expire(19_000)], [Expired::No, Expired::Again]);
}

#[test]
fn silent_peer_becomes_unreachable() {
    let mut outgoing = Outgoing::new(&SETTINGS);
    outgoing.push(());
    outgoing.sent(0, 1_000_000, 0);
    let mut again = 0;
    let mut now = 0;
    while again < 100 {
        now = outgoing.due().unwrap();
        match outgoing.expire(now) {
            Expired::Again => {
                again += 1;
                outgoing.sent(0, now, 0);
            }
            Expired::Unreachable => break,
            Expired::No => panic!("the expired timer reported no timeout"),
        }
    }
    // Timeouts of 10, 20, 40, and then 50 thousand each, up to the first at or after 400 thousand.
    assert_eq!((again, now), (9, 1_420_000));
    // Any acknowledgement shows that the peer is alive, even if it reports nothing new.
    let mut outgoing = Outgoing::new(&SETTINGS);
    outgoing.push(());
    outgoing.sent(0, 0, 0);
    let mut freed = Vec::new();
    outgoing.acknowledged(Acknowledgement::default(), 399_999, &mut freed).unwrap();
    assert_eq!(outgoing.expire(400_000), Expired::Again);
    assert_eq!(outgoing.expire(799_999), Expired::Unreachable);
}

#[test]
fn ack_of_unsent_packets_is_refused() {
    let mut outgoing = Outgoing::new(&SETTINGS);
    for number in 0..3 {
        outgoing.push(number);
    }
    outgoing.sent(0, 0, 0);
    outgoing.sent(1, 0, 0);
    let told = Acknowledgement { before: 1, mask: 0, newest: 1, permitted: 64 };
    for wrong in [
        Acknowledgement { before: 3, ..told },
        Acknowledgement { mask: 1, ..told },
        Acknowledgement { mask: 1 << 63, before: 0, ..told },
        Acknowledgement { newest: 3, ..told },
        Acknowledgement { before: u64::MAX, mask: 1, ..told },
        Acknowledgement { before: u64::MAX - 64, mask: u64::MAX, ..told },
    ] {
        let mut freed = Vec::new();
        assert!(outgoing.acknowledged(wrong, 9, &mut freed).is_err() && freed.is_empty(), "{wrong:?}");
    }
    let mut freed = Vec::new();
    outgoing.acknowledged(told, 9, &mut freed).unwrap();
    assert_eq!((freed, outgoing.kept()), (vec![0], 2));
}

#[test]
fn packet_beyond_receive_range_is_refused() {
    let mut incoming = Incoming::default();
    assert_eq!(incoming.came(65, 1, 0), Come::TooFar);
    assert_eq!(incoming.came(u64::MAX, 1, 0), Come::TooFar);
    assert_eq!(
        (incoming.due(&SETTINGS), incoming.acknowledgement(7).newest),
        (None, 0),
        "a refused packet changed the acknowledgement"
    );
    assert_eq!(incoming.came(64, 1, 0), Come::New);
    assert_eq!(incoming.acknowledgement(7), Acknowledgement { before: 0, mask: 1 << 63, newest: 1, permitted: 7 });
    for number in 0..64 {
        assert_eq!(incoming.came(number, 2, 0), Come::New, "{number}");
    }
    assert_eq!(incoming.acknowledgement(7), Acknowledgement { before: 65, mask: 0, newest: 2, permitted: 7 });
}

#[test]
fn standalone_ack_is_due_when_late_full_or_needed() {
    let mut incoming = Incoming::default();
    assert_eq!(incoming.due(&SETTINGS), None);
    incoming.came(0, 1, 100);
    incoming.came(1, 2, 120);
    assert_eq!(incoming.due(&SETTINGS), Some(150), "expected an acknowledgement 50 after the first packet");
    incoming.told();
    assert_eq!(incoming.due(&SETTINGS), None);
    (2..6).for_each(|number| _ = incoming.came(number, number + 1, 200));
    assert_eq!(
        (incoming.due(&SETTINGS), incoming.is_full(&SETTINGS)),
        (Some(0), true),
        "expected an acknowledgement after four packets"
    );
    incoming.told();
    incoming.came(3, 7, 300);
    assert_eq!(incoming.due(&SETTINGS), Some(0), "expected an acknowledgement of the duplicate at once");
    incoming.told();
    incoming.came(7, 8, 300);
    assert_eq!(incoming.due(&SETTINGS), Some(0), "expected an acknowledgement at a gap");
    incoming.told();
    incoming.came(6, 9, 300);
    assert_eq!(incoming.due(&SETTINGS), Some(0), "expected an acknowledgement of the closed gap");
}

#[test]
fn round_trip_timeout_follows_rfc_6298() {
    let mut round = RoundTrip::new(1000, 50_000);
    assert_eq!(round.patience(0), 10_000);
    round.took(800); // mean 800, spread 400
    assert_eq!([0, 1, 2, 9, 99].map(|vain| round.patience(vain)), [2400, 4800, 9600, 50_000, 50_000]);
    round.took(1600); // mean 900, spread (1200 + 800) / 4 = 500
    assert_eq!(round.patience(0), 2900);
    (0..100).for_each(|_| round.took(10));
    assert_eq!(round.patience(0), 1000, "expected the lower bound of the timeout");
}
