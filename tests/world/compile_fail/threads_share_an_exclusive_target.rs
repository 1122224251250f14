//! Threads do not share the target of an epoch, whose accumulates rely on no other thread of the rank; each takes its
//! own.

use std::thread;
use transom::{Error, Op, Window};

fn main() {}

fn lock(window: &mut Window<u64>) -> Result<(), Error> {
    let mut epoch = window.lock_exclusive(0)?;
    #[cfg(wrong)]
    thread::scope(|scope| {
        scope.spawn(|| epoch.accumulate(0, Op::Sum, &[1, 1])); //~ E0277
        scope.spawn(|| epoch.accumulate(0, Op::Sum, &[1, 1]));
    });
    let each = epoch.for_threads();
    thread::scope(|scope| {
        scope.spawn(|| each.target().accumulate(0, Op::Sum, &[1, 1]));
        scope.spawn(|| each.target().accumulate(0, Op::Sum, &[1, 1]));
    });
    epoch.unlock()
}

fn all(window: &mut Window<u64>) -> Result<(), Error> {
    let epoch = window.lock_all()?;
    let target = epoch.target(0)?;
    #[cfg(wrong)]
    thread::scope(|scope| scope.spawn(|| target.put(0, &[1])).join().unwrap())?; //~ E0277
    thread::scope(|scope| scope.spawn(|| epoch.target(0)?.put(0, &[1])).join().unwrap())?;
    target.put(0, &[2])
}
