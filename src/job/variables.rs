//! Every environment variable that transom reads, in one table. `transom info` prints it, and errors about a bad value
//! say what it has as `expected`.

mod mistake;
mod values;

pub use values::{LogFilter, Micros, Seconds, SecondsOrOff};

use std::fmt::Display;
use std::str::FromStr;

/// One row of [`TABLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Variable {
    /// Its name, `TRANSOM_…`.
    pub name: &'static str,
    /// Who sets it.
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
    /// The user.
    User,
    /// The launcher, for each rank. Users do not set it.
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
        expected: "a level (off, error, warn, info, debug, trace), crate=level, or a list, e.g. `warn,transom_windows=debug`",
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
        name: "TRANSOM_TAG",
        set_by: SetBy::User,
        meaning: "which lines of the ranks' output the launcher tags with the rank that wrote them, e.g. `[2] `",
        expected: "`none`, `stderr` or `all`",
        default: "stderr; none for the only rank of a job",
    },
    Variable {
        name: "TRANSOM_SPIN",
        set_by: SetBy::User,
        meaning: "how long a rank that waits looks at memory before it yields its core to others",
        expected: "microseconds, e.g. `20`",
        default: "20",
    },
    Variable {
        name: "TRANSOM_WAIT_REPORT",
        set_by: SetBy::User,
        meaning: "after how long a wait says on stderr which rank waits for which",
        expected: "seconds, e.g. `5`, or `off`",
        default: "5",
    },
    Variable {
        name: "TRANSOM_FABRIC",
        set_by: SetBy::User,
        meaning: "which provider the ranks of a job use",
        expected: "`auto`, `shm` (one machine), `verbs` (InfiniBand, RoCE; the cargo feature `verbs`) or `delayed` (late \
                   and unordered, to test synchronisation; the cargo feature `delayed`)",
        default: "auto: shm on one machine, verbs on several",
    },
    Variable {
        name: "TRANSOM_COLLECTIVES",
        set_by: SetBy::User,
        meaning: "which algorithms collectives take, where these can; the same at all ranks",
        expected: "CALL CONDITIONS = ALGORITHM, or a list, e.g. `all_reduce bytes<=1024 = ring, broadcast=binomial`, or a file \
                   that has it",
        default: "by ranks and bytes: docs/COLLECTIVES.md",
    },
    Variable {
        name: "TRANSOM_MESSAGES",
        set_by: SetBy::User,
        meaning: "sizes and limits of messages, and how pipes move bytes that do not say so",
        expected: "FIELD=VALUE, a name such as `aptus`, or a list, e.g. `eager=4096,rings=0`; docs/MESSAGES.md has fields and names",
        default: "as docs/MESSAGES.md says",
    },
    Variable {
        name: "TRANSOM_PROGRESS",
        set_by: SetBy::User,
        meaning: "who moves a rank's messages while the program computes: nobody but its calls, or a thread",
        expected: "`calls` or `thread`",
        default: "calls; a thread once `World::event_fd` was called",
    },
    Variable {
        name: "TRANSOM_HYBRID",
        set_by: SetBy::User,
        meaning: "with verbs: whether ranks of one host move data through the memory they share, and messages in a job on several; at all \
                  ranks the same",
        expected: "`auto`, `on` or `off`",
        default: "auto: on if the job has several hosts",
    },
    Variable {
        name: "TRANSOM_VERBS_DEVICE",
        set_by: SetBy::User,
        meaning: "the rails of each rank, in order: large messages, puts and gets are divided among all",
        expected: "up to 4, with commas between them: a name that `ibv_devices` lists, e.g. `mlx5_0`, or with the number of a port \
                   behind it, `mlx5_0:2`, or with the index of an address of that port as well, `mlx5_0:2:3`",
        default: "the first device with an active port, of those with atomics if there are any, and all that are like it: \
                  every active port of the same vendor's devices and the same link, as many as all ranks have",
    },
    Variable {
        name: "TRANSOM_VERBS_PORT",
        set_by: SetBy::User,
        meaning: "the port of each RDMA device that TRANSOM_VERBS_DEVICE names without one",
        expected: "a number from 1 to 254",
        default: "the first that is active",
    },
    Variable {
        name: "TRANSOM_VERBS_GID",
        set_by: SetBy::User,
        meaning: "the address of each port that TRANSOM_VERBS_DEVICE names without one, by its index in the port's table",
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
        name: "TRANSOM_VERBS_TRAFFIC_CLASS",
        set_by: SetBy::User,
        meaning: "the traffic class of packets with a global address: on RoCE the DSCP, times 4",
        expected: "a number from 0 to 255",
        default: "0",
    },
    Variable {
        name: "TRANSOM_VERBS_PKEY",
        set_by: SetBy::User,
        meaning: "the partition of the port, by its key",
        expected: "a number from 1 to 65535, e.g. `0x8001`",
        default: "the first of the port",
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
        name: "TRANSOM_VERBS_REGISTER",
        set_by: SetBy::User,
        meaning: "from how many bytes on the memory of a put or get is registered for it, and not copied",
        expected: "a number from 32768 to 4294967295",
        default: "131072",
    },
    Variable {
        name: "TRANSOM_VERBS_KEEP",
        set_by: SetBy::User,
        meaning: "how many bytes of buffers of persistent and partitioned sends stay registered between messages",
        expected: "a number from 0 to 4294967295",
        default: "268435456",
    },
    Variable {
        name: "TRANSOM_VERBS_TIMEOUT",
        set_by: SetBy::User,
        meaning: "after how long a packet that is not answered is sent again",
        expected: "seconds above 0, e.g. `0.25`",
        default: "0.25",
    },
    Variable {
        name: "TRANSOM_VERBS_RETRY",
        set_by: SetBy::User,
        meaning: "how often a packet is sent again before the connection counts as broken, and is made anew",
        expected: "a number from 0 to 7; to Soft-RoCE 7 is for ever",
        default: "7",
    },
    Variable {
        name: "TRANSOM_VERBS_NOTIFY",
        set_by: SetBy::User,
        meaning: "how a word is put in one piece: by a write, which adapters do at once, or by compare-and-swap; at all ranks by \
                  the latter if one has it so",
        expected: "`auto`, `write` or `atomic`",
        default: "auto: atomic on Soft-RoCE, which copies byte by byte; else write",
    },
    Variable {
        name: "TRANSOM_BOOTSTRAP",
        set_by: SetBy::User,
        meaning: "which launcher started the program, if that is not found out right; transom's own launcher removes it",
        expected: "`transom`, `pmix`, `pmi`, or `none` (each process is alone, or starts a job of its own)",
        default: "found out, in this order",
    },
    Variable {
        name: "TRANSOM_SSH",
        set_by: SetBy::User,
        meaning: "what `transom run --hosts` starts ranks with; host and command are added",
        expected: "a program and its arguments, with spaces between",
        default: "ssh -oBatchMode=yes -oServerAliveInterval=5 -oControlMaster=no",
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
        meaning: "what leads to the control block, the memory that the ranks of a job on one machine share from the start",
        expected: "the launcher's process, its descriptor and a tag, with commas between",
        default: "no control block",
    },
    Variable {
        name: "TRANSOM_HUB",
        set_by: SetBy::Launcher,
        meaning: "where the hub of a job on several hosts listens, at the launcher",
        expected: "addresses with ports, with commas between",
        default: "a job on this machine",
    },
    Variable {
        name: "TRANSOM_SECRET",
        set_by: SetBy::Launcher,
        meaning: "from where a rank of a job on several hosts takes what it proves to the hub to know",
        expected: "a process of the launcher on this host and a descriptor of it, with a comma between",
        default: "a job on this machine",
    },
    Variable {
        name: "TRANSOM_HOST",
        set_by: SetBy::Launcher,
        meaning: "which of the hosts of a job this is; ranks with different ones share no memory",
        expected: "a name",
        default: "the machine's own identity",
    },
    Variable {
        name: "TRANSOM_NESTING",
        set_by: SetBy::Launcher,
        meaning: "how many launchers are above this process, each a rank of the one before; more than 3 are refused",
        expected: "a number",
        default: "0",
    },
];

