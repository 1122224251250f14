//! The two ends of a connection without a network: a lane, and a thread that serves its peer.

use crate::carrier::{Carrier, Socket};
use crate::execute::Executor;
use crate::frame::{At, LONGEST, Refusal, Reply, Request};
use crate::lane::{Halt, Lane};
use crate::regions::{Region, Regions};
use crate::replies::Outcome;
use crate::serve;
use rustix::net::sockopt;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use transom_locks::Wake;
use transom_shm_loopback::Loopback;
use transom_windows::{BoxBytes, Fabric, FabricError};

/// A target with one region of memory.
struct Target {
    memory: Loopback,
    region: transom_shm_loopback::Region,
    regions: Arc<Regions>,
    exposed: Option<Region>,
}

impl Target {
    fn new(bytes: usize) -> Target {
        let memory = Loopback::alone().unwrap();
        let (region, _) = memory.allocate(bytes).unwrap();
        let regions = Arc::<Regions>::default();
        let exposed = Some(regions.add(region.view()));
        Target { memory, region, regions, exposed }
    }

    fn at(&self, offset: u64) -> At {
        At { region: self.exposed.as_ref().map_or(0, Region::number), offset }
    }

    /// Serves a connection until it ends.
    fn serve(&self, stream: impl Into<OwnedFd>) -> std::thread::JoinHandle<()> {
        let mut executor = Executor::new(self.memory.clone(), self.regions.clone());
        let mut socket = Socket::new(stream.into());
        std::thread::spawn(move || {
            while let Ok(wants) = serve::turn(&mut socket, &mut executor) {
                if !wants.turn {
                    let mut flags = rustix::event::PollFlags::empty();
                    flags.set(rustix::event::PollFlags::IN, wants.to_receive);
                    flags.set(rustix::event::PollFlags::OUT, wants.to_send);
                    let _ = rustix::event::poll(&mut [rustix::event::PollFd::new(&**socket.descriptor(), flags)], None);
                }
            }
        })
    }
}

fn lane(stream: impl Into<OwnedFd>) -> Arc<Lane<Socket>> {
    Lane::new(Socket::new(stream.into()), 0, || ())
}

fn ok() -> Result<(), FabricError> {
    Ok(())
}

fn get(lane: &Arc<Lane<Socket>>, at: At, len: usize) -> Result<Vec<u8>, Halt> {
    let into = BoxBytes::from(vec![0_u8; len].into_boxed_slice());
    match lane.start_get(at, into, ok)?.wait(ok)? {
        Outcome::Data(bytes) => Ok(bytes.to_vec()),
        _ => panic!("a get is answered with data"),
    }
}

fn add(lane: &Arc<Lane<Socket>>, at: At, delta: u64) -> Result<u64, Halt> {
    match lane.start_atomic(&Request::Add { at, delta, wake: Wake::Nobody }, ok)?.wait(ok)? {
        Outcome::Word(word) => Ok(word),
        _ => panic!("an atomic is answered with a word"),
    }
}

fn flush(lane: &Arc<Lane<Socket>>) -> Result<(), Halt> {
    match lane.start_flush(ok)? {
        Some(flush) => lane.finish_flush(flush, ok),
        None => Ok(()),
    }
}

