//! Values that implement serde's traits, sent as messages.

use crate::ranks;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use transom::World;
use transom::messages::{Cancelled, Error, Request, Requests, Source, Tag};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Job {
    Stop,
    Render { scene: String, frames: Vec<u32>, scale: Option<f64> },
}

const JOB: Tag<Job> = Tag::new(3);

fn job(seed: usize) -> Job {
    match seed % 3 {
        0 => Job::Stop,
        scale => Job::Render {
            scene: "s".repeat(seed * 37),
            frames: (0..seed as u32 * 100).collect(),
            scale: (scale == 1).then_some(seed as f64 / 3.0),
        },
    }
}

fn on(sizes: &[usize], name: &str, body: impl Fn(World) + Sync) {
    if !ranks::over_network() {
        ranks::on(sizes, name, body);
    }
}

/// Objects of all lengths: by ring, queue and rendezvous, among other messages, from any source.
#[test]
fn objects_from_any_source_arrive_in_order() {
    on(&[1, 3], "objects_from_any_source_arrive_in_order", |world| {
        const EACH: usize = 60;
        for seed in 0..EACH {
            let to = (world.rank() + 1) % world.size();
            let sent = world.isend_object(to, JOB, &job(seed));
            let (got, status) = match seed % 6 {
                0 => world
                    .recv_object_for(Source::Any, JOB, Duration::from_secs(50))
                    .unwrap()
                    .expect("an object should arrive before the deadline"),
                1 => loop {
                    if let Some(came) = world.try_recv_object(Source::Any, JOB).unwrap() {
                        break came;
                    }
                },
                2 => world.irecv_object(Source::Any, JOB).wait_status().unwrap(),
                // The object of this rank may have arrived before the receive.
                3 => world.irecv_object((world.rank() + world.size() - 1) % world.size(), JOB).wait_status().unwrap(),
                _ => world.recv_object(Source::Any, JOB).unwrap(),
            };
            assert_eq!(got, job(seed));
            assert_eq!((status.from + 1) % world.size(), world.rank());
            assert_eq!(status.tag, 3);
            sent.wait().unwrap();
        }
        assert!(world.recv_object_for(Source::Any, JOB, Duration::from_millis(1)).unwrap().is_none());
        // No message can come from ranks that have left.
        world.barrier().unwrap();
    });
}

#[test]
fn undecodable_object_is_reported_and_consumed() {
    on(&[2], "undecodable_object_is_reported_and_consumed", |world| {
        let wait = Duration::from_secs(50);
        let fails = |way| match match way {
            0 => world.recv_object(1 - world.rank(), JOB).map(Some),
            1 => world.recv_object_for(1 - world.rank(), JOB, wait),
            2 => world.irecv_object(1 - world.rank(), JOB).wait_status().map(Some).map_err(Error::from),
            _ => loop {
                match world.try_recv_object(1 - world.rank(), JOB) {
                    Ok(None) => {}
                    came => break came,
                }
            },
        }
        .unwrap_err()
        {
            error @ Error::OtherObject { status, .. } => {
                assert!(error.to_string().contains("does not decode as messages::objects::Job"), "{error}");
                status.len
            }
            error => panic!("{error}"),
        };
        if world.rank() == 0 {
            world.send(1, Tag::new(3), &[1_u8, 2, 3]).unwrap();
            world.send_object(1, Tag::<u64>::new(3), &7).unwrap();
            world.send_object(1, JOB, &job(1)).unwrap();
            let lengths = [0, 1, 2].map(fails);
            let (got, status) = world.recv_object(1, JOB).unwrap();
            assert_eq!((got, lengths), (job(1), [status.len - 1, status.len + 1, 8]));
        } else {
            assert_eq!([2, 3].map(fails), [3, 9]);
            let (whole, _) = world.recv(0, Tag::<u8>::new(3)).unwrap();
            // A truncated object, one with bytes behind it, and one with the type bytes alone.
            for bytes in [&whole[..whole.len() - 1], &[&whole[..], &[0]].concat(), &whole[..8], &whole[..]] {
                world.send(0, Tag::new(3), bytes).unwrap();
            }
        }
        assert!(matches!(world.recv_object(Source::None, JOB), Err(Error::Misuse { .. })));
        assert!(matches!(world.recv_object_for(Source::None, JOB, wait), Err(Error::Misuse { .. })));
        assert!(matches!(world.try_recv_object(Source::None, JOB), Err(Error::Misuse { .. })));
        let nobody = world.irecv_object(Source::None, JOB).wait().unwrap_err();
        assert!(matches!(nobody.error, Error::Misuse { .. }));
        let failed = world.isend_object(9, JOB, &Job::Stop).wait().unwrap_err();
        assert!(matches!(failed.error, Error::NoSuchRank { rank: 9, .. }));
        assert!(matches!(world.send_object(9, JOB, &Job::Stop), Err(Error::NoSuchRank { rank: 9, .. })));
    });
}