/// The value of a variable, or `None` if it is not set.
///
/// # Errors
/// [`VariableError`] if it is set to something that `T` does not parse; such a value is never ignored.
///
/// # Examples
/// ```
/// use transom::variables::{Seconds, get};
/// assert!(get::<Seconds>("TRANSOM_GRACE")?.is_none());
/// # Ok::<(), transom::variables::VariableError>(())
/// ```
pub fn get<T: FromStr<Err: Display>>(name: &'static str) -> Result<Option<T>, VariableError> {
    let Some(value) = std::env::var_os(name) else { return Ok(None) };
    match value.to_str() {
        Some(text) => parse(name, text).map(Some),
        None => Err(VariableError::new(name, &value.to_string_lossy(), "it is not UTF-8")),
    }
}

/// The value that a text would have for a variable.
///
/// # Errors
/// [`VariableError`] if `T` does not parse it.
///
/// # Examples
/// ```
/// use transom::variables::{Seconds, parse};
/// assert_eq!(parse::<Seconds>("TRANSOM_GRACE", "2")?.0.as_secs(), 2);
/// # Ok::<(), transom::variables::VariableError>(())
/// ```
pub fn parse<T: FromStr<Err: Display>>(name: &'static str, text: &str) -> Result<T, VariableError> {
    text.parse().map_err(|why: T::Err| VariableError::new(name, text, why))
}

/// Names in the environment that begin with TRANSOM_ and are not in the [table](TABLE): typos, perhaps. They have no effect, and
/// launchers say so.
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

/// The variables that a launcher removes from the environment of its ranks before it sets its own: those of another
/// launcher, in one of whose ranks this one may run, and the one by which a user may override what started a process.
pub(crate) fn removed_for_ranks() -> impl Iterator<Item = &'static str> {
    TABLE.iter().filter(|row| row.set_by == SetBy::Launcher || row.name == "TRANSOM_BOOTSTRAP").map(|row| row.name)
}

/// A variable whose value is not what is expected.
///
/// # Examples
/// ```
/// use transom::variables::{Seconds, parse};
/// assert_eq!(
///     parse::<Seconds>("TRANSOM_GRACE", "soon").unwrap_err().to_string(),
///     "TRANSOM_GRACE=\"soon\": not a number of seconds; expected seconds, e.g. `2` or `0.5`"
/// );
/// ```
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

impl VariableError {
    fn new(name: &'static str, value: &str, why: impl Display) -> Self {
        let expected = TABLE.iter().find(|row| row.name == name).map_or("another value", |row| row.expected);
        VariableError { name, value: value.to_owned(), expected, why: why.to_string() }
    }
}
