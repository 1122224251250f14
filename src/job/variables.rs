//! Every environment variable that transom reads, in one table: `transom info` prints it, and whoever reads a variable
//! takes what to say about a bad value from it.

use std::str::FromStr;
use std::time::Duration;

/// One row of [`TABLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Variable {
    /// Its name, `TRANSOM_…`.
    pub name: &'static str,
    /// Whose it is to set.
    pub set_by: SetBy,
    /// What it does.
    pub meaning: &'static str,
    /// What a value looks like, for messages: "expected …".
    pub expected: &'static str,
    /// What holds if it is not set.
    pub default: &'static str,
}

/// Who sets a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetBy {
    /// Whoever starts the program, as they wish.
    User,
    /// The launcher, for each rank; not to be set by hand.
    Launcher,
}

/// All variables; a `TRANSOM_` name that is not here means nothing.
///
/// # Examples
/// ```
/// assert!(transom::variables::TABLE.iter().all(|variable| variable.name.starts_with("TRANSOM_")));
/// ```
pub const TABLE: &[Variable] = &[
    Variable {
        name: "TRANSOM_LOG",
        set_by: SetBy::User,
        meaning: "what is logged to stderr, by level and by crate",
        expected: "a level or a list of crate=level, e.g. `info` or `warn,transom_shm_loopback=debug`",
        default: "nothing is logged",
    },
    Variable {
        name: "TRANSOM_GRACE",
        set_by: SetBy::User,
        meaning: "how long the other ranks may go on after the first failure, to report their own errors",
        expected: "seconds, e.g. `2` or `0.5`",
        default: "2",
    },
    Variable {
        name: "TRANSOM_FABRIC",
        set_by: SetBy::User,
        meaning: "which provider the ranks of a job use",
        expected: "`auto`, `shm` (one machine) or `verbs` (InfiniBand, RoCE; the cargo feature `verbs`)",
        default: "auto: shm on one machine, verbs on several",
    },
    Variable {
        name: "TRANSOM_HYBRID",
        set_by: SetBy::User,
        meaning: "with verbs: whether ranks of one host move data through the memory they share",
        expected: "`auto`, `on` or `off`",
        default: "auto: on if the job has several hosts",
    },
    Variable {
        name: "TRANSOM_VERBS_DEVICE",
        set_by: SetBy::User,
        meaning: "the RDMA device",
        expected: "a name that `ibv_devices` lists, e.g. `mlx5_0`",
        default: "the first with an active port",
    },
    Variable {
        name: "TRANSOM_VERBS_PORT",
        set_by: SetBy::User,
        meaning: "the port of the RDMA device",
        expected: "a number from 1 to 254",
        default: "the first that is active",
    },
    Variable {
        name: "TRANSOM_VERBS_GID",
        set_by: SetBy::User,
        meaning: "the address of the port, by its index in the port's table",
        expected: "a number from 0 to 255",
        default: "RoCE: the first of RoCE v2 and IPv4, else of RoCE v2; InfiniBand: none, the LID is enough",
    },
    Variable {
        name: "TRANSOM_VERBS_MTU",
        set_by: SetBy::User,
        meaning: "the most bytes of a packet",
        expected: "256, 512, 1024, 2048 or 4096",
        default: "the most that both ports have active",
    },
    Variable {
        name: "TRANSOM_VERBS_SL",
        set_by: SetBy::User,
        meaning: "the service level",
        expected: "a number from 0 to 15",
        default: "0",
    },
    Variable {
        name: "TRANSOM_VERBS_DEPTH",
        set_by: SetBy::User,
        meaning: "how many operations may be under way between two ranks",
        expected: "a number from 4 to 32768",
        default: "128, less if the device has less",
    },
    Variable {
        name: "TRANSOM_VERBS_INLINE",
        set_by: SetBy::User,
        meaning: "up to how many bytes a put travels in its request",
        expected: "a number from 0 to 4096",
        default: "128, less if the device has less",
    },
    Variable {
        name: "TRANSOM_VERBS_TIMEOUT",
        set_by: SetBy::User,
        meaning: "after how long a packet that is not answered is sent again; after 8 times the peer cannot be reached",
        expected: "seconds, e.g. `0.25`",
        default: "0.25",
    },
    Variable {
        name: "TRANSOM_VERBS_NOTIFY",
        set_by: SetBy::User,
        meaning: "how a word is put in one piece: by a write, which adapters do at once, or by compare-and-swap",
        expected: "`auto`, `write` or `atomic`",
        default: "auto: atomic on Soft-RoCE, which copies byte by byte; else write",
    },
    Variable {
        name: "TRANSOM_BOOTSTRAP",
        set_by: SetBy::User,
        meaning: "what started the job, where that is not found out as it should be",
        expected: "`transom`, `pmix`, `pmi` or `none`",
        default: "found out, in this order",
    },
    Variable {
        name: "TRANSOM_SSH",
        set_by: SetBy::User,
        meaning: "what `transom run --hosts` starts ranks with; host and command are added",
        expected: "a program and its arguments, with spaces between",
        default: "ssh -oBatchMode=yes -oServerAliveInterval=5",
    },
    Variable {
        name: "TRANSOM_RANK",
        set_by: SetBy::Launcher,
        meaning: "which rank the process is",
        expected: "a number below TRANSOM_SIZE",
        default: "the only rank, of a job of its own",
    },
    Variable {
        name: "TRANSOM_SIZE",
        set_by: SetBy::Launcher,
        meaning: "how many ranks the job has",
        expected: "a number above 0",
        default: "1",
    },
    Variable {
        name: "TRANSOM_SHM",
        set_by: SetBy::Launcher,
        meaning: "the way to the memory that the ranks of a job share from the start",
        expected: "a descriptor that the launcher passes on, and its tag",
        default: "no such memory",
    },
    Variable {
        name: "TRANSOM_HUB",
        set_by: SetBy::Launcher,
        meaning: "where the ranks of a job on several hosts reach the launcher",
        expected: "addresses with ports, with commas between",
        default: "a job on this machine",
    },
    Variable {
        name: "TRANSOM_SECRET",
        set_by: SetBy::Launcher,
        meaning: "what only the ranks of that job know",
        expected: "64 hexadecimal digits",
        default: "a job on this machine",
    },
    Variable {
        name: "TRANSOM_HOST",
        set_by: SetBy::Launcher,
        meaning: "which of the hosts of a job this is; ranks with different ones share no memory",
        expected: "a name",
        default: "the machine's own identity tells",
    },
];

