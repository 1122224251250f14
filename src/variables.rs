//! The environment variables that transom reads. `transom info` prints them with their values. Each crate declares its
//! own; [`TABLE`] has them all.

pub use transom_launch::Ports;
pub use transom_launch::variables::{
    BOOTSTRAP, GRACE, HOST, HUB, HUB_PORTS, LOCAL_RANK, LOCAL_SIZE, Micros, NESTING, OUTPUT_PREFIX, RANK, SECRET, SHM,
    SIZE, SSH, Seconds, SecondsOrOff, SetBy, Variable, VariableError, readable,
};

pub use crate::collective::asked::COLLECTIVES;
pub use crate::messages::asked::{MESSAGES, PROGRESS};
pub use crate::provider::asked::FABRIC;
use std::io::Write;
use std::str::FromStr;
use std::sync::{LazyLock, Once};
use tracing_subscriber::filter::{LevelFilter, Targets};

/// All variables of this build. Another name with the prefix `TRANSOM_` has no effect.
///
/// # Examples
/// ```
/// assert!(transom::variables::TABLE.iter().all(|variable| variable.name.starts_with("TRANSOM_")));
/// ```
pub static TABLE: LazyLock<Vec<Variable>> = LazyLock::new(|| {
    let own: &[Variable] = &[LOG, SPIN_US, WAIT_REPORT, FABRIC, COLLECTIVES, MESSAGES, PROGRESS];
    [own, &crate::provider::variables(), transom_launch::variables::TABLE].concat()
});

/// Returns the names in the environment that begin with TRANSOM_ and are not in [`TABLE`], sorted: possible typos,
/// which have no effect. Rank 0 of a job reports them at its start.
///
/// # Examples
/// ```
/// assert!(!transom::variables::unknown().contains(&"TRANSOM_LOG".to_owned()));
/// ```
pub fn unknown() -> Vec<String> {
    let known = |name: &str| TABLE.iter().any(|variable| variable.name == name);
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut unknown: Vec<_> = names.filter(|name| name.starts_with("TRANSOM_") && !known(name)).collect();
    unknown.sort();
    unknown
}

/// Reports unknown variables on stderr, once in a process.
pub(crate) fn tell_unknown() {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        for name in unknown() {
            // `eprintln!` would panic if stderr is closed.
            let _ = writeln!(
                std::io::stderr(),
                "transom: unknown variable {name} has no effect; `transom info` lists all variables"
            );
        }
    });
}

/// Selects the events logged to stderr: TRANSOM_LOG.
pub const LOG: Variable = Variable {
    name: "TRANSOM_LOG",
    set_by: SetBy::User,
    meaning: "events that are logged to stderr, by level and crate",
    expected: "a level (off, error, warn, info, debug, trace), crate=level, or a list, e.g. `warn,transom_windows=debug`",
    default: "nothing is logged",
    check: readable::<LogFilter>,
};

/// Sets the spin time of waits: TRANSOM_SPIN_US.
pub const SPIN_US: Variable = Variable {
    name: "TRANSOM_SPIN_US",
    set_by: SetBy::User,
    meaning: "time a waiting rank polls memory before it yields its core",
    expected: "microseconds, e.g. `20`",
    default: "20",
    check: readable::<Micros>,
};

/// Sets the time before a long wait is reported: TRANSOM_WAIT_REPORT.
pub const WAIT_REPORT: Variable = Variable {
    name: "TRANSOM_WAIT_REPORT",
    set_by: SetBy::User,
    meaning: "time after which a wait is reported on stderr, with both ranks, line and process",
    expected: "seconds, e.g. `5`, or `off`",
    default: "5",
    check: readable::<SecondsOrOff>,
};

/// A filter of logged events: levels, by crate or for all crates.
///
/// # Examples
/// ```
/// use transom::variables::LogFilter;
/// assert!("warn,transom_windows=debug".parse::<LogFilter>().is_ok());
/// assert_eq!(
///     "debg".parse::<LogFilter>().unwrap_err(),
///     "`debg` is neither a level nor crate=level"
/// );
/// ```
#[derive(Clone, Debug)]
pub struct LogFilter(pub(crate) Targets);

impl FromStr for LogFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // `Targets` takes a single word as a crate whose events are all logged, and so would accept a misspelt level.
        for entry in text.split(',').map(str::trim) {
            let level = match entry.split_once('=') {
                Some((name, level)) if !name.trim().is_empty() => level,
                Some(_) => "",
                None => entry,
            };
            if level.is_empty() || level.parse::<LevelFilter>().is_err() {
                return Err(format!("`{entry}` is neither a level nor crate=level"));
            }
        }
        text.parse().map(LogFilter).map_err(|error: tracing_subscriber::filter::ParseError| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_filter_parses_levels_and_crate_lists() {
        for right in ["off", "INFO", "debug", "transom=trace", "warn,transom_windows=debug", "warn, a::b=off", "3"] {
            assert!(right.parse::<LogFilter>().is_ok(), "{right}");
        }
        for wrong in ["debg", "transom", "info,transom", "transom=loud", "=info", "a=", "", "info,"] {
            let error = wrong.parse::<LogFilter>().map(drop).unwrap_err();
            assert!(error.contains("neither a level nor crate=level"), "{wrong}: {error}");
        }
    }
}