/// Carries bytes between two streams, one by one.
fn byte_by_byte(from: &UnixStream, to: &UnixStream) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    std::thread::spawn(move || {
        let mut byte = [0];
        while from.read_exact(&mut byte).is_ok() && to.write_all(&byte).is_ok() {}
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
}

#[test]
fn fragments_of_a_byte_serve_every_request() {
    let target = Target::new(4096);
    let ((mine, near), (far, theirs)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    byte_by_byte(&near, &far);
    byte_by_byte(&far, &near);
    let served = target.serve(theirs);
    let lane = lane(mine);
    lane.put(target.at(8), &[1; 2000], ok).unwrap();
    lane.put(target.at(8), &[7; 3], ok).unwrap();
    assert_eq!(get(&lane, target.at(8), 5).unwrap(), [7, 7, 7, 1, 1]);
    assert_eq!((add(&lane, target.at(0), 5).unwrap(), add(&lane, target.at(0), 0).unwrap()), (0, 5));
    lane.post(&Request::Notify { at: target.at(4000), value: 9, wake: Wake::Home }, ok).unwrap();
    flush(&lane).unwrap();
    assert_eq!(target.memory.word(&target.region, 4000).unwrap(), 9);
    drop((lane, near, far));
    served.join().unwrap();
}

/// Both sockets are full: the origin sends and must receive, the target replies and must not block.
#[test]
fn small_buffers_do_not_deadlock() {
    let bytes = 40 * LONGEST;
    let target = Target::new(bytes);
    let (mine, theirs) = with_small_buffers();
    let served = target.serve(theirs);
    let lane = lane(mine);
    let data: Vec<u8> = (0..bytes).map(|at| (at % 253) as u8).collect();
    lane.put(target.at(0), &data, ok).unwrap();
    // Replies of 20 MiB wait while further requests are sent.
    let into = || BoxBytes::from(vec![0_u8; bytes].into_boxed_slice());
    let gets: Vec<_> = (0..8).map(|_| lane.start_get(target.at(0), into(), ok).unwrap()).collect();
    for at in 0..10_000 {
        lane.put(target.at(at), &[data[at as usize]; 1], ok).unwrap();
    }
    lane.put(target.at(0), &data, ok).unwrap();
    for get in gets {
        let Outcome::Data(found) = get.wait(ok).unwrap() else { panic!("data") };
        assert!(found[..] == data);
    }
    flush(&lane).unwrap();
    drop(lane);
    served.join().unwrap();
}

fn with_small_buffers() -> (UnixStream, UnixStream) {
    let (mine, theirs) = UnixStream::pair().unwrap();
    for stream in [&mine, &theirs] {
        sockopt::set_socket_send_buffer_size(stream, 1).unwrap();
        sockopt::set_socket_recv_buffer_size(stream, 1).unwrap();
    }
    (mine, theirs)
}

/// A thread awaits replies, and another one cannot send. The replies come before the target reads on.
#[test]
fn replies_arrive_while_another_thread_cannot_send() {
    let (mine, mut theirs) = with_small_buffers();
    let watched = mine.try_clone().unwrap();
    let is_full = || {
        let (none, out) = (rustix::event::Timespec::default(), rustix::event::PollFlags::OUT);
        rustix::event::poll(&mut [rustix::event::PollFd::new(&watched, out)], Some(&none)).unwrap() == 0
    };
    let lane = lane(mine);
    let (at, bytes, replies) = (At { region: 1, offset: 0 }, 64 * LONGEST, 2000);
    let request = Request::Add { at, delta: 1, wake: Wake::Nobody };
    let mut head = request.encode().0.bytes().to_vec();
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let mut awaited = Vec::new();
        for _ in 0..replies {
            awaited.push(lane.start_atomic(&request, ok).unwrap());
            theirs.read_exact(&mut head).unwrap();
        }
        scope.spawn(|| {
            let done = done;
            for awaited in awaited {
                let awaited = awaited.wait(ok);
                // The main thread may have given up.
                let _ = done.send(matches!(awaited, Ok(Outcome::Word(7))));
            }
        });
        let sender = scope.spawn(|| lane.put(at, &vec![1; bytes], ok));
        while !is_full() {
            std::thread::yield_now();
        }
        let (reply, _) = Reply::Word(7).encode();
        let mut arrived = Ok(true);
        for _ in 0..replies {
            theirs.write_all(reply.bytes()).unwrap();
            arrived = arrived.and_then(|_| is_done.recv_timeout(std::time::Duration::from_secs(20)));
        }
        // The rest of the put: 64 frames.
        let head = Request::Put { at, data: &[] }.encode().0.bytes().len();
        theirs.read_exact(&mut vec![0; bytes + 64 * head]).unwrap();
        sender.join().unwrap().unwrap();
        assert_eq!(arrived, Ok(true), "the thread that cannot send keeps the lane");
    });
}

/// All threads block as they send: no request may come between the frames of another.
#[test]
fn threads_that_cannot_send_take_turns() {
    let bytes = 4 * LONGEST;
    let target = Target::new(8 + bytes);
    let (mine, theirs) = with_small_buffers();
    let served = target.serve(theirs);
    let lane = lane(mine);
    let data: Vec<u8> = (0..bytes).map(|at| (at % 253) as u8).collect();
    lane.put(target.at(8), &data, ok).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..20 {
                    assert!(get(&lane, target.at(8), bytes).unwrap() == data, "round {round}");
                    lane.put(target.at(8), &data, ok).unwrap();
                    add(&lane, target.at(0), 1).unwrap();
                    flush(&lane).unwrap();
                }
            });
        }
    });
    assert_eq!(add(&lane, target.at(0), 0).unwrap(), 80);
    drop(lane);
    served.join().unwrap();
}

