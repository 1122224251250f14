//! What the environment asks of providers.

use std::str::FromStr;
use transom_launch::variables::{SetBy, Variable, readable};

/// TRANSOM_FABRIC.
pub const FABRIC: Variable = Variable {
    name: "TRANSOM_FABRIC",
    set_by: SetBy::User,
    meaning: "which provider the ranks of a job use",
    expected: "`auto`, `shm` (one machine), `verbs` (InfiniBand, RoCE; the cargo feature `verbs`) or `delayed` (late \
               and unordered, to test synchronisation; the cargo feature `delayed`)",
    default: "auto: shm on one machine, verbs on several",
    check: readable::<Choice>,
};

/// What TRANSOM_FABRIC asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Choice {
    #[default]
    Auto,
    Shm,
    Delayed,
    Verbs,
}

impl FromStr for Choice {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text.trim() {
            "auto" => Ok(Choice::Auto),
            "shm" => Ok(Choice::Shm),
            "delayed" if cfg!(feature = "delayed") => Ok(Choice::Delayed),
            "delayed" => Err("this build has no delayed provider; build with the cargo feature `delayed`"),
            "verbs" if cfg!(feature = "verbs") => Ok(Choice::Verbs),
            "verbs" => Err("this build has no verbs provider; build with the cargo feature `verbs`"),
            _ => Err("no such provider"),
        }
    }
}
