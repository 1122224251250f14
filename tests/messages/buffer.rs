//! Messages from and to memory that ranks map: buffers made for them, and windows.

use crate::ranks;
use ranks::{on, pattern};
use std::time::{Duration, Instant};
use transom::Buffer;
use transom::messages::Tag;

const BYTES: Tag<u8> = Tag::new(1);

/// Lengths around those at which the kernel's copy, the copy by both ends, and chunks begin.
const LENGTHS: [usize; 4] = [1, 65_535, 65_536, 1_500_003];

#[test]
fn buffers_work_as_source_and_destination() {
    on(&ranks::SIZES, "buffers_work_as_source_and_destination", |world| {
        let (rank, size) = (world.rank(), world.size());
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        for len in LENGTHS.map(|len| len.min(3_000_000 / size)) {
            for way in 0..4 {
                let mut mine: Buffer<u8> = world.buffer(len).unwrap();
                assert!(mine.iter().all(|byte| *byte == 0), "new buffer is not zeroed");
                mine.copy_from_slice(&pattern(rank + way, len));
                let (own, mut theirs) = (mine.to_vec(), vec![0; len + 5]);
                let mut room: Buffer<u8> = world.buffer(len + 5).unwrap();
                let (from, into) = (
                    if way & 1 == 0 { &mine[..] } else { &own },
                    if way & 2 == 0 { &mut room[..] } else { &mut theirs },
                );
                let came = world.sendrecv(next, BYTES, from, before, BYTES, into).unwrap();
                assert_eq!((came.from, came.len), (before, len), "{len} bytes, way {way}");
                assert!(into[..len] == pattern(before + way, len), "{len} bytes, way {way}");
                assert_eq!(into[len..], [0; 5], "bytes beyond the message were written");
            }
        }
    });
}

#[test]
fn request_returns_its_owned_buffer() {
    on(&[1, 2, 3], "request_returns_its_owned_buffer", |world| {
        let (rank, size) = (world.rank(), world.size());
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        let mut field = world.buffer::<u64>(50_000).unwrap();
        for round in 0..20 {
            field.fill((rank * 1000 + round) as u64);
            let sent = world.isend(next, Tag::new(2), field);
            let mut came = world.buffer::<u64>(50_000).unwrap();
            world.recv_into(before, Tag::new(2), &mut came).unwrap();
            assert!(came.iter().all(|x| *x == (before * 1000 + round) as u64), "round {round}");
            field = sent.wait().unwrap();
            assert!(field.iter().all(|x| *x == (rank * 1000 + round) as u64));
        }
    });
}

/// A peer has mapped a buffer that is gone. Another buffer may have its place and its descriptor.
#[test]
fn reallocated_buffers_send_current_data() {
    on(&[2, 4], "reallocated_buffers_send_current_data", |world| {
        let other = world.rank() ^ 1;
        for round in 0..ranks::rounds(20) {
            let len = 70_000 + round * 4096;
            let mut mine = world.buffer::<u8>(len).unwrap();
            mine.copy_from_slice(&pattern(world.rank() + round, len));
            let mut room = world.buffer::<u8>(len).unwrap();
            world.sendrecv(other, BYTES, &mine, other, BYTES, &mut room).unwrap();
            assert!(room[..] == pattern(other + round, len), "round {round}");
        }
    });
}

#[test]
fn window_memory_is_sent_and_received_into() {
    on(&[2, 3], "window_memory_is_sent_and_received_into", |world| {
        let (rank, size, len) = (world.rank(), world.size(), 300_000);
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        let window = world.allocate::<u8>(2 * len).unwrap();
        let local = window.local();
        // SAFETY: nobody accesses the window but by these messages.
        let (mine, room) = unsafe { (local.as_mut_slice(0, len).unwrap(), local.as_mut_slice(len, len).unwrap()) };
        for round in 0..5 {
            mine.copy_from_slice(&pattern(rank + round, len));
            world.sendrecv(next, BYTES, mine, before, BYTES, room).unwrap();
            assert!(room == pattern(before + round, len), "round {round}");
        }
        // In a team, and to a rank that has not mapped a window of that team.
        let team = world.split(Some((rank / 2) as u64), 0).unwrap().unwrap();
        let apart = team.allocate::<u8>(len).unwrap();
        // SAFETY: as above.
        let apart = unsafe { apart.local().as_mut_slice(0, len) }.unwrap();
        apart.copy_from_slice(&pattern(rank + 9, len));
        world.sendrecv(next, BYTES, apart, before, BYTES, room).unwrap();
        assert!(room == pattern(before + 9, len));
    });
}

/// Number of the library's memory blocks that are mapped into this process.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc/self/maps should be readable");
    maps.lines().filter(|line| line.contains("memfd:transom")).count()
}

/// Applies to ranks that are processes of one machine. Without the mapping, the kernel's copy also gives the right
/// message.
#[test]
fn peer_unmaps_a_buffer_after_its_owner_drops_it() {
    on(&[2, 4], "peer_unmaps_a_buffer_after_its_owner_drops_it", |world| {
        let other = world.rank() ^ 1;
        let mut room = vec![0; 70_000];
        let mut exchange = |from: &[u8]| {
            world.sendrecv(other, BYTES, from, other, BYTES, &mut room[..from.len()]).unwrap();
        };
        exchange(&[1]);
        // The first collective maps what the others need.
        world.barrier().unwrap();
        let before = mapped();
        let mine = world.buffer::<u8>(70_000).unwrap();
        exchange(&mine);
        if mapped() == before {
            let shared = ranks::share_memory(&world) && ranks::are_processes();
            return assert!(!shared, "neither the own buffer nor the peer's is mapped");
        }
        assert_eq!(mapped(), before + 2, "expected mappings of the own buffer and the peer's");
        world.barrier().unwrap();
        drop(mine);
        let until = Instant::now() + ranks::within(Duration::from_secs(10));
        while mapped() > before {
            assert!(Instant::now() < until, "buffer that the peer dropped stays mapped");
            let nothing = world.irecv::<u8>(other, Tag::new(7));
            drop(nothing.wait_for(Duration::from_millis(20)));
        }
    });
}