#[test]
fn refusals_name_the_reason_and_leave_the_lane() {
    let mut target = Target::new(64);
    let (mine, theirs) = UnixStream::pair().unwrap();
    let served = target.serve(theirs);
    let lane = lane(mine);
    let refused = |result: Result<Vec<u8>, Halt>| match result {
        Err(Halt::Refused(why)) => why,
        other => panic!("{other:?}"),
    };
    let word = |result: Result<u64, Halt>| refused(result.map(|word| vec![word as u8]));
    let none = |result: Result<(), Halt>| refused(result.map(|()| vec![]));
    assert_eq!(refused(get(&lane, target.at(60), 5)), Refusal::OutOfBounds);
    assert_eq!(refused(get(&lane, target.at(u64::MAX), 1)), Refusal::OutOfBounds);
    assert_eq!(refused(get(&lane, target.at(0), 3 * LONGEST)), Refusal::OutOfBounds);
    assert_eq!(word(add(&lane, target.at(4), 1)), Refusal::Misaligned);
    assert_eq!(word(add(&lane, target.at(64), 1)), Refusal::OutOfBounds);
    lane.put(target.at(64), &[1], ok).unwrap();
    assert_eq!(none(flush(&lane)), Refusal::OutOfBounds, "a put is reported by the next flush");
    flush(&lane).unwrap();
    lane.post(&Request::Notify { at: target.at(64), value: 1, wake: Wake::Home }, ok).unwrap();
    assert_eq!(none(flush(&lane)), Refusal::OutOfBounds, "a notify is reported as a put is");
    let stale = target.at(0);
    target.exposed = None;
    assert_eq!(refused(get(&lane, stale, 1)), Refusal::NoRegion);
    lane.put(stale, &[1], ok).unwrap();
    // The reply of the atomic follows that of the put.
    assert_eq!(word(add(&lane, stale, 1)), Refusal::NoRegion);
    assert_eq!(none(flush(&lane)), Refusal::NoRegion);
    target.exposed = Some(target.regions.add(target.region.view()));
    assert_eq!(get(&lane, target.at(0), 2).unwrap(), [0, 0], "the connection goes on");
    drop(lane);
    served.join().unwrap();
}

/// The target refuses one of three parts.
#[test]
fn long_get_with_a_refused_part_is_refused() {
    for answers in ["rdd", "drd", "ddr"] {
        let (mine, mut theirs) = UnixStream::pair().unwrap();
        let lane = lane(mine);
        let at = At { region: 1, offset: 0 };
        let into = BoxBytes::from(vec![0_u8; 2 * LONGEST + 3].into_boxed_slice());
        let got = lane.start_get(at, into, ok).unwrap();
        let next = lane.start_get(at, BoxBytes::from(vec![0_u8; 2].into_boxed_slice()), ok).unwrap();
        let parts: Vec<Vec<u8>> = [LONGEST, LONGEST, 3, 2]
            .into_iter()
            .zip(answers.chars().chain(['d']))
            .map(|(len, answer)| {
                let data = vec![7; len];
                let reply = if answer == 'd' { Reply::Data(&data) } else { Reply::Refused(Refusal::NoRegion) };
                let (head, data) = reply.encode();
                [head.bytes(), data].concat()
            })
            .collect();
        let writes = std::thread::spawn(move || theirs.write_all(&parts.concat()).map(|()| theirs).unwrap());
        assert!(matches!(got.wait(ok), Err(Halt::Refused(Refusal::NoRegion))), "{answers}");
        assert!(matches!(next.wait(ok), Ok(Outcome::Data(bytes)) if bytes[..] == [7, 7]), "{answers}");
        drop(writes.join().unwrap());
    }
}

/// The bytes that come afterwards belong to a buffer that stays until then.
#[test]
fn get_dropped_in_the_middle_of_its_reply_leaves_later_replies_right() {
    let (mine, mut theirs) = UnixStream::pair().unwrap();
    let lane = lane(mine);
    let at = At { region: 1, offset: 0 };
    let start = |len| lane.start_get(at, BoxBytes::from(vec![0_u8; len].into_boxed_slice()), ok).unwrap();
    let mut dropped = start(20_000);
    let (head, _) = Reply::Data(&[7; 20_000]).encode();
    theirs.write_all(&[head.bytes(), &[7; 9_000]].concat()).unwrap();
    assert!(!dropped.is_done(ok).unwrap());
    drop(dropped);
    let next = start(3);
    let (head, data) = Reply::Data(&[8; 3]).encode();
    theirs.write_all(&[&[7; 11_000], head.bytes(), data].concat()).unwrap();
    assert!(matches!(next.wait(ok), Ok(Outcome::Data(bytes)) if bytes[..] == [8, 8, 8]));
}

