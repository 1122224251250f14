//! Which type understands the value of each variable.

use super::{LogFilter, Micros, Seconds, SecondsOrOff, Variable, VariableError, get};
use crate::collective::Asked;
use crate::job::bootstrap::Bootstrap;
use crate::job::launcher::Tag;
use crate::messages::Progress;
use crate::provider::Choice;
use std::fmt::Display;
use std::str::FromStr;
use transom_channel::Changes;

impl Variable {
    /// What is wrong with its value, if it is set to one that is not understood. Of the variables that the launcher sets for
    /// itself, not all are looked at.
    ///
    /// # Examples
    /// ```
    /// let mistakes = transom::variables::TABLE.iter().filter_map(|variable| variable.mistake());
    /// mistakes.for_each(|mistake| println!("{mistake}"));
    /// ```
    pub fn mistake(&self) -> Option<VariableError> {
        fn of<T: FromStr<Err: Display>>(variable: &Variable) -> Option<VariableError> {
            get::<T>(variable.name).err()
        }
        match self.name {
            "TRANSOM_LOG" => of::<LogFilter>(self),
            "TRANSOM_GRACE" => of::<Seconds>(self),
            "TRANSOM_TAG" => of::<Tag>(self),
            "TRANSOM_SPIN" => of::<Micros>(self),
            "TRANSOM_WAIT_REPORT" => of::<SecondsOrOff>(self),
            "TRANSOM_FABRIC" => of::<Choice>(self),
            "TRANSOM_COLLECTIVES" => of::<Asked>(self),
            "TRANSOM_MESSAGES" => of::<Changes>(self),
            "TRANSOM_PROGRESS" => of::<Progress>(self),
            "TRANSOM_BOOTSTRAP" => of::<Bootstrap>(self),
            "TRANSOM_RANK" | "TRANSOM_SIZE" | "TRANSOM_NESTING" => of::<usize>(self),
            #[cfg(feature = "verbs")]
            _ => crate::verbs::mistake(self.name),
            #[cfg(not(feature = "verbs"))]
            _ => None,
        }
    }
}
