//! Environment variables that select the provider.

use super::ProviderError;
use super::table::{EXPECTED, ROWS, Row};
use std::str::FromStr;
use transom_launch::variables::{SetBy, Variable, readable};
use transom_windows::OobExchange;

/// Selects the provider of a job: TRANSOM_FABRIC.
pub const FABRIC: Variable = Variable {
    name: "TRANSOM_FABRIC",
    set_by: SetBy::User,
    meaning: "provider of the job",
    expected: EXPECTED,
    default: "auto: shm on one machine; on several, the first network of the list that all ranks can use",
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
        named(text.trim(), ROWS).map(|name| Choice(Some(name)))
    }
}

/// The name of a provider of this build.
fn named(name: &str, rows: &[Row]) -> Result<&'static str, String> {
    match rows.iter().find(|row| row.name == name) {
        Some(row) if row.built => Ok(row.name),
        Some(Row { name, .. }) => Err(format!(
            "this build has no {name} provider; build with the cargo feature `{name}`, or set TRANSOM_FABRIC=tcp, which every \
             build has"
        )),
        None => Err("no such provider".into()),
    }
}

/// Prefix of the provider that TRANSOM_FABRIC names, in the exchange.
const NAMED: &str = "=";

/// Agrees on the network of ranks of several hosts: the one that TRANSOM_FABRIC names at some rank, or else the first of
/// those `usable` at this rank that every other rank can use as well. Collective.
pub(super) fn agree(
    job: &impl OobExchange,
    choice: Choice,
    usable: &[&'static str],
) -> Result<Option<&'static str>, ProviderError> {
    let mine = choice.0.map_or_else(|| usable.join(","), |name| format!("{NAMED}{name}"));
    let told = job.all_gather(mine.as_bytes())?;
    chosen(&told, job.rank(), choice, usable)
}

/// Chooses the network from the message of each rank.
fn chosen(
    told: &[Vec<u8>],
    me: usize,
    choice: Choice,
    usable: &[&'static str],
) -> Result<Option<&'static str>, ProviderError> {
    let told: Vec<_> = told.iter().map(|told| String::from_utf8_lossy(told)).collect();
    let named = told.iter().enumerate().filter_map(|(rank, told)| Some((rank, told.strip_prefix(NAMED)?)));
    let built = |name: &str| ROWS.iter().find(|row| row.built && row.name == name).map(|row| row.name);
    let mut chosen = choice.0;
    for (rank, theirs) in named {
        match chosen {
            Some(mine) if mine != theirs => {
                return Err(ProviderError::Disagree { me, mine, rank, theirs: theirs.into() });
            }
            Some(_) => {}
            None => chosen = built(theirs),
        }
    }
    let by_all = |name: &&&str| told.iter().all(|told| told.split(',').any(|usable| usable == **name));
    Ok(chosen.or_else(|| usable.iter().find(by_all).copied()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provider_that_the_build_lacks_is_refused() {
        let rows = &[Row { name: "verbs", built: false }, Row { name: "tcp", built: true }];
        assert_eq!(named("tcp", rows), Ok("tcp"));
        let why = "this build has no verbs provider; build with the cargo feature `verbs`, or set TRANSOM_FABRIC=tcp, which every \
                   build has";
        assert_eq!(named("verbs", rows), Err(why.into()));
        assert_eq!(named("vebs", rows), Err("no such provider".into()));
        assert!("tcp".parse::<Choice>() == Ok(Choice(Some("tcp"))), "every build has tcp");
        assert_eq!("verbs".parse::<Choice>().is_ok(), cfg!(feature = "verbs"));
    }

    #[test]
    fn network_of_all_ranks_is_chosen_unless_named() {
        let chosen = |told: &[&str], choice, usable: &[&'static str]| {
            let told: Vec<Vec<u8>> = told.iter().map(|told| told.as_bytes().to_vec()).collect();
            chosen(&told, 1, Choice(choice), usable).map_err(|error| error.to_string())
        };
        let both = &["verbs", "tcp"];
        assert_eq!(chosen(&["verbs,tcp", "verbs,tcp"], None, both), Ok(Some("verbs")));
        assert_eq!(chosen(&["tcp", "verbs,tcp"], None, both), Ok(Some("tcp")));
        assert_eq!(chosen(&["", "verbs,tcp"], None, both), Ok(None));
        assert_eq!(chosen(&["verbs,tcp", "=tcp", "verbs"], Some("tcp"), &[]), Ok(Some("tcp")));
        assert_eq!(chosen(&["=tcp", "verbs,tcp"], None, both), Ok(Some("tcp")), "named at another rank");
        let why = "TRANSOM_FABRIC is tcp at rank 1, and verbs at rank 2; set the same value at all ranks, or none";
        assert_eq!(chosen(&["tcp", "=tcp", "=verbs"], Some("tcp"), &[]), Err(why.into()));
        assert_eq!(chosen(&["=\u{fffd}", "tcp"], None, &["tcp"]), Ok(None), "no such provider");
    }
}
