//! Path selection: a message takes the first rule whose condition holds and whose path to its peer exists
//! now. The syntax is that of the slides of MVAPICH-Aptus (Koop, Jones, Panda 2008):
//!
//! ```text
//! # What follows this sign is a comment.
//! MSG_SIZE <= 2048, RC-FP,
//! MSG_SIZE <= 2008, UD-SR,
//! MSG_SIZE <= 8192 AND QUEUED < 4, RC-SR,
//! TRUE, RC-RDMA,
//! TRUE, Copy-Based
//! ```

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// Path of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Path {
    /// The ring that the peer has for this rank. Exists while a slot is free and the message fits in it.
    Ring,
    /// A queue of a reliable lane or of shared memory; in several packets if the message is longer than one.
    Queue,
    /// Datagrams; several if the message is longer than one.
    Datagram,
    /// Rendezvous, written or read in place.
    Move,
    /// Rendezvous, with datagrams into place. Exists only without checksums, on adapters that support it.
    DatagramMove,
    /// Rendezvous, copied in packets on one of the first three paths. Always exists.
    Copy,
}

/// Path names in a table of rules.
const PATHS: [(&str, Path); 6] = [
    ("RC-FP", Path::Ring),
    ("RC-SR", Path::Queue),
    ("UD-SR", Path::Datagram),
    ("RC-RDMA", Path::Move),
    ("UD-ZCopy", Path::DatagramMove),
    ("Copy-Based", Path::Copy),
];

/// Variables of the conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Length of the message in bytes.
    pub size: u64,
    /// Number of peers that this rank has communicated with, counted apart for peers on its host and for
    /// others.
    pub peers: u64,
    /// Messages that wait to be sent to this peer, this one included. For a message announced to this rank:
    /// messages that wait to be sent to its sender, at least 1.
    pub queued: u64,
}

const VARIABLES: [&str; 3] = ["MSG_SIZE", "PEERS", "QUEUED"];
/// The only variable that a ring's rule may use on the short path.
const SIZE: usize = 0;

/// Bits for the possible orders of a value and a number. Rules are evaluated for each packet, so a comparison
/// is one mask.
const LESS: u8 = 1;
const EQUAL: u8 = 2;
const MORE: u8 = 4;

const SIGNS: [(&str, u8); 6] =
    [("<=", LESS | EQUAL), ("<", LESS), (">=", MORE | EQUAL), (">", MORE), ("==", EQUAL), ("!=", LESS | MORE)];

/// One comparison; `variable` is an index into [`VARIABLES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Comparison {
    variable: usize,
    sign: u8,
    number: u64,
}

impl Comparison {
    #[inline]
    fn holds(&self, Facts { size, peers, queued }: Facts) -> bool {
        let value = match self.variable {
            SIZE => size,
            1 => peers,
            _ => queued,
        };
        let is = match value.cmp(&self.number) {
            Ordering::Less => LESS,
            Ordering::Equal => EQUAL,
            Ordering::Greater => MORE,
        };
        self.sign & is != 0
    }

    /// If the comparison holds exactly for sizes below some bound, that bound; otherwise `None`.
    fn below(&self) -> Option<u64> {
        const UP_TO: u8 = LESS | EQUAL;
        match (self.variable, self.sign) {
            (SIZE, UP_TO) => Some(self.number.saturating_add(1)),
            (SIZE, LESS) => Some(self.number),
            _ => None,
        }
    }
}

/// A rule: its path, if all its comparisons hold.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    when: Vec<Comparison>,
    path: Path,
}

/// A table of rules. The last rule always has a path.
///
/// ```
/// use transom_channel::rules::{Facts, Path, Rules};
/// let rules: Rules = "MSG_SIZE <= 100, RC-FP, TRUE, Copy-Based".parse()?;
/// let of = |size| rules.paths(Facts { size, peers: 1, queued: 1 }).collect::<Vec<_>>();
/// assert_eq!((of(100), of(101)), (vec![Path::Ring, Path::Copy], vec![Path::Copy]));
/// let error = "MSG_SIZE <= 100, RC-PF".parse::<Rules>().unwrap_err();
/// assert!(error.to_string().starts_with("line 1, column 18: found `RC-PF`, expected RC-FP, RC-SR,"));
/// # Ok::<(), transom_channel::rules::RulesError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