/// Requests of objects work in sets, as futures, and with `cancel`, as all requests do.
#[test]
fn object_requests_complete_in_every_wait() {
    on(&[2, 3], "object_requests_complete_in_every_wait", |world| {
        const GO: Tag<u8> = Tag::new(9);
        let n = world.size();
        if world.rank() > 0 {
            world.recv(0, GO).unwrap();
            [1, 2, 1000].into_iter().for_each(|seed| world.send_object(0, JOB, &job(seed)).unwrap());
            return;
        }
        let withdrawn = world.irecv_object(1, JOB).cancel();
        assert!(matches!(withdrawn, Cancelled::Withdrawn(None)), "{withdrawn:?}");
        let mut first = world.irecv_object(1, JOB);
        assert!(!first.test() && first.status().is_none());
        let mut rest: Requests<_> = (2..n).map(|rank| world.irecv_object(rank, JOB)).collect();
        (1..n).for_each(|rank| world.send(rank, GO, &[1]).unwrap());
        while !first.test() {}
        assert_eq!(first.status().unwrap().from, 1);
        assert_eq!(first.wait().unwrap(), job(1));
        while let Some((_, came)) = rest.wait_any() {
            assert_eq!(came.unwrap(), job(1));
        }
        for rank in 1..n {
            let second = world.irecv_object(rank, JOB);
            let third = world.irecv_object(rank, JOB);
            assert_eq!(world.block_on(second).unwrap().unwrap(), job(2));
            assert_eq!(Request::wait_all([third]).unwrap(), [job(1000)]);
        }
    });
}

thread_local! {
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

/// A value whose deserialisation calls the library.
struct Turns(u8);

impl<'de> Deserialize<'de> for Turns {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        WORLD.with_borrow(|world| world.as_ref().unwrap().progress().unwrap());
        u8::deserialize(from).map(Turns)
    }
}

impl Serialize for Turns {
    fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(into)
    }
}

/// Deserialisation runs code of the program, which may make any call.
#[test]
fn deserialisation_may_call_the_library() {
    on(&[1], "deserialisation_may_call_the_library", |world| {
        const TURNS: Tag<Turns> = Tag::new(5);
        let world = Rc::new(world);
        WORLD.set(Some(world.clone()));
        let coming: Vec<_> = (0..4).map(|_| world.irecv_object(0, TURNS)).collect();
        (0..6).for_each(|value| world.send_object(0, TURNS, &Turns(value)).unwrap());
        assert!(Request::wait_all(coming).unwrap().iter().map(|value| value.0).eq(0..4));
        assert_eq!(world.irecv_object(0, TURNS).wait().unwrap().0, 4);
        assert_eq!(world.block_on(world.irecv_object(0, TURNS)).unwrap().unwrap().0, 5);
        WORLD.set(None);
    });
}

/// A length from a peer is checked before it is used: an object that claims to be long takes no memory.
#[test]
fn forged_object_length_is_refused() {
    on(&[1], "forged_object_length_is_refused", |world| {
        const LIST: Tag<Vec<u64>> = Tag::new(4);
        world.send_object(0, LIST, &vec![5]).unwrap();
        let (bytes, _) = world.recv(0, Tag::<u8>::new(4)).unwrap();
        let lies = [&bytes[..8], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 1]].concat();
        world.send(0, Tag::new(4), &lies).unwrap();
        let error = world.recv_object(0, LIST).unwrap_err();
        assert!(matches!(error, Error::OtherObject { source: Some(_), .. }), "{error}");
    });
}
