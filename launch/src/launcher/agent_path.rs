//! The place of `transom` on hosts, in TRANSOM_AGENT.

use std::str::FromStr;

/// The program that starts the ranks of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AgentPath {
    /// A shell script.
    Off,
    /// `transom` at this path.
    At(String),
}

impl FromStr for AgentPath {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(AgentPath::Off),
            // The host answers with the path in a line.
            path if path.starts_with('/') && !path.contains('\n') => Ok(AgentPath::At(path.to_owned())),
            _ => Err("neither a path from the root nor `off`"),
        }
    }
}