#[test]
fn flush_without_new_requests_sends_nothing() {
    let target = Target::new(64);
    let (mine, theirs) = UnixStream::pair().unwrap();
    let served = target.serve(theirs);
    let lane = lane(mine);
    assert!(lane.start_flush(ok).unwrap().is_none(), "nothing was posted");
    lane.put(target.at(0), &[1], ok).unwrap();
    assert!(lane.is_busy());
    flush(&lane).unwrap();
    assert!(lane.start_flush(ok).unwrap().is_none() && !lane.is_busy());
    lane.put(target.at(0), &[1], ok).unwrap();
    assert_eq!(add(&lane, target.at(8), 1).unwrap(), 0);
    assert!(lane.start_flush(ok).unwrap().is_none(), "the reply of a later request covers the put");
    drop(lane);
    served.join().unwrap();
}

#[test]
fn flush_ahead_is_taken_unless_a_request_follows() {
    let target = Target::new(64);
    let (mine, theirs) = UnixStream::pair().unwrap();
    let served = target.serve(theirs);
    let lane = lane(mine);
    lane.put(target.at(0), &[1], ok).unwrap();
    lane.flush_ahead(ok).unwrap();
    let posted = lane.posted();
    lane.flush_ahead(ok).unwrap();
    flush(&lane).unwrap();
    assert_eq!(lane.posted(), posted, "one flush was sent");
    lane.put(target.at(0), &[2], ok).unwrap();
    lane.flush_ahead(ok).unwrap();
    lane.put(target.at(0), &[3], ok).unwrap();
    flush(&lane).unwrap();
    assert_eq!(lane.posted(), posted + 4, "the second put has a flush of its own");
    assert_eq!(get(&lane, target.at(0), 1).unwrap(), [3]);
    drop(lane);
    served.join().unwrap();
}

#[test]
fn dropped_tickets_leave_later_replies_right() {
    let target = Target::new(LONGEST * 3);
    let (mine, theirs) = UnixStream::pair().unwrap();
    let served = target.serve(theirs);
    let lane = lane(mine);
    for _ in 0..50 {
        let into = BoxBytes::from(vec![0_u8; LONGEST * 2 + 1].into_boxed_slice());
        drop(lane.start_get(target.at(0), into, ok).unwrap());
        drop(lane.start_atomic(&Request::Add { at: target.at(0), delta: 1, wake: Wake::Nobody }, ok).unwrap());
    }
    assert_eq!(add(&lane, target.at(0), 0).unwrap(), 50);
    drop(lane);
    served.join().unwrap();
}

/// A program leaks a request: later requests need no more memory than without it. Results that it is slow to take stay.
#[test]
fn leaked_ticket_keeps_only_its_own_result() {
    let target = Target::new(64);
    let (mine, theirs) = UnixStream::pair().unwrap();
    let served = target.serve(theirs);
    let lane = lane(mine);
    let start = || lane.start_atomic(&Request::Add { at: target.at(0), delta: 1, wake: Wake::Nobody }, ok).unwrap();
    let rounds = 5000;
    std::mem::forget(start());
    let (slow, dropped) = (start(), start());
    for round in 0..rounds {
        assert_eq!(add(&lane, target.at(0), 1).unwrap(), 3 + round);
    }
    assert!(lane.kept() < 1100, "{} results are kept", lane.kept());
    drop(dropped);
    assert!(matches!(slow.wait(ok), Ok(Outcome::Word(1))));
    let before = lane.kept();
    for round in 0..rounds {
        assert_eq!(add(&lane, target.at(0), 1).unwrap(), 3 + rounds + round);
    }
    assert!(lane.kept() <= before, "{} results are kept, {before} before", lane.kept());
    drop(served); // the leaked request keeps the connection
}

#[test]
fn closed_connection_ends_waits_and_later_calls() {
    let (mine, theirs) = UnixStream::pair().unwrap();
    let lane = lane(mine);
    let at = At { region: 1, offset: 0 };
    let waiting = lane.start_atomic(&Request::Add { at, delta: 1, wake: Wake::Nobody }, ok).unwrap();
    drop(theirs);
    assert!(matches!(waiting.wait(ok), Err(Halt::Broken(_))));
    assert!(matches!(add(&lane, at, 1), Err(Halt::Broken(_))));
    assert!(matches!(lane.put(at, &[1; 5000], ok), Err(Halt::Broken(_))));
}

