//! Core time of a thread, which excludes the time of other programs.

/// Nanoseconds that this thread has run so far.
pub fn on_core() -> f64 {
    let run = std::fs::read_to_string("/proc/thread-self/schedstat").expect("a kernel that counts what threads run");
    run.split(' ').next().and_then(|run| run.parse().ok()).expect("nanoseconds")
}
