//! Environment variables of messages.

use std::str::FromStr;
use transom_channel::Changes;
use transom_launch::variables::{SetBy, Variable, VariableError, readable};

/// Sizes and limits of messages, and the default of pipes: TRANSOM_MESSAGES.
pub const MESSAGES: Variable = Variable {
    name: "TRANSOM_MESSAGES",
    set_by: SetBy::User,
    meaning: "sizes and limits of messages, and the default configuration of pipes",
    expected: "FIELD=VALUE, a name such as `aptus`, or a list, e.g. `eager=4096,rings=0`; docs/configuration.md lists \
               fields and names",
    default: "docs/configuration.md lists the defaults",
    check: readable::<Changes>,
};

/// The configuration of TRANSOM_MESSAGES, for networks. An invalid value has no effect here: the first message reports
/// it.
#[cfg(feature = "network")]
pub(crate) fn configured() -> transom_channel::Config {
    let changes = MESSAGES.get::<Changes>().ok().flatten();
    changes.map_or_else(Default::default, |changes| changes.of(Default::default()))
}

/// Makes progress by calls only, or also by a thread: TRANSOM_PROGRESS.
pub const PROGRESS: Variable = Variable {
    name: "TRANSOM_PROGRESS",
    set_by: SetBy::User,
    meaning: "progress of a rank's messages: only within its calls, or also by a thread while the program computes",
    expected: "`calls` or `thread`",
    default: "calls; a thread once `World::event_fd` was called",
    check: readable::<Progress>,
};

/// The value of TRANSOM_PROGRESS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Progress {
    #[default]
    Calls,
    Thread,
}

impl FromStr for Progress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text.trim() {
            "calls" => Ok(Progress::Calls),
            "thread" => Ok(Progress::Thread),
            _ => Err("neither `calls` nor `thread`"),
        }
    }
}

impl Progress {
    pub fn asked() -> Result<Progress, VariableError> {
        Ok(PROGRESS.get()?.unwrap_or_default())
    }
}
