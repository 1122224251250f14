//! Rules that choose algorithms, as text: one rule per line, or separated by commas.
//!
//! ```text
//! # The rest of a line after this sign is a comment.
//! all_reduce bytes<=1024 hosts>=2 = leaders
//! all_reduce hosts>=8 = leaders:rabenseifner    # the algorithm between leaders
//! all_reduce = ring
//! ```

use crate::algorithms::Algorithm;
use crate::plan::{Call, Shape};
use std::fmt;
use std::ops::RangeInclusive;

/// Rules that choose the algorithm of a collective. The first rule applies whose conditions hold.
///
/// # Examples
/// ```
/// // In `transom`: `use transom::collective::Rules;`
/// use transom_collective::Rules;
/// let rules: Rules = "all_reduce bytes<=1024 ranks>=4 = ring, broadcast = binomial # always".parse()?;
/// assert_eq!(rules.to_string(), "all_reduce bytes<=1024 ranks>=4 = ring\nbroadcast = binomial\n");
///
/// let error = "broadcast = ring\nall_reduce byte<=8 = ring".parse::<Rules>().unwrap_err();
/// assert_eq!(error.to_string(), "line 2, column 12: found `byte`, expected bytes, ranks, hosts or =");
/// # Ok::<(), transom_collective::RulesError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    call: &'static str,
    /// Allowed ranges of bytes, ranks and hosts.
    within: [RangeInclusive<usize>; 3],
    algorithm: Algorithm,
}

const CONDITIONS: [&str; 3] = ["bytes", "ranks", "hosts"];
const ANY: RangeInclusive<usize> = 0..=usize::MAX;

/// A syntax error in the text of [`Rules`], with its position.
///
/// # Examples
/// ```
/// let error = "sum = ring".parse::<transom_collective::Rules>().unwrap_err();
/// assert_eq!((error.line, error.column), (1, 1));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: found {found}, expected {expected}")]
#[non_exhaustive]
pub struct RulesError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The token found.
    pub found: String,
    /// The tokens expected.
    pub expected: String,
}

impl Rules {
    /// The algorithms of all rules that apply to a call, in order.
    ///
    /// # Examples
    /// ```
    /// use transom_collective::{Call, Rules, Shape};
    /// let rules: Rules = "all_gather bytes<=80 = bruck".parse()?;
    /// let names = |len| {
    ///     let shape = Shape { rank: 0, ranks: 4, len, element: 8, hosts: None };
    ///     rules.of(Call::AllGather, shape).map(|algorithm| algorithm.name()).collect::<Vec<_>>()
    /// };
    /// assert_eq!((names(10), names(11)), (vec!["bruck"], vec![]));
    /// # Ok::<(), transom_collective::RulesError>(())
    /// ```
    #[inline]
    pub fn of(&self, call: Call, shape: Shape<'_>) -> impl Iterator<Item = Algorithm> {
        let is = [shape.len.saturating_mul(shape.element), shape.ranks, shape.hosts.map_or(1, |hosts| hosts.count())];
        let holds = move |rule: &&Rule| {
            rule.call == call.name() && rule.within.iter().zip(&is).all(|(range, is)| range.contains(is))
        };
        self.0.iter().filter(holds).map(|rule| rule.algorithm)
    }

