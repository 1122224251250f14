//! Values that serde knows, as messages.

mod ranks;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use transom::World;
use transom::messages::{Error, Source, Tag};

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

/// Of all lengths: by ring, queue and rendezvous; among other messages, from any.
#[test]
fn values_arrive_in_order_from_any() {
    on(&[1, 3], "values_arrive_in_order_from_any", |world| {
        const EACH: usize = 60;
        for seed in 0..EACH {
            let to = (world.rank() + 1) % world.size();
            let sent = world.isend_object(to, JOB, &job(seed));
            let (got, status) = match seed % 5 {
                0 => {
                    world.recv_object_for(Source::Any, JOB, Duration::from_secs(50)).unwrap().expect("it comes in time")
                }
                1 => loop {
                    if let Some(came) = world.try_recv_object(Source::Any, JOB).unwrap() {
                        break came;
                    }
                },
                _ => world.recv_object(Source::Any, JOB).unwrap(),
            };
            assert_eq!(got, job(seed));
            assert_eq!((status.from + 1) % world.size(), world.rank());
            assert_eq!(status.tag, 3);
            sent.wait().unwrap();
        }
        assert!(world.recv_object_for(Source::Any, JOB, Duration::from_millis(1)).unwrap().is_none());
    });
}

#[test]
fn what_is_no_such_value_is_said_and_consumed() {
    on(&[2], "what_is_no_such_value_is_said_and_consumed", |world| {
        let wait = Duration::from_secs(50);
        let fails = |way| match match way {
            0 => world.recv_object(1 - world.rank(), JOB).map(Some),
            1 => world.recv_object_for(1 - world.rank(), JOB, wait),
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
                assert!(error.to_string().contains("is no value of type objects::Job"), "{error}");
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
            assert_eq!((got, lengths), (job(1), [status.len + 7, status.len + 9, 8]));
        } else {
            assert_eq!([1, 2].map(fails), [3, 9]);
            let (whole, _) = world.recv(0, Tag::<u8>::new(3)).unwrap();
            // Cut short, with more behind it, and nothing but what tells its type.
            for bytes in [&whole[..whole.len() - 1], &[&whole[..], &[0]].concat(), &whole[..8], &whole[..]] {
                world.send(0, Tag::new(3), bytes).unwrap();
            }
        }
        assert!(matches!(world.recv_object(Source::None, JOB), Err(Error::Misuse { .. })));
        assert!(matches!(world.recv_object_for(Source::None, JOB, wait), Err(Error::Misuse { .. })));
        assert!(matches!(world.try_recv_object(Source::None, JOB), Err(Error::Misuse { .. })));
        let failed = world.isend_object(9, JOB, &Job::Stop).wait().unwrap_err();
        assert!(matches!(failed.error, Error::NoSuchRank { rank: 9, .. }));
        assert!(matches!(world.send_object(9, JOB, &Job::Stop), Err(Error::NoSuchRank { rank: 9, .. })));
    });
}

/// What a peer writes is no length before it was checked: a value that says it is long takes no memory.
#[test]
fn a_length_that_lies_takes_no_memory() {
    on(&[1], "a_length_that_lies_takes_no_memory", |world| {
        const LIST: Tag<Vec<u64>> = Tag::new(4);
        world.send_object(0, LIST, &vec![5]).unwrap();
        let (bytes, _) = world.recv(0, Tag::<u8>::new(4)).unwrap();
        let lies = [&bytes[..8], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 1]].concat();
        world.send(0, Tag::new(4), &lies).unwrap();
        let error = world.recv_object(0, LIST).unwrap_err();
        assert!(matches!(error, Error::OtherObject { source: Some(_), .. }), "{error}");
    });
}