/// A reply with fewer bytes than a get asked for leaves no bytes that were not read.
#[test]
fn short_reply_of_a_get_breaks_the_lane() {
    let (mine, mut theirs) = UnixStream::pair().unwrap();
    let lane = lane(mine);
    let into = BoxBytes::from(vec![0_u8; 100].into_boxed_slice());
    let got = lane.start_get(At { region: 1, offset: 0 }, into, ok).unwrap();
    let (head, data) = Reply::Data(&[7; 50]).encode();
    theirs.write_all(&[head.bytes(), data].concat()).unwrap();
    let too_late = || Err(FabricError::PeerDied { rank: 3 });
    assert!(matches!(got.wait(too_late), Err(Halt::Broken(_))));
}

/// A peer that sends what no target sends must not be believed, nor end the process.
#[test]
fn random_replies_break_the_lane_and_nothing_else() {
    let mut random = fastrand::Rng::with_seed(4);
    for _ in 0..300 {
        let (mine, mut theirs) = UnixStream::pair().unwrap();
        let lane = lane(mine);
        let at = At { region: 1, offset: 0 };
        let word = lane.start_atomic(&Request::Add { at, delta: 1, wake: Wake::Nobody }, ok).unwrap();
        let into = BoxBytes::from(vec![0_u8; 100].into_boxed_slice());
        let data = lane.start_get(at, into, ok).unwrap();
        let mut bytes = vec![8 + 8 * random.u8(..2), 0, 0, 0, random.u8(..7), 0, 0, 0, 0, 0, 0, 0];
        bytes.extend((0..random.usize(..300)).map(|_| random.u8(..9)));
        theirs.write_all(&bytes).unwrap();
        drop(theirs);
        let ends = [word.wait(ok).is_err(), data.wait(ok).is_err()];
        assert!(ends[1], "{bytes:?}");
        assert!(add(&lane, at, 1).is_err());
    }
}

/// Random bytes as requests: each is executed within the region, refused, or ends the connection.
#[test]
fn random_requests_stay_within_the_region() {
    let target = Target::new(64);
    let mut executor = Executor::new(target.memory.clone(), target.regions.clone());
    let mut random = fastrand::Rng::with_seed(5);
    let mut malformed = 0;
    for _ in 0..100_000 {
        let mut bytes = vec![0; *random.choice(&[0, 23, 24, 32, 40, 48]).unwrap()];
        for at in [0, 1, 8, 16, 17, 24, 30] {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = match at {
                    1 => random.u8(..3),
                    8 => 1,
                    _ => random.u8(..9),
                };
            }
        }
        let mut socket = Socket::new(UnixStream::pair().unwrap().0.into());
        malformed += u32::from(executor.execute(&bytes, socket.outgoing()).is_err());
        if socket.outgoing().len() > 200 {
            panic!("a reply of {} bytes", socket.outgoing().len());
        }
    }
    assert!((1000..99_000).contains(&malformed), "{malformed}");
}

#[test]
fn polled_get_notices_a_lost_peer() {
    let (mine, _silent) = UnixStream::pair().unwrap();
    let lane = lane(mine);
    let into = BoxBytes::from(vec![0_u8; 8].into_boxed_slice());
    let mut ticket = lane.start_get(At { region: 1, offset: 0 }, into, ok).unwrap();
    let polled = std::time::Instant::now();
    let lost = loop {
        match ticket.is_done(|| Err(FabricError::PeerDied { rank: 3 })) {
            Ok(false) => assert!(polled.elapsed().as_secs() < 20, "no poll has asked whether the peer lives"),
            lost => break lost,
        }
    };
    assert!(matches!(lost, Err(Halt::Gone(FabricError::PeerDied { rank: 3 }))), "{lost:?}");
}

#[test]
fn result_before_the_end_of_a_connection_counts() {
    let target = Target::new(64);
    let (mine, served) = UnixStream::pair().unwrap();
    let (arriving, closed) = (mine.try_clone().unwrap(), served.try_clone().unwrap());
    let serving = target.serve(served);
    let lane = lane(mine);
    let ticket = lane.start_atomic(&Request::Add { at: target.at(0), delta: 5, wake: Wake::Nobody }, ok).unwrap();
    // The reply is here, and the connection ends, before the lane receives either.
    while rustix::net::recv(&arriving, &mut [0_u8], rustix::net::RecvFlags::PEEK).is_err() {}
    closed.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(matches!(ticket.wait(ok), Ok(Outcome::Word(0))));
    drop((lane, arriving, closed));
    serving.join().unwrap();
}