/// The value of a variable, or `None` if it is not set.
///
/// # Errors
/// [`VariableError`] if it is set to something that `T` does not parse: a value that is there is never ignored.
///
/// # Examples
/// ```
/// use transom::variables::{Seconds, get};
/// assert!(get::<Seconds>("TRANSOM_GRACE")?.is_none());
/// # Ok::<(), transom::variables::VariableError>(())
/// ```
pub fn get<T: FromStr<Err: std::fmt::Display>>(name: &'static str) -> Result<Option<T>, VariableError> {
    let Some(value) = std::env::var_os(name) else { return Ok(None) };
    let error = |why: String| {
        let expected = TABLE.iter().find(|row| row.name == name).map_or("another value", |row| row.expected);
        VariableError { name, value: value.to_string_lossy().into_owned(), expected, why }
    };
    let text = value.to_str().ok_or_else(|| error("it is not UTF-8".to_owned()))?;
    text.parse().map(Some).map_err(|why: T::Err| error(why.to_string()))
}

/// A variable with a value that cannot be.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value:?}: {why}; expected {expected}")]
#[non_exhaustive]
pub struct VariableError {
    /// The variable.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// What a value looks like.
    pub expected: &'static str,
    /// What is wrong.
    pub why: String,
}

/// A time in seconds, as users write it.
///
/// # Examples
/// ```
/// use transom::variables::Seconds;
/// assert_eq!("0.5".parse::<Seconds>().unwrap().0.as_millis(), 500);
/// assert!("-1".parse::<Seconds>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seconds(pub Duration);

impl FromStr for Seconds {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // Beyond a year is a mistake, and would overflow when added to a clock.
        let most = 365.0 * 24.0 * 3600.0;
        match text.trim().parse::<f64>() {
            Ok(seconds) if (0.0..=most).contains(&seconds) => Ok(Seconds(Duration::from_secs_f64(seconds))),
            Ok(_) => Err("not between 0 and a year in seconds"),
            Err(_) => Err("not a number of seconds"),
        }
    }
}
