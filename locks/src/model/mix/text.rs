//! The text form of a mix.

use super::Mix;
use crate::model::call::{Call, Group};
use crate::{Mode, Rank};

impl<const C: u32> Mix<C> {
    /// Creates a mix from a text: rows separated by `|`, one for each rank, and words by spaces.
    ///
    /// | word | calls |
    /// |---|---|
    /// | `W`, `R` | acquires the lock of rank 0, exclusively or shared, and releases it |
    /// | `W2` | the same at the lock of rank 2; each rank has a lock |
    /// | `TW`, `TR` | attempts; `T` is short for `TW` |
    /// | `DW`, `DR` | requests with a deadline that may pass at any step |
    /// | `A` | the locks of all ranks, in shared mode |
    /// | `barrier` | passes the barrier of all ranks |
    /// | `post1,2`, `wait` | exposes memory to ranks 1 and 2; waits until both have completed |
    /// | `start0`, `complete` | opens an access to rank 0, once that has posted; ends it |
    /// | `W0+R1+barrier` | what stands after `+` happens while the locks before it are held |
    ///
    /// A row that ends with `*` repeats for ever ([`endless`](Self::endless)). A rank without requests has an empty row.
    ///
    /// # Errors
    /// A description of the first word that is not understood, or of too many ranks for narrow counts.
    ///
    /// # Examples
    /// ```
    /// use transom_locks::model::Mix;
    /// let net = <Mix>::parse("W W | R R1 | TW").unwrap().sim();
    /// assert!(net.explore(100_000).is_ok());
    /// let deadlock = <Mix>::parse("W0+W1 | W1+W0").unwrap().sim().explore(1000).unwrap_err().violation().unwrap();
    /// assert!(deadlock.what.starts_with("deadlock"), "{deadlock}");
    /// assert!(<Mix>::parse("post1 wait barrier | start0 complete barrier").unwrap().sim().explore(1000).is_ok());
    /// let wrong = <Mix>::parse("W | X").unwrap_err();
    /// assert!(wrong.starts_with("X is no request; write W, R, TW, TR, DW, DR, A, barrier"), "{wrong}");
    /// ```
    pub fn parse(text: &str) -> Result<Self, String> {
        let ranks = text.split('|').count();
        Self::check_ranks(ranks)?;
        let row = |row: &str| -> Result<Vec<Call>, String> {
            let words = row.split_whitespace().map(|word| nested(word, ranks));
            Ok(words.collect::<Result<Vec<_>, _>>()?.concat())
        };
        let split =
            |row: &str| row.trim_end().strip_suffix('*').map_or((row.to_string(), false), |row| (row.into(), true));
        let (texts, endless): (Vec<String>, Vec<bool>) = text.split('|').map(split).unzip();
        let rows = texts.iter().map(|text| row(text)).collect::<Result<Vec<_>, _>>()?;
        for rank in (0..ranks).filter(|&rank| endless[rank]) {
            if rows[rank].is_empty() {
                return Err(format!("row {rank} repeats no request; write a request before *"));
            }
            if let Some(call) = rows[rank].iter().find(|call| !call.is_on_locks()) {
                return Err(format!(
                    "row {rank} repeats {call} for ever, which makes endless states, since its counts grow; repeat \
                     requests of locks only"
                ));
            }
        }
        if rows.iter().all(Vec::is_empty) {
            return Err("the mix has no requests; write rows such as W | R".into());
        }
        Ok(Mix { rows, endless })
    }
}

/// The calls of a word with requests that are nested by `+`.
fn nested(word: &str, ranks: usize) -> Result<Vec<Call>, String> {
    let requests = word.split('+').map(|word| request(word, ranks)).collect::<Result<Vec<_>, _>>()?;
    let nests = |calls: &Vec<Call>| matches!(calls[..], [Call::Acquire(..), _]) || !calls[0].is_on_locks();
    if requests.len() > 1 && !requests.iter().all(nests) {
        return Err(format!(
            "{word} nests an attempt, a request with a deadline or A; only W, R and calls without a lock nest"
        ));
    }
    let first = requests.iter().map(|calls| calls[0]);
    Ok(first.chain(requests.iter().rev().flat_map(|calls| calls[1..].to_vec())).collect())
}

/// The calls of one request. The first is not nested in it, the others follow what is nested.
fn request(word: &str, ranks: usize) -> Result<Vec<Call>, String> {
    let (name, numbers) = word.split_at(word.find(|letter: char| letter.is_ascii_digit()).unwrap_or(word.len()));
    let mut named: Vec<Rank> = Vec::new();
    for number in numbers.split_terminator(',') {
        let rank = number.parse::<Rank>().ok().filter(|&rank| rank < ranks);
        let rank = rank.ok_or(format!("{word} names a rank that does not exist; there are {ranks} rows"))?;
        if named.contains(&rank) {
            return Err(format!("{word} names rank {rank} twice"));
        }
        named.push(rank);
    }
    let target = named.first().copied().unwrap_or(0);
    let timed = |mode| vec![Call::AcquireUntil(target, mode), Call::ReleaseHeld(target), Call::Settle(target)];
    let group = || match named.iter().find(|&&rank| rank >= Group::RANKS) {
        Some(rank) => Err(format!("{word} names rank {rank}; epochs of a mix name ranks below {}", Group::RANKS)),
        None => Ok(Group::of(&named)),
    };
    // The calls, and the most and fewest ranks that the word names.
    let (calls, least, most) = match name {
        "W" => (Call::both(target, Mode::Exclusive).into(), 0, 1),
        "R" => (Call::both(target, Mode::Shared).into(), 0, 1),
        "T" | "TW" => (Call::attempt(target, Mode::Exclusive).into(), 0, 1),
        "TR" => (Call::attempt(target, Mode::Shared).into(), 0, 1),
        "DW" => (timed(Mode::Exclusive), 0, 1),
        "DR" => (timed(Mode::Shared), 0, 1),
        "A" => (vec![Call::AcquireAll, Call::ReleaseAll], 0, 0),
        "barrier" => (vec![Call::Barrier], 0, 0),
        "post" => (vec![Call::Post(group()?)], 1, ranks),
        "start" => (vec![Call::Start(group()?)], 1, ranks),
        "complete" => (vec![Call::Complete], 0, 0),
        "wait" => (vec![Call::Wait], 0, 0),
        _ => {
            let known = "W, R, TW, TR, DW, DR, A, barrier, post, start, complete or wait";
            return Err(format!("{word} is no request; write {known}"));
        }
    };
    match named.len() {
        count if count < least => Err(format!("{word} names no rank; write {name}0 or {name}0,1")),
        count if count > most => Err(format!("{word} names {count} ranks; {name} takes at most {most}")),
        _ => Ok(calls),
    }
}
