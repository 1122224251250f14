//! The agent of a host: starts the ranks of the host for a launcher elsewhere, and passes on their output, their ends, and
//! the launcher's signals. Its stdin and stdout are the connection to the launcher. It is two processes, `transom
//! host-agent`, whatever the number of ranks:
//!
//! - The guard starts the agent and waits for it. It adopts the orphans among its descendants. If the agent is killed,
//!   or stays stopped, it kills all of them.
//! - The agent does the rest. If the guard is killed, or stays stopped, the agent kills the ranks.
//!
//! The agent first reads the job of its host (`host_job.rs`). Then it speaks by records (`records.rs`). A thread of it
//! carries the ranks' connections to the hub, as one connection (`tcp/uplink.rs`).

mod command;
mod guard;
mod rank;
mod serve;

use std::io;

pub use guard::guard;
pub use serve::serve;

/// The line by which a host's `transom` is known to be an agent for this launcher. The number is that of the form of
/// jobs, records, and the connection to the hub.
pub const IDENTITY: &str = concat!("transom agent ", env!("CARGO_PKG_VERSION"), " protocol 2");

/// Exit status of the guard, and of the agent, if the ranks were killed.
const KILLED_RANKS: u8 = 255;

/// Names the host in the error of a system call.
fn named(host: &str, error: io::Error) -> io::Error {
    match error.raw_os_error() {
        None => error,
        Some(_) => io::Error::new(
            error.kind(),
            format!("host {host}: the agent cannot go on: {error}; TRANSOM_AGENT=off starts the ranks by a script"),
        ),
    }
}

/// Makes this process survive signals to its process group, which are meant for others. Programs that it starts have the
/// default actions.
fn ignore_in_this_process(signals: &[i32]) -> io::Result<()> {
    // SAFETY: the handler does nothing.
    signals.iter().try_for_each(|signal| unsafe { signal_hook::low_level::register(*signal, || ()) }.map(drop))
}

/// The report of a process of the launcher that was `killed` or `stopped`.
fn lost(host: &str, what: &str, process: i32) -> String {
    format!(
        "transom: host {host}: its ranks are ended: a process of the launcher there was {what} (process {process})\n"
    )
}
