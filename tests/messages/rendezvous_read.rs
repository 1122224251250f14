//! The receiver reads a long message in place. If it cannot map the memory, it reads unless a waiting sender sends
//! faster.

use crate::ranks;
use ranks::{are_processes, on, share_memory, within};
use std::time::{Duration, Instant};
use transom::World;
use transom::messages::Tag;

const DATA: Tag<u8> = Tag::new(1);
const MORE: Tag<u8> = Tag::new(2);
const LENGTH: usize = 300_000;

/// Bytes of this rank that were sent to others in pieces, and bytes that it has read from others.
fn copied_and_read(world: &World) -> (u64, u64) {
    let counters = world.counters().unwrap();
    (counters.copied_bytes, counters.read_bytes)
}

#[test]
fn message_of_a_computing_sender_is_read() {
    on(&[2], "message_of_a_computing_sender_is_read", |world| {
        let mut window = world.allocate::<u64>(1).unwrap();
        // The exchange makes the ranks reach each other's memory.
        let other = 1 - world.rank();
        world.sendrecv(other, MORE, &[1], other, MORE, &mut [0]).unwrap();
        if world.rank() == 0 {
            let sent = world.isend(1, DATA, vec![7; LENGTH]);
            // Makes no call that moves messages.
            let begun = Instant::now();
            while share_memory(&world) && window.local().get(0).unwrap() == 0 {
                assert!(
                    begun.elapsed() < within(Duration::from_secs(10)),
                    "the receiver waits for the computing sender"
                );
                std::thread::sleep(Duration::from_millis(1));
            }
            sent.wait().unwrap();
        } else {
            assert!(world.recv(0, DATA).unwrap().0 == vec![7; LENGTH]);
            window.lock_shared(0).unwrap().put(0, &[1]).unwrap();
        }
        if share_memory(&world) {
            assert_eq!(copied_and_read(&world), (0, (world.rank() * LENGTH) as u64));
        }
        drop(window);
    });
}

#[test]
fn waiting_sender_sends_its_message_in_pieces() {
    on(&[2], "waiting_sender_sends_its_message_in_pieces", |world| {
        // Ranks that share a core do not wait at the same time, and threads reach all memory of each other.
        let alone = std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= 2);
        if !(alone && are_processes() && share_memory(&world)) {
            return;
        }
        let begun = Instant::now();
        let (mut rounds, mut more) = (0, true);
        while more {
            rounds += 1;
            if world.rank() == 0 {
                world.send(1, DATA, &[7; LENGTH]).unwrap();
                // Timing decides whether the sender already waited when it was asked.
                more = copied_and_read(&world).0 == 0;
                assert!(
                    begun.elapsed() < within(Duration::from_secs(10)),
                    "none of {rounds} messages was sent in pieces"
                );
                world.send(1, MORE, &[u8::from(more)]).unwrap();
            } else {
                assert!(world.recv(0, DATA).unwrap().0 == [7; LENGTH]);
                more = world.recv(0, MORE).unwrap().0[0] > 0;
            }
        }
    });
}

#[test]
fn mapped_buffer_of_a_waiting_sender_is_read() {
    on(&[2], "mapped_buffer_of_a_waiting_sender_is_read", |world| {
        let mut buffer = world.buffer::<u8>(LENGTH).unwrap();
        buffer.fill(7);
        for round in 0..20 {
            if world.rank() == 0 {
                // Rank 1 waits already, and has sent nothing yet: the first message is read as others are.
                std::thread::sleep(Duration::from_millis(if round == 0 { 30 } else { 0 }));
                world.send(1, DATA, &buffer).unwrap();
            } else if round % 2 == 0 {
                let mut into = vec![0; LENGTH];
                world.recv_into(0, DATA, &mut into).unwrap();
                assert!(into == [7; LENGTH]);
            } else {
                assert!(world.recv(0, DATA).unwrap().0 == [7; LENGTH]);
            }
        }
        if share_memory(&world) {
            assert_eq!(copied_and_read(&world), (0, (world.rank() * 20 * LENGTH) as u64));
        }
    });
}
