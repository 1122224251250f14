//! The report of `transom run -v`: the provider of each host, by rank 0.

use super::{Provider, ProviderError};
use std::io::Write;
use transom_launch::variables::{HOST, VERBOSE};
use transom_locks::Rank;
use transom_windows::OobExchange;

/// Longest description of a rank that is printed, in characters.
const LONGEST: usize = 1000;

/// Reports the provider on stderr, if the launcher asked the ranks to. Collective then.
pub(crate) fn report(provider: &Provider) -> Result<(), ProviderError> {
    if VERBOSE.get::<u8>()?.is_none() {
        return Ok(());
    }
    let own = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host = HOST.get::<String>()?.unwrap_or_else(own);
    let told = provider.all_gather(format!("host {host}: {}", provider.inner().describe()).as_bytes())?;
    if provider.rank() == 0 {
        for line in lines(&told) {
            // `eprintln!` would panic if stderr is closed.
            let _ = writeln!(std::io::stderr(), "transom: {line}");
        }
    }
    Ok(())
}

/// A line for each different description, with its ranks, in the order of the first ones.
fn lines(told: &[Vec<u8>]) -> Vec<String> {
    let mut all: Vec<(String, Vec<Rank>)> = Vec::new();
    for (rank, told) in told.iter().enumerate() {
        let told = String::from_utf8_lossy(told);
        let told: String = told.chars().map(|c| if c.is_control() { '?' } else { c }).take(LONGEST).collect();
        match all.iter_mut().find(|(text, _)| *text == told) {
            Some((_, ranks)) => ranks.push(rank),
            None => all.push((told, vec![rank])),
        }
    }
    all.into_iter().map(|(text, ranks)| format!("{text} ({})", listed(&ranks))).collect()
}

/// `rank 3`, or `ranks 0-2, 5`.
fn listed(ranks: &[Rank]) -> String {
    let runs = ranks.chunk_by(|one, next| one + 1 == *next).map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        run => run.iter().map(Rank::to_string).collect(),
    });
    let plural = if ranks.len() == 1 { "" } else { "s" };
    format!("rank{plural} {}", runs.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_descriptions_are_one_line() {
        let told = ["host a: tcp", "host a: tcp", "host b: tcp\n", "host a: tcp", "host a: shm"];
        let told: Vec<Vec<u8>> = told.iter().map(|told| told.as_bytes().to_vec()).collect();
        assert_eq!(lines(&told), ["host a: tcp (ranks 0-1, 3)", "host b: tcp? (rank 2)", "host a: shm (rank 4)"]);
        assert_eq!(lines(&[vec![0xff; 5000]])[0].chars().count(), LONGEST + " (rank 0)".len());
    }
}
