//! Selection of the output lines that begin with their rank.

use std::str::FromStr;

/// Selects the output lines that the launcher prefixes with the rank that wrote them, e.g. `[2] `.
///
/// # Examples
/// ```
/// use transom::Tag;
/// assert_eq!("stderr".parse(), Ok(Tag::Stderr));
/// assert_eq!(Tag::All.to_string(), "all");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// No lines.
    None,
    /// Lines of stderr.
    Stderr,
    /// Lines of stdout and of stderr.
    All,
}

impl Tag {
    const NAMES: [(&'static str, Tag); 3] = [("none", Tag::None), ("stderr", Tag::Stderr), ("all", Tag::All)];
}

impl std::fmt::Display for Tag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(Self::NAMES[*self as usize].0)
    }
}

impl FromStr for Tag {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::NAMES.iter().find(|(name, _)| *name == text.trim());
        named.map(|(_, tag)| *tag).ok_or("unknown value")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_round_trips_through_its_name() {
        for (name, tag) in [("none", Tag::None), ("stderr", Tag::Stderr), ("all", Tag::All)] {
            assert_eq!((name.parse(), tag.to_string().as_str()), (Ok(tag), name));
        }
        assert!("both".parse::<Tag>().is_err());
    }
}