/// Error in the text of [`Rules`], with its position. Lines and columns (characters) are counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RulesError {
    /// The text has an unexpected word or sign.
    #[error("line {line}, column {column}: found {found}, expected {expected}")]
    Unexpected {
        /// Line of the error.
        line: usize,
        /// Column of the error.
        column: usize,
        /// Word or sign found.
        found: String,
        /// Words or signs allowed.
        expected: String,
    },
    /// Some message may have no path under these rules.
    #[error(
        "line {line}, column {column}: the last rule may have no path: make it `TRUE, Copy-Based`, which always has one"
    )]
    MayFail {
        /// Line at which the last rule begins.
        line: usize,
        /// Column at which the last rule begins.
        column: usize,
    },
}

impl Rules {
    /// The default rules: up to `eager` bytes eagerly, on any path that exists; `zero_copy_from` bytes and
    /// more in place.
    ///
    /// ```
    /// let rules = transom_channel::rules::Rules::usual(8192, 32768);
    /// assert_eq!(
    ///     rules.to_string(),
    ///     "MSG_SIZE <= 8192, RC-FP, MSG_SIZE <= 8192, RC-SR, MSG_SIZE <= 8192, UD-SR, \
    ///      MSG_SIZE < 32768, Copy-Based, TRUE, RC-RDMA, TRUE, UD-ZCopy, TRUE, Copy-Based"
    /// );
    /// ```
    pub fn usual(eager: usize, zero_copy_from: u64) -> Rules {
        let at_once = Comparison { variable: SIZE, sign: LESS | EQUAL, number: eager as u64 };
        let copied = Comparison { variable: SIZE, sign: LESS, number: zero_copy_from };
        let rule = |when: &[Comparison], path| Rule { when: when.to_vec(), path };
        Rules(vec![
            rule(&[at_once], Path::Ring),
            rule(&[at_once], Path::Queue),
            rule(&[at_once], Path::Datagram),
            rule(&[copied], Path::Copy),
            rule(&[], Path::Move),
            rule(&[], Path::DatagramMove),
            rule(&[], Path::Copy),
        ])
    }

    /// Paths of the rules that hold, in order.
    pub fn paths(&self, facts: Facts) -> impl Iterator<Item = Path> {
        self.0.iter().filter(move |rule| rule.when.iter().all(|when| when.holds(facts))).map(|rule| rule.path)
    }

    /// Bound in bytes: every shorter message takes a ring with a free slot, whatever the other facts are. The
    /// short path relies on it.
    pub(crate) fn short_below(&self) -> usize {
        let first = &self.0[0];
        let below = |when: &Comparison| usize::try_from(when.below().unwrap_or(0)).unwrap_or(usize::MAX);
        let ring = first.path == Path::Ring;
        if ring { first.when.iter().map(below).min().unwrap_or(usize::MAX) } else { 0 }
    }

