//! Two threads do not open epochs on one window; they may share one epoch.

use std::thread;
use transom::{Error, Window};

fn main() {}

fn threads(window: &mut Window<u64>) -> Result<(), Error> {
    #[cfg(wrong)]
    thread::scope(|scope| {
        scope.spawn(|| window.lock_exclusive(0)?.put(0, &[1]));
        scope.spawn(|| window.lock_exclusive(0)?.put(0, &[2])); //~ E0499
    });
    let epoch = window.lock_all()?;
    thread::scope(|scope| {
        scope.spawn(|| epoch.target(0)?.put(0, &[1]));
        scope.spawn(|| epoch.target(0)?.put(1, &[2]));
    });
    epoch.unlock()
}
