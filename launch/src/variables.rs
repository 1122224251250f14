//! Environment variables: what each is called, who sets it, what it means and how its value is read. A crate declares the
//! variables that it reads as [`Variable`]s and lists them in a table; the facade collects the tables.

mod own;
mod values;

pub(crate) use own::removed_for_ranks;
pub use own::{BOOTSTRAP, GRACE, HOST, HUB, NESTING, RANK, SECRET, SHM, SIZE, SSH, TABLE, TAG};
pub use values::{Micros, Seconds, SecondsOrOff};

use std::fmt::Display;
use std::str::FromStr;

/// An environment variable.
///
/// # Examples
/// ```
/// use transom::variables::{GRACE, Seconds};
/// assert_eq!(GRACE.name, "TRANSOM_GRACE");
/// assert!(GRACE.get::<Seconds>()?.is_none()); // it is not set here
/// # Ok::<(), transom::variables::VariableError>(())
/// ```
#[derive(Clone, Copy, Debug)]
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
    /// Says what is wrong with a value. [`readable`] makes one of the type that reads the value.
    pub check: fn(&str) -> Result<(), String>,
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

impl Variable {
    /// Reads the value from the environment. Returns `None` if the variable is not set.
    ///
    /// # Errors
    /// [`VariableError`] if it is set to something that `T` does not parse; such a value is never ignored.
    ///
    /// # Examples
    /// See [`Variable`].
    pub fn get<T: FromStr<Err: Display>>(&self) -> Result<Option<T>, VariableError> {
        let Some(value) = std::env::var_os(self.name) else { return Ok(None) };
        match value.to_str() {
            Some(text) => self.parse(text).map(Some),
            None => Err(self.error(&value.to_string_lossy(), "it is not UTF-8")),
        }
    }

    /// Reads a text as a value of the variable.
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

    /// Returns what is wrong with the value in the environment, if it is set and not understood.
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

/// Says why `T` does not parse a text, for [`Variable::check`].
///
/// # Errors
/// The message of the error.
///
/// # Examples
/// ```
/// use transom::variables::{Seconds, readable};
/// assert_eq!(readable::<Seconds>("soon"), Err("not a number of seconds".to_owned()));
/// ```
pub fn readable<T: FromStr<Err: Display>>(text: &str) -> Result<(), String> {
    text.parse::<T>().map(drop).map_err(|why| why.to_string())
}

/// A variable whose value is not what is expected.
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
    /// The variable.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// What a value looks like.
    pub expected: &'static str,
    /// What is wrong.
    pub why: String,
}

transom_windows::joins_error!(VariableError);
