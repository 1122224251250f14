//! Memory that a rank registers of the windows of its host neighbours, on a fake adapter.

use crate::adapter::*;
use std::path::Path;
use transom::{Op, Window};

/// Registered bytes of a rank grow by its own window, and by the words of each neighbour that it locks, not by the
/// neighbours' elements.
#[test]
fn host_peers_register_only_the_words_that_they_use() {
    const DATA: usize = 1 << 20;
    /// Of a lock for 8 ranks: 9 lines. A barrier: 3 lines. Counts: 136 bytes. In whole lines, and one line more.
    const WORDS: usize = 64 * (9 + 3 + 3 + 1);
    /// Receive buffers and results of atomics, which come with the first queue pair: the one to itself.
    const FIRST: usize = 135_168 + 4096;
    let name = "host_peers_register_only_the_words_that_they_use";
    on_fake(None, 8, name, &[("TRANSOM_INTRANODE", "on")], |world| {
        let (me, n, verbs) = (world.rank(), world.size(), verbs(&world));
        // The first window adds the page of the words that other ranks count in.
        let before = verbs.registered_bytes() + 4096;
        let mut window: Window<u64> = world.allocate(DATA / 8).unwrap();
        let grown = || verbs.registered_bytes() - before;
        assert_eq!(grown(), DATA + WORDS);
        let next = (me + 1) % n;
        for _ in 0..2 {
            window.lock_exclusive(next).unwrap().put(me, &[7]).unwrap();
            assert_eq!(grown(), DATA + 2 * WORDS + FIRST, "the words of one neighbour are registered once");
        }
        // Now the locks of all ranks compete.
        meet(&world).unwrap();
        window.lock_all().unwrap().unlock().unwrap();
        assert_eq!(grown(), DATA + n * WORDS + FIRST);
        meet(&world).unwrap();
        assert_eq!(window.local().get((me + n - 1) % n).unwrap(), 7);
        meet(&world).unwrap();
    });
}

/// The limit of locked memory is reached after the window was made.
#[test]
fn words_that_cannot_be_registered_take_a_connection() {
    let name = "words_that_cannot_be_registered_take_a_connection";
    on_fake(None, 3, name, &[("TRANSOM_INTRANODE", "on")], |world| {
        let (me, n) = (world.rank(), world.size());
        let mut window: Window<u64> = world.allocate(1).unwrap();
        // The first connection registers receive buffers.
        drop(window.lock_exclusive(me).unwrap());
        meet(&world).unwrap();
        let full = Path::new(&std::env::var("FAKE_ADAPTER").unwrap()).join("full");
        if me == 0 {
            std::fs::write(&full, "").unwrap();
        }
        meet(&world).unwrap();
        // Contended, so that an unlock writes a word of the next rank in the queue.
        for at in 0..20 * n {
            let epoch = window.lock_exclusive(at % n).unwrap();
            let count = epoch.get_one(0).unwrap();
            epoch.put(0, &[count + 1]).unwrap();
            epoch.unlock().unwrap();
        }
        for rank in 0..n {
            window.lock_shared(rank).unwrap().fetch_and_op(0, Op::Sum, 1).unwrap();
        }
        meet(&world).unwrap();
        assert_eq!(window.local().get(0).unwrap(), 21 * n as u64);
        assert_eq!(verbs(&world).queue_pairs().to_others, n - 1);
        meet(&world).unwrap();
        if me == 0 {
            std::fs::remove_file(full).unwrap();
        }
        meet(&world).unwrap();
    });
}
