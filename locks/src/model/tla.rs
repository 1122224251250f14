//! The steps of a mix as a TLA+ module, which TLC checks without this crate's explorer.

use super::call::Call;
use super::event::Action;
use super::explore::{Search, Stopped};
use super::fingerprint::fingerprint;
use super::mix::Mix;
use super::program::Program;
use super::sim::{Delivery, Sim};
use super::state::SimState;
use crate::{At, Mode, Rank};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::{self, Write};

/// The states of ranks, words and values by number.
#[derive(Default)]
struct Table {
    /// Per rank: the numbers of its control states.
    controls: Vec<HashMap<u128, usize>>,
    words: BTreeMap<(Rank, usize), usize>,
    values: HashMap<u64, usize>,
    /// Per rank: its steps, each a line of TLA+, by the control state from which they go.
    steps: Vec<BTreeMap<usize, BTreeSet<String>>>,
    /// Per rank: the control states in which it has ended.
    ended: Vec<BTreeSet<usize>>,
    /// The words by name, and the values that they held.
    names: BTreeSet<String>,
}

impl Table {
    /// The control state of a rank: its phase, and the results of its verbs.
    fn control<L: std::hash::Hash>(&mut self, state: &SimState<L>, rank: Rank) -> usize {
        let me = &state.ranks[rank];
        let (print, _) = fingerprint(&(me.phase, &me.local, &me.record, me.done));
        let next = self.controls[rank].len();
        let control = *self.controls[rank].entry(print).or_insert(next);
        if me.done {
            self.ended[rank].insert(control);
        }
        control
    }

    fn word(&mut self, at: At) -> usize {
        let next = self.words.len();
        *self.words.entry((at.rank, at.word)).or_insert(next)
    }

    fn value(&mut self, value: u64) -> usize {
        let next = self.values.len() + 1;
        if value == 0 { 0 } else { *self.values.entry(value).or_insert(next) }
    }
}

impl<const C: u32> Sim<Mix<C>> {
    /// Exports the mix as a TLA+ module named `module`, and a configuration for TLC. The module has each rank's control
    /// states and verbs as the shipped code executes them, the words as variables, and the queue of each lock. TLC
    /// explores them by itself and checks exclusion, first come, first served, and that every rank ends under weak
    /// fairness. Verbs take effect at once. Visits at most `most` states.
    ///
    /// # Errors
    /// A call that the export has no form for, a violation, or a bound that was exceeded.
    ///
    /// # Examples
    /// ```
    /// use transom_locks::model::Mix;
    /// let (module, config) = <Mix>::parse("W | R").unwrap().sim().tla("writer", 1000).unwrap();
    /// assert!(module.starts_with("---- MODULE writer ----"));
    /// assert!(config.contains("INVARIANTS Exclusion FirstComeFirstServed"));
    /// let refused = <Mix>::parse("DW | R").unwrap().sim().tla("late", 1000).unwrap_err();
    /// assert_eq!(refused.to_string(), "TLA+: rank 0 makes a request with a deadline; the export has none");
    /// ```
    pub fn tla(self, module: &str, most: usize) -> Result<(String, String), NotExported> {
        let net = self.with_delivery(Delivery::Immediate);
        let start = net.start().map_err(Stopped::from)?;
        let ranks = start.ranks.len();
        for rank in 0..ranks {
            let has = |wanted: fn(&Call) -> bool| {
                (0..net.program().phases(rank))
                    .filter_map(|phase| net.program().call(rank, phase))
                    .any(|call| wanted(&call))
            };
            let unsupported = [
                (
                    has(|call| matches!(call, Call::AcquireUntil(..))),
                    "makes a request with a deadline; the export has none",
                ),
                (has(|call| !call.is_on_locks()), "calls a barrier or opens an epoch; the export has locks only"),
                (net.program().repeats(rank), "repeats its row for ever; the export has rows that end"),
            ];
            if let Some((_, why)) = unsupported.iter().find(|(is_met, _)| *is_met) {
                return Err(NotExported::Unsupported(format!("rank {rank} {why}")));
            }
        }
        let mut table = Table {
            controls: vec![HashMap::new(); ranks],
            steps: vec![BTreeMap::new(); ranks],
            ended: vec![BTreeSet::new(); ranks],
            ..Table::default()
        };
        for rank in 0..ranks {
            table.control(&start, rank);
        }
        let search = Search { max_states: most, symmetry: false, ..Search::default() };
        net.explore_with(&search, (), |(), step| {
            let (rank, event) = (step.event.rank, step.event);
            let at = event.action.map(Action::at).ok_or("a step without a verb")?;
            let (from, to) = (table.control(step.before, rank), table.control(step.after, rank));
            let (word, found, left) = (table.word(at), table.value(event.found), table.value(event.left));
            for value in [event.found, event.left] {
                let shown = net.program().show(at, value);
                let number = table.value(value);
                table.names.insert(format!("word {word:>3}, {}: {number:>3} is {shown}", net.program().name(at)));
            }
            let place = |state: &SimState<_>, target| state.oracle().and_then(|oracle| oracle.place_of(rank, target));
            let events = (0..ranks).filter_map(|target| {
                let (kind, mode) = match (place(step.before, target), place(step.after, target)) {
                    (None, Some((mode, true))) => ("hold", mode),
                    (None, Some((mode, false))) => ("place", mode),
                    (Some((_, false)), Some((mode, true))) => ("enter", mode),
                    (Some((mode, _)), None) => ("leave", mode),
                    _ => return None,
                };
                let mode = if mode == Mode::Exclusive { "W" } else { "R" };
                Some(format!("<<\"{kind}\", {target}, \"{mode}\">>"))
            });
            let events: Vec<String> = events.collect();
            let line = format!("<<{word}, {found}, {left}, {to}, {{{}}}>>", events.join(", "));
            table.steps[rank].entry(from).or_default().insert(line);
            Ok(())
        })?;
        Ok((text(module, &table), CONFIG.into()))
    }
}

