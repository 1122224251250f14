//! Which path a message takes: the first rule whose condition holds and whose path exists to its peer now. In the syntax of the
//! slides of MVAPICH-Aptus (Koop, Jones, Panda 2008):
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

/// By what a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Path {
    /// By the ring that the peer has for this rank: there is one, with a free slot that takes it.
    Ring,
    /// By a queue of a reliable lane, or of memory that is shared; in several packets if it is longer than one.
    Queue,
    /// By datagrams; in several if it is longer than one.
    Datagram,
    /// Announced, and written or read in place.
    Move,
    /// Announced, and sent by datagrams into its place; without checksums, where adapters have it.
    DatagramMove,
    /// Announced, and copied in packets by the three first. It always exists.
    Copy,
}

/// By their names in a table.
const PATHS: [(&str, Path); 6] = [
    ("RC-FP", Path::Ring),
    ("RC-SR", Path::Queue),
    ("UD-SR", Path::Datagram),
    ("RC-RDMA", Path::Move),
    ("UD-ZCopy", Path::DatagramMove),
    ("Copy-Based", Path::Copy),
];

/// What conditions are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// The message's bytes.
    pub size: u64,
    /// Peers that this rank has talked with: near ones, if it is one of them that is to be sent to, else the others.
    pub peers: u64,
    /// Messages that wait to be sent to this peer, this one included; of one that was announced to this rank, those to its sender, 1 at
    /// least.
    pub queued: u64,
}

const VARIABLES: [&str; 3] = ["MSG_SIZE", "PEERS", "QUEUED"];
/// The variable that a ring's rule may have for the short path.
const SIZE: usize = 0;

/// What a value may be beside a number, by bits: a rule is looked at for each packet.
const LESS: u8 = 1;
const EQUAL: u8 = 2;
const MORE: u8 = 4;

const SIGNS: [(&str, u8); 6] =
    [("<=", LESS | EQUAL), ("<", LESS), (">=", MORE | EQUAL), (">", MORE), ("==", EQUAL), ("!=", LESS | MORE)];

/// One comparison: the variable by its place in the table above.
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

    /// It holds for sizes below that, and no others; none if it is of another kind.
    fn below(&self) -> Option<u64> {
        const UP_TO: u8 = LESS | EQUAL;
        match (self.variable, self.sign) {
            (SIZE, UP_TO) => Some(self.number.saturating_add(1)),
            (SIZE, LESS) => Some(self.number),
            _ => None,
        }
    }
}

/// All its comparisons must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    when: Vec<Comparison>,
    path: Path,
}

/// A table of rules, of which the last always has a path.
///
/// ```
/// use transom_channel::rules::{Facts, Path, Rules};
/// let rules: Rules = "MSG_SIZE <= 100, RC-FP, TRUE, Copy-Based".parse()?;
/// let of = |size| rules.paths(Facts { size, peers: 1, queued: 1 }).collect::<Vec<_>>();
/// assert_eq!((of(100), of(101)), (vec![Path::Ring, Path::Copy], vec![Path::Copy]));
/// let error = "MSG_SIZE <= 100, RC-PF".parse::<Rules>().unwrap_err();
/// assert!(error.to_string().starts_with("line 1, column 18: `RC-PF` is not expected here, but RC-FP, RC-SR,"));
/// # Ok::<(), transom_channel::rules::RulesError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

/// What is wrong with the text of [`Rules`], and where. Lines, and the characters of a line, are counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RulesError {
    /// Something stands where something else must.
    #[error("line {line}, column {column}: {found} is not expected here, but {expected}")]
    Unexpected {
        /// Where.
        line: usize,
        /// Where in it.
        column: usize,
        /// What is there.
        found: String,
        /// What could be.
        expected: String,
    },
    /// There may be a message for which no rule has a path.
    #[error(
        "line {line}, column {column}: the last rule may have no path: let it be `TRUE, Copy-Based`, which always has one"
    )]
    MayFail {
        /// Where the last rule begins.
        line: usize,
        /// Where in it.
        column: usize,
    },
}

impl Rules {
    /// What is done where nobody has chosen a table: up to `eager` bytes at once, by whatever there is; from `zero_copy_from` bytes on in
    /// place.
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

    /// The paths of the rules that hold, in order.
    pub fn paths(&self, facts: Facts) -> impl Iterator<Item = Path> {
        self.0.iter().filter(move |rule| rule.when.iter().all(|when| when.holds(facts))).map(|rule| rule.path)
    }

    /// What is shorter goes by a ring wherever there is one with a free slot, whatever else holds: so much the short path may take for
    /// granted.
    pub(crate) fn short_below(&self) -> usize {
        let first = &self.0[0];
        let below = |when: &Comparison| usize::try_from(when.below().unwrap_or(0)).unwrap_or(usize::MAX);
        let ring = first.path == Path::Ring;
        if ring { first.when.iter().map(below).min().unwrap_or(usize::MAX) } else { 0 }
    }

    /// What is as long as that goes in place wherever a rail can do that, whatever else holds; nothing, if there is no such rule.
    pub(crate) fn in_place_from(&self) -> Option<u64> {
        let mut from = 0;
        for rule in &self.0 {
            if rule.path == Path::Move && rule.when.is_empty() {
                return Some(from);
            }
            // Any of its conditions keeps what is longer from it.
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
                    let sign = SIGNS.iter().find(|(_, sign)| *sign == when.sign).expect("all are named").0;
                    format!("{} {sign} {}", VARIABLES[when.variable], when.number)
                })
                .collect();
            let when = if when.is_empty() { "TRUE".to_owned() } else { when.join(" AND ") };
            let name = PATHS.iter().find(|(_, named)| named == path).expect("all are named").0;
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
            // The slides end each line with one.
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

/// Words, numbers and signs, each with its line and column.
struct Words<'t> {
    rest: std::iter::Peekable<std::vec::IntoIter<(usize, usize, &'t str)>>,
    /// Behind the last.
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

    /// Which of these comes.
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
