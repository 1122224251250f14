//! Short lists of ranks for messages.

use transom_locks::Rank;

/// Most ranges shown.
const MOST: usize = 8;

/// Lists ascending ranks, with `0-3` for three and more in a row: `0-3, 7`. The ranks of a long list are counted:
/// `0, 2, 4, 6, 8, 10, 12, 14 and 8 more`.
pub(crate) fn ranges(ranks: &[Rank]) -> String {
    let mut runs: Vec<&[Rank]> = Vec::new();
    for run in ranks.chunk_by(|&one, &next| next == one + 1) {
        // Two in a row are no shorter as a range.
        if run.len() == 2 { runs.extend(run.chunks(1)) } else { runs.push(run) }
    }
    let show = |run: &&[Rank]| match run {
        [first, .., last] => format!("{first}-{last}"),
        run => run[0].to_string(),
    };
    let shown: Vec<_> = runs.iter().take(MOST).map(show).collect();
    let more: usize = runs.iter().skip(MOST).map(|run| run.len()).sum();
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_in_a_row_are_shown_as_a_range() {
        for (ranks, shown) in [
            (&[][..], ""),
            (&[5], "5"),
            (&[0, 1], "0, 1"),
            (&[0, 1, 2], "0-2"),
            (&[1, 2, 3, 7, 9, 10, 12, 13, 14, 15], "1-3, 7, 9, 10, 12-15"),
        ] {
            assert_eq!(ranges(ranks), shown);
        }
        let even: Vec<_> = (0..16).map(|rank| 2 * rank).collect();
        assert_eq!(ranges(&even), "0, 2, 4, 6, 8, 10, 12, 14 and 8 more");
        assert_eq!(ranges(&even[..8]), "0, 2, 4, 6, 8, 10, 12, 14");
    }
}