    /// Returns whether there are no rules.
    ///
    /// # Examples
    /// ```
    /// assert!("# nothing".parse::<transom_collective::Rules>()?.is_empty());
    /// # Ok::<(), transom_collective::RulesError>(())
    /// ```
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Rule { call, within, algorithm } in &self.0 {
            write!(f, "{call}")?;
            for (name, range) in CONDITIONS.iter().zip(within) {
                match (*range.start(), *range.end()) {
                    (least, most) if least == most => write!(f, " {name}={least}")?,
                    (least, most) => {
                        if least > 0 {
                            write!(f, " {name}>={least}")?;
                        }
                        if most < usize::MAX {
                            write!(f, " {name}<={most}")?;
                        }
                    }
                }
            }
            writeln!(f, " = {algorithm}")?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Rules {
    type Err = RulesError;

    fn from_str(text: &str) -> Result<Self, RulesError> {
        let mut tokens = Tokens::of(text);
        let mut rules = Vec::new();
        loop {
            match tokens.peek() {
                None => return Ok(Rules(rules)),
                Some("," | "\n") => drop(tokens.next()),
                Some(_) => rules.push(rule(&mut tokens)?),
            }
        }
    }
}

fn rule(tokens: &mut Tokens<'_>) -> Result<Rule, RulesError> {
    let call = tokens.one_of(&Call::NAMES, "a collective: ")?;
    let mut within = [ANY; 3];
    loop {
        let word = tokens.one_of(&["bytes", "ranks", "hosts", "="], "")?;
        let Some(condition) = CONDITIONS.iter().position(|name| *name == word) else { break };
        let how = tokens.one_of(&["<=", ">=", "="], "")?;
        let number = tokens.number()?;
        let (least, most) = (*within[condition].start(), *within[condition].end());
        within[condition] = match how {
            "<=" => least..=most.min(number),
            ">=" => least.max(number)..=most,
            _ => number..=number,
        };
    }
    let names: Vec<&'static str> = Algorithm::all().map(|algorithm| algorithm.name()).collect();
    let mut name = tokens.one_of(&names, "an algorithm: ")?.to_owned();
    if name == "leaders" && tokens.peek() == Some(":") {
        tokens.next();
        let names: Vec<&'static str> = Algorithm::between_leaders().collect();
        name = format!("leaders:{}", tokens.one_of(&names, "an algorithm of leaders: ")?);
    }
    let algorithm = Algorithm::named(&name).expect("the name is one of the algorithms");
    match tokens.peek() {
        None | Some("," | "\n") => Ok(Rule { call, within, algorithm }),
        Some(_) => Err(tokens.unexpected("the end of the line or a comma".into())),
    }
}

/// Words, numbers, signs and line ends, each with its line and column.
struct Tokens<'t> {
    rest: std::iter::Peekable<std::vec::IntoIter<(usize, usize, &'t str)>>,
    /// Position after the last token.
    end: (usize, usize),
}

impl<'t> Tokens<'t> {
    fn of(text: &'t str) -> Self {
        let mut all = Vec::new();
        let mut end = (1, 1);
        for (line, text) in text.lines().enumerate() {
            let code = text.split('#').next().unwrap_or_default();
            let mut rest = code.trim_start();
            while let Some(next) = rest.chars().next() {
                let len = match next {
                    '<' | '>' if rest[1..].starts_with('=') => 2,
                    _ if is_word(next) => rest.find(|next| !is_word(next)).unwrap_or(rest.len()),
                    _ => next.len_utf8(),
                };
                all.push((line + 1, code[..code.len() - rest.len()].chars().count() + 1, &rest[..len]));
                rest = rest[len..].trim_start();
            }
            end = (line + 1, code.trim_end().chars().count() + 1);
            all.push((end.0, end.1, "\n"));
        }
        Tokens { rest: all.into_iter().peekable(), end }
    }

    fn peek(&mut self) -> Option<&'t str> {
        self.rest.peek().map(|(.., token)| *token)
    }

    fn next(&mut self) -> Option<&'t str> {
        self.rest.next().map(|(.., token)| token)
    }

    fn one_of(&mut self, words: &[&'static str], what: &str) -> Result<&'static str, RulesError> {
        match words.iter().find(|word| Some(**word) == self.peek()) {
            Some(word) => {
                self.next();
                Ok(word)
            }
            None => {
                let (last, others) = words.split_last().expect("at least one word is expected");
                Err(self.unexpected(format!("{what}{} or {last}", others.join(", "))))
            }
        }
    }

    fn number(&mut self) -> Result<usize, RulesError> {
        match self.peek().map(str::parse) {
            Some(Ok(number)) => {
                self.next();
                Ok(number)
            }
            _ => Err(self.unexpected("a whole number".into())),
        }
    }

    /// The error that the next token is not what was expected.
    fn unexpected(&mut self, expected: String) -> RulesError {
        let (line, column, found) = match self.rest.peek() {
            Some((line, column, "\n")) => (*line, *column, "the end of the line".into()),
            Some((line, column, token)) => (*line, *column, format!("`{token}`")),
            None => (self.end.0, self.end.1, "the end".into()),
        };
        RulesError { line, column, found, expected }
    }
}

fn is_word(next: char) -> bool {
    next.is_alphanumeric() || next == '_'
}