/// The reason why a mix was not exported to TLA+.
///
/// # Examples
/// ```
/// use transom_locks::model::{Mix, NotExported};
/// let refused = <Mix>::parse("barrier | barrier").unwrap().sim().tla("mix", 1000).unwrap_err();
/// assert!(matches!(refused, NotExported::Unsupported(_)), "{refused}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotExported {
    /// A call or a row that the export has no form for.
    Unsupported(String),
    /// A violation, or a bound that was exceeded, before every state was visited.
    Stopped(Stopped),
}

impl From<Stopped> for NotExported {
    fn from(stopped: Stopped) -> Self {
        NotExported::Stopped(stopped)
    }
}

impl fmt::Display for NotExported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotExported::Unsupported(what) => write!(f, "TLA+: {what}"),
            NotExported::Stopped(stopped) => stopped.fmt(f),
        }
    }
}

impl std::error::Error for NotExported {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            NotExported::Unsupported(_) => None,
            NotExported::Stopped(stopped) => Some(stopped),
        }
    }
}

const CONFIG: &str = "SPECIFICATION Spec\nINVARIANTS Exclusion FirstComeFirstServed\nPROPERTY AllEnd\n";

/// The module.
fn text(module: &str, table: &Table) -> String {
    let ranks = table.steps.len();
    let mut out = format!("---- MODULE {module} ----\n{HEAD}\n");
    for name in &table.names {
        _ = writeln!(out, "\\* {name}");
    }
    _ = writeln!(
        out,
        "EXTENDS Naturals, Sequences\n\nRanks == 0..{}\nWords == 0..{}\n",
        ranks - 1,
        table.words.len().max(1) - 1
    );
    out += "Steps == <<\n";
    for (rank, steps) in table.steps.iter().enumerate() {
        out += "  <<\n";
        let controls = table.controls[rank].len();
        for control in 0..controls {
            let lines: Vec<&str> = steps.get(&control).into_iter().flatten().map(String::as_str).collect();
            let comma = if control + 1 < controls { "," } else { "" };
            _ = writeln!(out, "    {{{}}}{comma} \\* rank {rank}, control {control}", lines.join(",\n     "));
        }
        out += if rank + 1 < ranks { "  >>,\n" } else { "  >>\n" };
    }
    let ended =
        |ended: &BTreeSet<usize>| format!("{{{}}}", ended.iter().map(usize::to_string).collect::<Vec<_>>().join(", "));
    let ended: Vec<String> = table.ended.iter().map(ended).collect();
    _ = writeln!(out, ">>\n\nEnded == <<{}>>\n{TAIL}", ended.join(", "));
    out
}

const HEAD: &str =
    "\\* Exported by `transom verify --tla` from the lock as it ships: the control states and verbs of each rank.
\\* Steps[rank + 1][control + 1]: <<word, value found, value left, next control, what happens to the queues>>.
\\* A step is possible if its word holds the value found. Values are numbered:";

const TAIL: &str = r#"
VARIABLES control, memory, queue
vars == <<control, memory, queue>>

Init == /\ control = [r \in Ranks |-> 0]
        /\ memory = [w \in Words |-> 0]
        /\ queue = [t \in Ranks |-> <<>>]

\* The queue of one lock after a step of rank r: it takes a place, enters, does both (hold), or leaves.
After(r, q, events) ==
  IF events = {} THEN q ELSE
  LET e == CHOOSE e \in events : TRUE IN
  CASE e[1] = "place" -> Append(q, [rank |-> r, mode |-> e[3], inside |-> FALSE])
    [] e[1] = "hold" -> Append(q, [rank |-> r, mode |-> e[3], inside |-> TRUE])
    [] e[1] = "enter" -> [i \in 1..Len(q) |-> IF q[i].rank = r THEN [q[i] EXCEPT !.inside = TRUE] ELSE q[i]]
    [] e[1] = "leave" -> SelectSeq(q, LAMBDA entry : entry.rank # r)

Step(r) == \E s \in Steps[r + 1][control[r] + 1] :
  /\ memory[s[1]] = s[2]
  /\ memory' = [memory EXCEPT ![s[1]] = s[3]]
  /\ control' = [control EXCEPT ![r] = s[4]]
  /\ queue' = [t \in Ranks |-> After(r, queue[t], {e \in s[5] : e[2] = t})]

Finished == \A r \in Ranks : control[r] \in Ended[r + 1]
Next == (\E r \in Ranks : Step(r)) \/ (Finished /\ UNCHANGED vars)
Spec == Init /\ [][Next]_vars /\ \A r \in Ranks : WF_vars(Step(r))

Share(one, other) == one.mode = "R" /\ other.mode = "R"
Exclusion == \A t \in Ranks : \A i, j \in DOMAIN queue[t] :
  (i # j /\ queue[t][i].inside /\ queue[t][j].inside) => Share(queue[t][i], queue[t][j])
FirstComeFirstServed == \A t \in Ranks : \A i, j \in DOMAIN queue[t] :
  (i < j /\ queue[t][j].inside) => Share(queue[t][i], queue[t][j])
AllEnd == <>Finished
====
"#;
