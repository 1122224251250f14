//! One message of each size class.

use transom_channel::sim::{Conditions, Sim, SimMemory};
use transom_channel::{Config, RecvTarget, Select};

#[test]
fn message_of_any_length_arrives() {
    for length in [0, 1, 100, 2000, 8192, 8193, 100_000, 8 << 20] {
        let mut sim = Sim::new(1, 2, Conditions::default(), &Config::default()).unwrap();
        let select = Select { context: 0, source: Some(0), tag: Some(5) };
        let got = sim.engine(1).receive(select, RecvTarget::Into(SimMemory::zero(length), length));
        let sent = sim.engine(0).send(1, 0, 5, SimMemory::pattern(7, length), length, false);
        sim.wake(0, 0);
        sim.wake(1, 0);
        let mut ended = Vec::new();
        while let Some(rank) = sim.step() {
            while let Some(done) = sim.engine(rank).completed() {
                assert!(done.result.is_ok());
                ended.push((rank, done.id));
                if rank == 1 {
                    assert_eq!(done.memory.unwrap().whose(length), (length > 0).then_some(7), "{length}");
                }
            }
        }
        ended.sort();
        assert_eq!(ended, [(0, sent), (1, got)], "{length}");
        for rank in 0..2 {
            sim.engine(rank).at_rest().unwrap();
        }
    }
}
