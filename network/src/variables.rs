//! The environment variables of every network.

use std::str::FromStr;
use transom_launch::variables::{SetBy, Variable, readable};

/// The variables of this crate.
pub const TABLE: &[Variable] = &[INTRANODE];

/// TRANSOM_INTRANODE.
pub const INTRANODE: Variable = Variable {
    name: "TRANSOM_INTRANODE",
    set_by: SetBy::User,
    meaning: "with verbs: use of shared memory between ranks of one host, for data and, in a job on several hosts, for \
              messages; the same at all ranks",
    expected: "`auto`, `on` or `off`",
    default: "auto: on if the job has several hosts",
    check: readable::<Intranode>,
};

/// Use of the memory that ranks of one host share: on, off, or `None` for on only if the job has several hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Intranode(pub Option<bool>);

impl FromStr for Intranode {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text.trim() {
            "auto" => Ok(Intranode(None)),
            "on" => Ok(Intranode(Some(true))),
            "off" => Ok(Intranode(Some(false))),
            _ => Err("neither auto, on nor off"),
        }
    }
}
