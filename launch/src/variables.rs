//! Environment variables: name, setter, meaning, and parser of each. A crate declares the variables that it reads as
//! [`Variable`]s and lists them in a table; the facade collects the tables.

mod own;
mod renamed;
mod values;

pub(crate) use own::LISTEN_AT;
pub(crate) use own::removed_for_ranks;
pub use own::{
    AGENT, BOOTSTRAP, GRACE, HOST, HUB, LOCAL_RANK, LOCAL_SIZE, NESTING, OUTPUT_PREFIX, RANK, SECRET, SHM, SIZE,
};
pub use own::{HUB_INTERFACE, HUB_PORTS, HUB_VIA, SSH, TABLE, VERBOSE};
pub use values::{Micros, Seconds, SecondsOrOff};

use std::fmt::Display;
use std::str::FromStr;

/// An environment variable.
///
/// # Examples
/// ```
/// use transom::variables::{GRACE, Seconds};
/// assert_eq!(GRACE.name, "TRANSOM_GRACE");
/// assert!(GRACE.get::<Seconds>()?.is_none()); // not set in this process
/// # Ok::<(), transom::variables::VariableError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Name, `TRANSOM_…`.
    pub name: &'static str,
    /// The party that sets it.
    pub set_by: SetBy,
    /// Effect of the variable.
    pub meaning: &'static str,
    /// Form of a value, completing the message "expected …".
    pub expected: &'static str,
    /// Behaviour if it is not set.
    pub default: &'static str,
    /// Checks a value; the error describes the fault. [`readable`] makes a check from the type that parses the value.
    pub check: fn(&str) -> Result<(), String>,
}

/// The party that sets a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetBy {
    /// The user.
    User,
    /// The launcher, for each rank. Users must not set it.
    Launcher,
}

impl Variable {
    /// Reads the value from the environment. Returns `None` if the variable is not set.
    ///
    /// # Errors
    /// [`VariableError`] if the variable is set to a text that `T` does not parse, or is set under a former name. Such a
    /// value is never ignored.
    ///
    /// # Examples
    /// See [`Variable`].
    pub fn get<T: FromStr<Err: Display>>(&self) -> Result<Option<T>, VariableError> {
        let Some(value) = std::env::var_os(self.name) else {
            return match renamed::set_by_former_name(self.name) {
                None => Ok(None),
                Some((name, value)) => Err(VariableError {
                    name,
                    value,
                    expected: self.expected,
                    why: format!("this variable is called {} now", self.name),
                }),
            };
        };
        match value.to_str() {
            Some(text) => self.parse(text).map(Some),
            None => Err(self.error(&value.to_string_lossy(), "it is not UTF-8")),
        }
    }

    /// Parses a text as a value of the variable.
    ///
    /// # Errors
    /// [`VariableError`] if `T` does not parse it.
    ///
    /// # Examples
    /// ```
    /// use transom::variables::{GRACE, Seconds};
    /// assert_eq!(GRACE.parse::<Seconds>("2")?.0.as_secs(), 2);
    /// # Ok::<(), transom::variables::VariableError>(())
    /// ```
    pub fn parse<T: FromStr<Err: Display>>(&self, text: &str) -> Result<T, VariableError> {
        text.parse().map_err(|why: T::Err| self.error(text, why))
    }

    /// Checks the value in the environment; `None` if it is valid or not set.
    ///
    /// # Examples
    /// ```
    /// let mistakes = transom::variables::TABLE.iter().filter_map(|variable| variable.mistake());
    /// mistakes.for_each(|mistake| println!("{mistake}"));
    /// ```
    pub fn mistake(&self) -> Option<VariableError> {
        match self.get::<String>() {
            Ok(value) => value.and_then(|text| (self.check)(&text).err().map(|why| self.error(&text, why))),
            Err(error) => Some(error),
        }
    }

    fn error(&self, value: &str, why: impl Display) -> VariableError {
        VariableError { name: self.name, value: value.to_owned(), expected: self.expected, why: why.to_string() }
    }
}

/// Checks that `T` parses a text, for [`Variable::check`].
///
/// # Errors
/// The message of `T`'s error.
///
/// # Examples
/// ```
/// use transom::variables::{Seconds, readable};
/// assert_eq!(readable::<Seconds>("soon"), Err("not a number of seconds".to_owned()));
/// ```
pub fn readable<T: FromStr<Err: Display>>(text: &str) -> Result<(), String> {
    text.parse::<T>().map(drop).map_err(|why| why.to_string())
}

/// An environment variable has a value that cannot be read.
///
/// # Examples
/// ```
/// use transom::variables::{GRACE, Seconds};
/// assert_eq!(
///     GRACE.parse::<Seconds>("soon").unwrap_err().to_string(),
///     "TRANSOM_GRACE=\"soon\": not a number of seconds; expected seconds, e.g. `2` or `0.5`"
/// );
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value:?}: {why}; expected {expected}")]
#[non_exhaustive]
pub struct VariableError {
    /// Name of the variable.
    pub name: &'static str,
    /// Value found.
    pub value: String,
    /// Form of a value that was expected.
    pub expected: &'static str,
    /// The fault in the value.
    pub why: String,
}

transom_windows::joins_error!(VariableError);
