//! Registrations of the buffers that requests own, on a fake adapter.

use crate::adapter::*;
use std::io::Read;
use transom::World;
use transom::messages::Tag;
use transom::pipe::{Config, Step};

const LEN: usize = 300_000;
const TAG: Tag<u8> = Tag::new(1);
const OFF: [(&str, &str); 1] = [("TRANSOM_INTRANODE", "off")];

fn bytes() -> Vec<u8> {
    (0..LEN).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// Number of registrations for messages that `act` makes, and of those that it finds.
fn registered(world: &World, act: impl FnOnce()) -> [u64; 2] {
    let before = world.counters().unwrap();
    act();
    let after = world.counters().unwrap();
    [after.registered - before.registered, after.found_registered - before.found_registered]
}

/// `World::buffer` has registered its memory, and a vector is registered for each message.
#[test]
fn put_of_a_world_buffer_finds_its_registration() {
    on_fake(None, 2, "put_of_a_world_buffer_finds_its_registration", &OFF, |world| {
        for step in [Step::Read, Step::Write] {
            let mut pipe = world.pipe_with(1 - world.rank(), Config { step, ..Config::default() }).unwrap();
            if world.rank() == 0 {
                let mut buffer = world.buffer::<u8>(LEN).unwrap();
                buffer.copy_from_slice(&bytes());
                let buffers = registered(&world, || drop(pipe.start_put(buffer).wait().unwrap()));
                let vectors = registered(&world, || drop(pipe.start_put(bytes()).wait().unwrap()));
                assert_eq!([buffers, vectors], [[0, 1], [1, 0]], "{step:?}: made and found, of a buffer and a vector");
            } else {
                for what in ["buffer", "vector"] {
                    let mut came = vec![0; LEN];
                    pipe.read_exact(&mut came).unwrap();
                    assert!(came == bytes(), "{step:?}: the bytes of the {what} differ");
                }
            }
            meet(&world).unwrap();
        }
    });
}

#[test]
fn send_of_a_world_buffer_finds_its_registration() {
    on_fake(None, 2, "send_of_a_world_buffer_finds_its_registration", &OFF, |world| {
        if world.rank() == 0 {
            let sends = [World::isend, World::issend, |world: &World, to, tag, data| {
                World::try_isend(world, to, tag, data)
                    .unwrap_or_else(|_| panic!("the message would wait at its sender"))
            }];
            for send in sends {
                let mut buffer = world.buffer::<u8>(LEN).unwrap();
                buffer.copy_from_slice(&bytes());
                let made_and_found = registered(&world, || drop(send(&world, 1, TAG, buffer).wait().unwrap()));
                assert_eq!(made_and_found, [0, 1]);
            }
            assert_eq!(registered(&world, || drop(world.isend(1, TAG, bytes()).wait().unwrap())), [1, 0]);
        } else {
            for number in 0..4 {
                assert!(world.recv(0, TAG).unwrap().0 == bytes(), "the bytes of message {number} differ");
            }
        }
        meet(&world).unwrap();
    });
}
