//! Environment settings of collectives.

use transom_collective::Rules;
use transom_launch::variables::{SetBy, Variable, readable};

/// TRANSOM_COLLECTIVES.
pub const COLLECTIVES: Variable = Variable {
    name: "TRANSOM_COLLECTIVES",
    set_by: SetBy::User,
    meaning: "rules that select the algorithms of collectives; the same at all ranks",
    expected: "CALL CONDITIONS = ALGORITHM, or a list, e.g. `all_reduce bytes<=1024 = ring, broadcast=binomial`, or \
               the name of a file with rules",
    default: "chosen by numbers of ranks and bytes: docs/design/collectives.md",
    check: readable::<Asked>,
};

/// Parsed rules of TRANSOM_COLLECTIVES, given in the variable itself or in the file that it names.
pub(crate) struct Asked(Rules);

impl std::str::FromStr for Asked {
    type Err = String;

    fn from_str(value: &str) -> Result<Self, String> {
        let is_file = !value.contains('=') && !value.trim().is_empty();
        let text = if is_file { std::fs::read_to_string(value) } else { Ok(value.into()) };
        let rules = text.map_err(|error| format!("neither a rule nor a readable file: {error}"))?.parse();
        rules.map(Asked).map_err(|error| error.to_string())
    }
}

impl Asked {
    pub(super) fn rules() -> Result<Rules, String> {
        let asked = COLLECTIVES.get::<Asked>().map_err(|error| error.to_string())?;
        Ok(asked.map(|asked| asked.0).unwrap_or_default())
    }
}
