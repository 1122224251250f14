//! Cost of pipes: writes, counted.

use super::*;
use transom_channel::Config;
use transom_channel::sim::Conditions;

/// Puts or gets a whole buffer by non-blocking calls.
fn pass(sim: &mut Sim, [from, to]: [(Rank, Id); 2], length: usize) {
    let (data, mut into) = (stretch(1, 0, length), vec![0; length]);
    let (mut put, mut got) = (0, 0);
    sim.wake(from.0, 0);
    while got < length {
        let rank = sim.step().expect("the simulation stopped before all bytes arrived");
        if rank == from.0 && put < length {
            put += sim.engine(rank).pipe_put(from.1, &data[put..]).unwrap();
            if put < length {
                sim.wake(rank, 100);
            }
        }
        if rank == to.0 {
            got += sim.engine(rank).pipe_get(to.1, &mut into[got..]).unwrap().unwrap();
        }
    }
    assert!(into == data);
}

#[test]
fn basic_pipe_needs_three_writes_others_one() {
    let rounds = 1000;
    for rail in rails() {
        for step in STEPS {
            let conditions = Conditions { rails: vec![rail], ..Conditions::default() };
            let mut sim = Sim::new(1, 2, conditions, &Config::default()).unwrap();
            let [a, b] = joined(&mut sim, 0, 1, Pipe { step, ..Pipe::default() });
            for _ in 0..rounds {
                pass(&mut sim, [(0, a), (1, b)], 8);
                pass(&mut sim, [(1, b), (0, a)], 8);
            }
            let counts = [sim.engine(0).pipe_count(a).unwrap(), sim.engine(1).pipe_count(b).unwrap()];
            let writes: u64 = counts.iter().map(|count| count.writes).sum();
            // On a rail that guarantees only whole words, a chunk's mark is a write of its own.
            let second = u64::from(!rail.mark_last && !rail.immediate);
            let each = if step == Step::Basic { 3 } else { 1 + second };
            assert_eq!(writes, each * 2 * rounds, "{step:?} {rail:?}");
            assert!(counts.iter().all(|count| count.copied == 8 * rounds && count.got == 8 * rounds));
        }
    }
}

#[test]
fn one_way_pipe_reports_tail_per_half_ring() {
    for step in &STEPS[1..] {
        let mut sim = Sim::new(1, 2, Conditions::default(), &Config::default()).unwrap();
        let [a, b] = joined(&mut sim, 0, 1, Pipe { step: *step, ..Pipe::default() });
        let messages = 800;
        for _ in 0..messages {
            pass(&mut sim, [(0, a), (1, b)], 8);
        }
        assert_eq!(sim.engine(0).pipe_count(a).unwrap().writes, messages);
        let tails = sim.engine(1).pipe_count(b).unwrap();
        assert_eq!((tails.writes, tails.alone), (messages / 8, messages / 8), "16 chunks");
    }
}

/// All steps post the same number of chunks. Copying everything before the first write would only cost time,
/// and copies take no time here.
#[test]
fn long_put_writes_one_chunk_per_payload() {
    for step in &STEPS[1..] {
        let mut sim = Sim::new(1, 2, Conditions::default(), &Config::default()).unwrap();
        let config = Pipe { step: *step, ..Pipe::default() };
        let [a, b] = joined(&mut sim, 0, 1, config);
        pass(&mut sim, [(0, a), (1, b)], 100 * config.payload());
        assert_eq!(sim.engine(0).pipe_count(a).unwrap().writes, 100);
        assert_eq!(config.payload(), (16 << 10) - 16);
    }
}

#[test]
fn long_pipe_buffer_is_sent_without_copies() {
    let length = 1 << 20;
    for rail in rails() {
        for (step, reads, writes, expected) in [
            // Read: an offer, and the acknowledgement. Write: an announcement, the target address, and the
            // FIN.
            (Step::Read, true, true, (length, 0, [1, 1])),
            (Step::Write, true, true, (0, length, [2, 1])),
            (Step::Write, true, false, (length, 0, [1, 1])),
            (Step::Read, false, true, (0, length, [2, 1])),
        ] {
            let rail = Rail { read: reads, write: writes, ..rail };
            let conditions = Conditions { rails: vec![rail], ..Conditions::default() };
            let mut sim = Sim::new(1, 2, conditions, &Config::default()).unwrap();
            let [a, b] = joined(&mut sim, 0, 1, Pipe { step, ..Pipe::default() });
            let data = SimMemory::pattern(5, length);
            let put = sim.engine(0).pipe_start_put(a, data, length).unwrap();
            let get = sim.engine(1).pipe_start_get(b, SimMemory::zero(length), length).unwrap();
            while sim.step().is_some() {}
            let done = sim.engine(0).completed().unwrap();
            assert_eq!((done.id, done.result.unwrap().length), (put, length as u64));
            let done = sim.engine(1).completed().unwrap();
            assert_eq!((done.id, done.memory.unwrap().whose(length)), (get, Some(5)));
            let counts = [sim.engine(0).pipe_count(a).unwrap(), sim.engine(1).pipe_count(b).unwrap()];
            let twice = if !rail.mark_last && !rail.immediate { 2 } else { 1 };
            let (read, written, posts) = expected;
            assert_eq!((counts[0].read, counts[0].written, counts[0].copied), (read as u64, written as u64, 0));
            assert_eq!(counts.map(|count| count.writes), posts.map(|posts| posts * twice), "{step:?} {rail:?}");
            // Only the memory of the two ends is still registered.
            assert_eq!([0, 1].map(|rank| sim.registrations(rank)), [1, 1]);
        }
    }
}
