//! Environment variables that select the provider.

use super::table::{EXPECTED, ROWS};
use std::str::FromStr;
use transom_launch::variables::{SetBy, Variable, readable};

/// Selects the provider of a job: TRANSOM_FABRIC.
pub const FABRIC: Variable = Variable {
    name: "TRANSOM_FABRIC",
    set_by: SetBy::User,
    meaning: "provider of the job",
    expected: EXPECTED,
    default: "auto: shm on one machine, the first network of the list on several",
    check: readable::<Choice>,
};

/// The provider that TRANSOM_FABRIC names; `None` is `auto`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choice(pub Option<&'static str>);

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == "auto" {
            return Ok(Choice(None));
        }
        match ROWS.iter().find(|row| row.name == text.trim()) {
            Some(row) if row.built => Ok(Choice(Some(row.name))),
            Some(row) => Err(format!("this build has no {0} provider; build with the cargo feature `{0}`", row.name)),
            None => Err("no such provider".into()),
        }
    }
}
