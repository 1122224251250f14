//! Selection of the output lines that begin with their rank.

use std::str::FromStr;

/// Selects the output lines that the launcher prefixes with the rank that wrote them, e.g. `[2] `.
///
/// # Examples
/// ```
/// use transom::OutputPrefix;
/// assert_eq!("stderr".parse(), Ok(OutputPrefix::Stderr));
/// assert_eq!(OutputPrefix::All.to_string(), "all");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputPrefix {
    /// No lines.
    None,
    /// Lines of stderr.
    Stderr,
    /// Lines of stdout and of stderr.
    All,
}

impl OutputPrefix {
    const NAMES: [(&'static str, OutputPrefix); 3] =
        [("none", OutputPrefix::None), ("stderr", OutputPrefix::Stderr), ("all", OutputPrefix::All)];
}

impl std::fmt::Display for OutputPrefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(Self::NAMES[*self as usize].0)
    }
}

impl FromStr for OutputPrefix {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::NAMES.iter().find(|(name, _)| *name == text.trim());
        named.map(|(_, prefix)| *prefix).ok_or("unknown value")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_round_trips_through_its_name() {
        for (name, prefix) in
            [("none", OutputPrefix::None), ("stderr", OutputPrefix::Stderr), ("all", OutputPrefix::All)]
        {
            assert_eq!((name.parse(), prefix.to_string().as_str()), (Ok(prefix), name));
        }
        assert!("both".parse::<OutputPrefix>().is_err());
    }
}
