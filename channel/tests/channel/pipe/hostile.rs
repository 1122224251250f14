//! A hostile peer writes arbitrary bytes into a pipe.

use super::*;
use std::collections::BTreeMap;
use transom_channel::pipe::Fault;
use transom_channel::sim::Conditions;
use transom_channel::wire::{Data, Key, Lane, Request, Wire};
use transom_channel::{Config, Error};

/// Rank 0 writes arbitrary bytes into its pipe to rank 1. Rank 1 has a pipe to rank 2 as well.
#[test]
fn hostile_pipe_bytes_affect_only_that_pipe() {
    let mut seen = BTreeMap::new();
    for seed in 0..crate::model::rounds(3000) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let step = STEPS[seed as usize % 5];
        let rail = rails()[seed as usize / 5 % 3];
        let conditions = Conditions { rails: vec![rail], torn: false, ..Conditions::default() };
        let mut sim = Sim::new(seed, 3, conditions, &Config::default()).unwrap();
        let config = Pipe { step, chunk: 128, chunks: 4, zero_copy_from: 200 };
        let [(mine, my_offer), (id, offer)] = open(&mut sim, 0, 1, config);
        sim.engine(0).pipe_join(mine, &offer.encode()).unwrap();
        sim.engine(1).pipe_join(id, &my_offer.encode()).unwrap();
        let other = joined(&mut sim, 1, 2, config);
        for _ in 0..20 {
            let length = rng.usize(1..1000);
            sim.engine(1).pipe_start_put(id, SimMemory::pattern(1, length), length).unwrap();
            sim.engine(1).pipe_start_get(id, SimMemory::zero(length), length).unwrap();
            if rng.u8(..3) == 0 {
                sim.engine(0).pipe_start_put(mine, SimMemory::pattern(1, length), length).unwrap();
                sim.engine(0).pipe_start_get(mine, SimMemory::zero(length), length).unwrap();
            }
        }
        for _ in 0..rng.usize(1..20) {
            (0..rng.usize(..30)).for_each(|_| _ = sim.step());
            let lane = Lane { peer: 1, rail: 0 };
            let word = |rng: &mut fastrand::Rng| match rng.u8(..4) {
                0 => rng.u64(..),
                1 => rng.u64(..600),
                2 => rng.u64(..130) << 32 | rng.u64(..12),
                _ => rng.u64(..6),
            };
            let words: Vec<u8> = (0..rng.usize(..6)).flat_map(|_| word(&mut rng).to_le_bytes()).collect();
            // At the ends of pointers, control and chunks, or anywhere.
            let slots = [0, 64, 184, 248, 312, 376, 504, 632, 760, 888];
            let end = if rng.bool() { *rng.choice(&slots).unwrap() } else { 8 * rng.usize(..112) };
            let at = end - words.len().min(end);
            let words = &words[..end - at];
            let stamp = rng.u64(1..9);
            let length = *rng.choice(&[words.len() as u64, 8, 16, 32, 100, 121, 1 << 31]).unwrap();
            let mark = if rng.u8(..4) == 0 { word(&mut rng) } else { length << 32 | stamp };
            let immediate = (rail.immediate && rng.u8(..4) > 0)
                .then(|| if rng.bool() { 1 << 31 | rng.u32(..4) << 29 | rng.u32(..1000) } else { rng.u32(..) });
            let request =
                Request::Put { to: offer.key, at, head: words, body: Data::None, mark: Some(mark), immediate };
            let _ = sim.engine(0).wire().post(lane, request);
            sim.wake(1, 0);
        }
        let length = 5000;
        sim.engine(2).pipe_start_put(other[1], SimMemory::bytes(&stretch(7, 0, length)), length).unwrap();
        let mut steps = 0;
        let (mut got, mut lost) = (0, None);
        let mut into = vec![0; length];
        while let Some(rank) = sim.step() {
            steps += 1;
            assert!(steps < 100_000, "seed {seed}: not finished after the step limit");
            while let Some(done) = sim.engine(rank).completed() {
                match done.result {
                    Err(Error::PeerFailure { rank: who, lost: why }) => {
                        assert!((rank, who) == (1, 0) || (rank, who) == (0, 1), "rank {rank} lost {who}: {why}");
                        lost = if rank == 1 { Some(why) } else { lost };
                    }
                    Err(Error::Pipe { rank: who, fault: Fault::Closed }) => assert_eq!((rank, who), (1, 0)),
                    Err(other) => panic!("{other}"),
                    Ok(_) => {}
                }
            }
            if rank == 1 && got < length {
                got += sim.engine(1).pipe_get(other[0], &mut into[got..]).unwrap().unwrap();
                sim.wake(1, 500);
            }
        }
        assert!(got == length && into == stretch(7, 0, length), "the bytes of the pipe to rank 2 are wrong");
        let _ = sim.engine(1).pipe_get(id, &mut [0; 100]);
        *seen.entry(format!("{lost:?}").chars().take(70).collect::<String>()).or_insert(0) += 1;
    }
    println!("{seen:#?}");
    assert!(seen.len() > 8, "expected more reasons to disconnect, found: {seen:#?}");
}

