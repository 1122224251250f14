//! Reports of failures in a drop, where no call is left to return them.

use crate::Error;
use std::io::Write;

/// Reports a failed drop, after which puts may be lost: as an event or, without a subscriber, as a line on stderr.
/// After the loss of a rank the line is left out: calls report the loss, and many drops fail.
#[cold]
pub(crate) fn failed(what: &'static str, error: &Error) {
    if tracing::enabled!(tracing::Level::ERROR) {
        tracing::error!(%error, "{what}");
    } else if error.lost_rank().is_none() {
        // An error of the write is ignored: `eprintln!` would panic on a closed pipe, here in a drop.
        let _ = writeln!(std::io::stderr(), "transom: {what}: {error}");
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::FabricError;

    #[test]
    fn failed_drop_is_reported_unless_a_rank_is_lost() {
        if std::env::var_os("WINDOWS_DROPPED").is_some() {
            failed("unlock failed", &Error::Fabric { window: 2, rank: 1, source: FabricError::PeerDied { rank: 7 } });
            failed("unlock failed", &Error::other("no way"));
            return;
        }
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "dropped::tests::failed_drop_is_reported_unless_a_rank_is_lost", "--nocapture"]);
        let told = again.env("WINDOWS_DROPPED", "1").output().unwrap();
        assert!(told.status.success());
        let told = String::from_utf8(told.stderr).unwrap();
        assert_eq!(
            told.lines().filter(|line| line.contains("transom")).collect::<Vec<_>>(),
            ["transom: unlock failed: no way"]
        );
        let (reader, nobody_reads) = std::io::pipe().unwrap();
        drop(reader);
        assert!(again.stdout(std::process::Stdio::null()).stderr(nobody_reads).status().unwrap().success());
    }
}