    /// Length in bytes from which every message moves in place where a rail can, whatever the other facts
    /// are. `None` without such a rule.
    pub(crate) fn in_place_from(&self) -> Option<u64> {
        let mut from = 0;
        for rule in &self.0 {
            if rule.path == Path::Move && rule.when.is_empty() {
                return Some(from);
            }
            // Any of its conditions excludes longer messages.
            from = from.max(rule.when.iter().filter_map(Comparison::below).min()?);
        }
        None
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Rule { when, path }) in self.0.iter().enumerate() {
            let when: Vec<String> = when
                .iter()
                .map(|when| {
                    let sign = SIGNS.iter().find(|(_, sign)| *sign == when.sign).expect("the table names all values").0;
                    format!("{} {sign} {}", VARIABLES[when.variable], when.number)
                })
                .collect();
            let when = if when.is_empty() { "TRUE".to_owned() } else { when.join(" AND ") };
            let name = PATHS.iter().find(|(_, named)| named == path).expect("the table names all values").0;
            write!(f, "{}{when}, {name}", if at > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

impl FromStr for Rules {
    type Err = RulesError;

    fn from_str(text: &str) -> Result<Rules, RulesError> {
        let mut words = Words::of(text);
        let mut rules = Vec::new();
        let mut last;
        loop {
            last = words.place();
            rules.push(rule(&mut words)?);
            if words.is_over() {
                break;
            }
            words.one_of(&[","])?;
            // The slides end each line with a comma.
            if words.is_over() {
                break;
            }
        }
        match rules.last() {
            Some(Rule { when, path: Path::Copy }) if when.is_empty() => Ok(Rules(rules)),
            _ => Err(RulesError::MayFail { line: last.0, column: last.1 }),
        }
    }
}

fn rule(words: &mut Words<'_>) -> Result<Rule, RulesError> {
    let mut when = Vec::new();
    let variables: Vec<&str> = VARIABLES.into_iter().chain(["TRUE"]).collect();
    let signs = SIGNS.map(|(sign, _)| sign);
    loop {
        let variable = words.one_of(&variables)?;
        if variable < VARIABLES.len() {
            when.push(Comparison { variable, sign: SIGNS[words.one_of(&signs)?].1, number: words.number()? });
        }
        if words.one_of(&[",", "AND"])? == 0 {
            break;
        }
    }
    Ok(Rule { when, path: PATHS[words.one_of(&PATHS.map(|(name, _)| name))?].1 })
}

/// Tokens (words, numbers and signs), each with its line and column.
struct Words<'t> {
    rest: std::iter::Peekable<std::vec::IntoIter<(usize, usize, &'t str)>>,
    /// Position behind the last token.
    end: (usize, usize),
}

impl<'t> Words<'t> {
    fn of(text: &'t str) -> Words<'t> {
        let (mut all, mut end) = (Vec::new(), (1, 1));
        let is_word = |next: char| next.is_alphanumeric() || next == '_' || next == '-';
        let is_sign = |next: char| "<>=!".contains(next);
        for (line, text) in (1..).zip(text.lines()) {
            let code = text.split('#').next().unwrap_or_default();
            let mut rest = code.trim_start();
            while let Some(next) = rest.chars().next() {
                let length = if is_word(next) {
                    rest.find(|next| !is_word(next))
                } else if is_sign(next) {
                    rest.find(|next| !is_sign(next))
                } else {
                    Some(next.len_utf8())
                };
                let length = length.unwrap_or(rest.len());
                all.push((line, code[..code.len() - rest.len()].chars().count() + 1, &rest[..length]));
                rest = rest[length..].trim_start();
            }
            end = (line, code.trim_end().chars().count() + 1);
        }
        Words { rest: all.into_iter().peekable(), end }
    }

    fn is_over(&mut self) -> bool {
        self.rest.peek().is_none()
    }

    fn place(&mut self) -> (usize, usize) {
        self.rest.peek().map_or(self.end, |(line, column, _)| (*line, *column))
    }

    /// Consumes the next token, which must be one of `words`, and returns its index.
    fn one_of(&mut self, words: &[&str]) -> Result<usize, RulesError> {
        let next = self.rest.peek().map(|(.., word)| *word);
        match words.iter().position(|word| Some(*word) == next) {
            Some(at) => {
                self.rest.next();
                Ok(at)
            }
            None => Err(self.unexpected(match words.split_last() {
                Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
                _ => words.concat(),
            })),
        }
    }

    fn number(&mut self) -> Result<u64, RulesError> {
        match self.rest.peek().and_then(|(.., word)| word.parse().ok()) {
            Some(number) => {
                self.rest.next();
                Ok(number)
            }
            None => Err(self.unexpected("a number of at most 64 bits".to_owned())),
        }
    }

    fn unexpected(&mut self, expected: String) -> RulesError {
        let (line, column) = self.place();
        let found = self.rest.peek().map_or("the end".to_owned(), |(.., word)| format!("`{word}`"));
        RulesError::Unexpected { line, column, found, expected }
    }
}