/// A job in which the test writes rank 1's end by hand: the job, the end's number and its key.
fn by_hand(step: Step) -> (Sim, Id, Key) {
    let conditions = Conditions { rails: vec![rails()[0]], torn: false, ..Conditions::default() };
    let mut sim = Sim::new(1, 2, conditions, &Config::default()).unwrap();
    let config = Pipe { step, chunk: 128, chunks: 4, zero_copy_from: 200 };
    let [(mine, my_offer), (id, offer)] = open(&mut sim, 0, 1, config);
    sim.engine(0).pipe_join(mine, &offer.encode()).unwrap();
    sim.engine(1).pipe_join(id, &my_offer.encode()).unwrap();
    while sim.step().is_some() {}
    (sim, id, offer.key)
}

/// Writes words that end where a slot does, and their mark; then runs the job.
fn write(sim: &mut Sim, to: Key, end: usize, words: &[u64], stamp: u64) {
    let head: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let (at, mark) = (end - head.len(), Some((head.len() as u64) << 32 | stamp));
    let request = Request::Put { to, at, head: &head, body: Data::None, mark, immediate: None };
    assert!(sim.engine(0).wire().post(Lane { peer: 1, rail: 0 }, request).is_ok());
    sim.wake(1, 0);
    while sim.step().is_some() {}
}

/// End of the first control slot, and of each chunk of the ring.
const CONTROL: usize = 128 + 64 - 8;
const CHUNKS: [usize; 4] = [504, 632, 760, 888];

#[test]
fn invalid_length_request_of_a_put_disconnects_peer() {
    for length in [0, 301, 1 << 40, u64::MAX] {
        let (mut sim, id, to) = by_hand(Step::Write);
        sim.engine(1).pipe_start_put(id, SimMemory::pattern(1, 300), 300).unwrap();
        sim.wake(1, 0);
        while sim.step().is_some() {}
        // `Clear`: the first `length` of the announced bytes may be written here.
        write(&mut sim, to, CONTROL, &[3, length, to.address, to.key], 1);
        let done = sim.engine(1).completed().expect("its put has ended");
        let Err(Error::PeerFailure { rank: 0, lost }) = done.result else { panic!("{length}: {:?}", done.result) };
        assert_eq!(
            lost.to_string(),
            "it broke the protocol: it requested an invalid number of bytes of a put",
            "{length}"
        );
    }
}

#[test]
fn full_pipe_ring_is_not_polled() {
    let (mut sim, id, to) = by_hand(Step::Pipeline);
    let get = |sim: &mut Sim, most: usize| sim.engine(1).pipe_get(id, &mut vec![0; most]).unwrap().unwrap();
    for (stamp, end) in (1..).zip(CHUNKS) {
        write(&mut sim, to, end, &[1, 100 + stamp], stamp);
    }
    // Overwrites chunks that were not got yet, at any time; the next lap overwrites them again.
    let mut got = get(&mut sim, 1);
    for stamp in [5, 9] {
        write(&mut sim, to, CHUNKS[0], &[1, 100 + stamp], stamp);
        got += get(&mut sim, 1);
    }
    got += get(&mut sim, 100);
    assert_eq!(got, 4 * 8, "got more or fewer bytes than a full ring");
}

#[test]
fn malformed_pipe_offer_is_refused() {
    let offer = Offer { config: Pipe::default(), number: 7, key: Key { address: 1 << 40, key: 99 } };
    assert_eq!(Offer::decode(&offer.encode()), Some(offer));
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..100_000 {
        let mut bytes = offer.encode().to_vec();
        for _ in 0..rng.usize(1..3) {
            let at = rng.usize(..bytes.len());
            bytes[at] = rng.u8(..);
        }
        bytes.truncate(rng.usize(30..40));
        if let Some(read) = Offer::decode(&bytes) {
            assert_eq!(read.encode()[..], bytes[..], "a decoded offer encodes to other bytes");
            assert!(read.config.memory() <= 384 + (1 << 20) && read.config.chunks >= 2);
        }
    }
    // A peer with a malformed offer is cut off.
    let mut sim = Sim::new(1, 2, Conditions::default(), &Config::default()).unwrap();
    let (id, _) = sim.engine(0).pipe_open(1, Pipe::default()).unwrap();
    let error = sim.engine(0).pipe_join(id, b"no offer").unwrap_err();
    assert_eq!(error.to_string(), "rank 1 is lost: it broke the protocol: its offer of a pipe is malformed");
}
