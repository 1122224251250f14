//! Hosts of the batch job in which this process runs, from the variables and files of Slurm, PBS, LSF and Grid Engine.

use super::hostfile::{HostSourceError, lines, text_of};
use super::{HostList, checked_name};
use std::path::Path;
use transom_locks::LockWord;

/// Most hosts of a list: each has a rank at least.
const MOST: usize = LockWord::<16>::MAX_RANKS;

impl HostList {
    /// The hosts that a batch system gave to the job in which this process runs, and the variable that names them.
    /// `None` outside such a job.
    ///
    /// | system | variables |
    /// |---|---|
    /// | Slurm | `SLURM_JOB_NODELIST`, with the places in `SLURM_TASKS_PER_NODE` |
    /// | PBS, Torque | `PBS_NODEFILE` |
    /// | LSF | `LSB_DJOB_HOSTFILE`, else `LSB_HOSTS` |
    /// | Grid Engine | `PE_HOSTFILE` |
    ///
    /// # Errors
    /// [`HostSourceError`] if a variable or its file is malformed.
    ///
    /// # Examples
    /// ```
    /// if let Some((variable, hosts)) = transom::HostList::from_batch_system()? {
    ///     println!("{variable}: {} hosts", hosts.names().count());
    /// }
    /// # Ok::<(), transom::HostSourceError>(())
    /// ```
    pub fn from_batch_system() -> Result<Option<(&'static str, Self)>, HostSourceError> {
        Self::from_variables(|name| {
            let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
            Some(value.into_string().map_err(|_| HostSourceError::new(name, "the value is not UTF-8")))
        })
    }

    /// The nodes of the Slurm job in which this process runs; none outside of a job, and for a malformed list.
    pub(in crate::launcher) fn nodes_of_slurm() -> Vec<String> {
        std::env::var("SLURM_JOB_NODELIST").ok().and_then(|text| expand(&text).ok()).unwrap_or_default()
    }

    fn from_variables(
        value: impl Fn(&'static str) -> Option<Result<String, HostSourceError>>,
    ) -> Result<Option<(&'static str, Self)>, HostSourceError> {
        type Parse = fn(&str) -> Result<Vec<Entry>, String>;
        let systems: [(&str, Parse); 5] = [
            ("SLURM_JOB_NODELIST", |text| Ok(expand(text)?.into_iter().map(|name| (name, None)).collect())),
            ("PBS_NODEFILE", |file| lines(&text_of(Path::new(file))?).map(|(_, line)| one(line)).collect()),
            ("LSB_DJOB_HOSTFILE", |file| lines(&text_of(Path::new(file))?).map(|(_, line)| one(line)).collect()),
            ("LSB_HOSTS", |text| text.split_ascii_whitespace().map(one).collect()),
            ("PE_HOSTFILE", |file| lines(&text_of(Path::new(file))?).map(|(_, line)| of_grid_engine(line)).collect()),
        ];
        for (name, parse) in systems {
            let Some(text) = value(name).transpose()? else { continue };
            let wrong = |why: String| {
                let remedy = "--hosts or --hostfile gives other hosts, `--hosts none` starts all ranks here";
                HostSourceError::new(name, format!("{why} ({remedy})"))
            };
            let mut entries = parse(&text).map_err(wrong)?;
            if let ("SLURM_JOB_NODELIST", Some(tasks)) = (name, value("SLURM_TASKS_PER_NODE").transpose()?) {
                let tasks = tasks_per_node(&tasks, entries.len()).map_err(wrong)?;
                entries.iter_mut().zip(tasks).for_each(|(entry, tasks)| entry.1 = Some(tasks));
            }
            let hosts =
                Self::collect(entries.into_iter().map(Ok))?.ok_or_else(|| wrong("it names no host".to_owned()))?;
            return Ok(Some((name, hosts)));
        }
        Ok(None)
    }
}

/// A host, and its number of places.
type Entry = (String, Option<usize>);

fn one(word: &str) -> Result<Entry, String> {
    Ok((checked_name(word)?, None))
}

/// Parses a line of Grid Engine: `HOST SLOTS QUEUE PROCESSORS`.
fn of_grid_engine(line: &str) -> Result<Entry, String> {
    let mut words = line.split_ascii_whitespace();
    let name = checked_name(words.next().unwrap_or_default())?;
    let places = words.next().and_then(|word| word.parse().ok()).filter(|places| *places > 0);
    match places {
        Some(places) => Ok((name, Some(places))),
        None => Err(format!("{line:?}: expected a host and a number of slots above 0")),
    }
}

/// Expands Slurm's `n[01-03,7],x`.
fn expand(text: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let mut depth = 0;
        let end = rest.find(|c| {
            depth += i32::from(c == '[') - i32::from(c == ']');
            c == ',' && depth == 0
        });
        let (term, after) = rest.split_at(end.unwrap_or(rest.len()));
        rest = after.strip_prefix(',').unwrap_or(after);
        for name in expand_term(term.trim())? {
            names.push(checked_name(&name)?);
        }
        if names.len() > MOST {
            return Err(too_many(text));
        }
    }
    Ok(names)
}

/// Expands a term such as `rack[1-2]n[01-16]`.
fn expand_term(term: &str) -> Result<Vec<String>, String> {
    let mut names = vec![String::new()];
    let mut rest = term;
    while let Some((literal, bracketed)) = rest.split_once('[') {
        let (group, after) = bracketed.split_once(']').ok_or_else(|| format!("{term:?} lacks a `]`"))?;
        let mut numbers = Vec::new();
        for range in group.split(',') {
            numbers.extend(expand_range(range.trim()).map_err(|why| format!("{term:?}: {why}"))?);
            if numbers.len() > MOST {
                return Err(too_many(term));
            }
        }
        if names.len().saturating_mul(numbers.len()) > MOST {
            return Err(too_many(term));
        }
        let names_of =
            |name: &String| numbers.iter().map(|number| format!("{name}{literal}{number}")).collect::<Vec<_>>();
        names = names.iter().flat_map(names_of).collect();
        rest = after;
    }
    names.iter_mut().for_each(|name| name.push_str(rest));
    Ok(names)
}

/// Expands `7` or `01-03`; numbers keep the width of the first.
fn expand_range(range: &str) -> Result<Vec<String>, String> {
    let wrong = || format!("{range:?} is no range; expected e.g. 7 or 01-03");
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let number = |text: &str| text.parse::<u64>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    let (low, high) = (number(first).ok_or_else(wrong)?, number(last).ok_or_else(wrong)?);
    match high.checked_sub(low) {
        Some(more) if more < MOST as u64 && first.len() <= 64 => {
            Ok((low..=high).map(|number| format!("{number:0width$}", width = first.len())).collect())
        }
        Some(_) => Err(too_many(range)),
        None => Err(wrong()),
    }
}

fn too_many(text: &str) -> String {
    let shown: String = text.chars().take(100).collect();
    format!("{shown:?} names more than {MOST} hosts, the largest number of ranks")
}

/// Expands Slurm's `2(x3),1` for this many hosts.
fn tasks_per_node(text: &str, hosts: usize) -> Result<Vec<usize>, String> {
    let shown: String = text.chars().take(100).collect();
    let wrong = |why: &str| format!("SLURM_TASKS_PER_NODE={shown:?}: {why}");
    let mut all = Vec::new();
    for part in text.trim().split(',') {
        let (tasks, times) = match part.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')').unwrap_or_default()),
            None => (part, "1"),
        };
        let number = |text: &str| text.parse::<usize>().ok().filter(|number| *number > 0);
        let (Some(tasks), Some(times)) = (number(tasks), number(times)) else {
            return Err(wrong("expected numbers of tasks, e.g. 2(x3),1"));
        };
        if times > hosts - all.len() {
            return Err(wrong(&format!("it has more numbers than there are hosts, {hosts}")));
        }
        all.extend(std::iter::repeat_n(tasks, times));
    }
    if all.len() < hosts {
        return Err(wrong(&format!("it has {} numbers for {hosts} hosts", all.len())));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(variables: &[(&str, &str)]) -> Result<Option<(&'static str, HostList)>, HostSourceError> {
        HostList::from_variables(|name| {
            let found = variables.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| Ok((*value).to_owned()))
        })
    }

    #[test]
    fn slurm_lists_are_expanded() {
        for (nodes, tasks, hosts) in [
            ("n1", "4", "n1:4"),
            ("n[01-03,7],x", "2(x3),1,5", "n01:2,n02:2,n03:2,n7:1,x:5"),
            ("n[9-11]", "1(x3)", "n9:1,n10:1,n11:1"),
            ("r[1-2]n[08-09]", "1,2(x3)", "r1n08:1,r1n09:2,r2n08:2,r2n09:2"),
            ("a[1-2]-ib,b[3]", "3(x3)", "a1-ib:3,a2-ib:3,b3:3"),
        ] {
            let found = list(&[("SLURM_JOB_NODELIST", nodes), ("SLURM_TASKS_PER_NODE", tasks)]).unwrap().unwrap();
            assert_eq!(found, ("SLURM_JOB_NODELIST", hosts.parse().unwrap()), "{nodes}");
        }
        let (_, even) = list(&[("SLURM_JOB_NODELIST", "n[1-2]")]).unwrap().unwrap();
        assert_eq!(even, "n1,n2".parse().unwrap());
        assert_eq!(list(&[]), Ok(None));
    }

    #[test]
    fn malformed_slurm_lists_are_refused() {
        for (nodes, why) in [
            ("n[1-2", "\"n[1-2\" lacks a `]`"),
            ("n[2-1]", "\"2-1\" is no range"),
            ("n[]", "\"\" is no range"),
            ("n[a-b]", "\"a-b\" is no range"),
            ("n[+1-2]", "\"+1-2\" is no range"),
            ("n[1-99999999]", "more than 32767 hosts"),
            ("n[1-18446744073709551615]", "more than 32767 hosts"),
            ("n[1-30000],m[1-30000]", "more than 32767 hosts"),
            ("n[1-200][1-200]", "more than 32767 hosts"),
            ("n[1-30000,1-30000,x]", "more than 32767 hosts"),
            ("n[1-2]]", "\"n1]\""),
            ("-oProxyCommand=x", "\"-oProxyCommand=x\""),
            ("a;b", "\"a;b\""),
            (",", "the name of a host is missing"),
        ] {
            let error = list(&[("SLURM_JOB_NODELIST", nodes)]).unwrap_err().to_string();
            assert!(error.starts_with("SLURM_JOB_NODELIST: ") && error.contains(why), "{nodes}: {error}");
        }
        for (tasks, why) in [
            ("2", "it has 1 numbers for 2 hosts"),
            ("2(x3)", "it has more numbers than there are hosts, 2"),
            ("2(x99999999999)", "it has more numbers than there are hosts, 2"),
            ("0(x2)", "expected numbers of tasks"),
            ("2(x2", "expected numbers of tasks"),
            ("", "expected numbers of tasks"),
        ] {
            let error = list(&[("SLURM_JOB_NODELIST", "n[1-2]"), ("SLURM_TASKS_PER_NODE", tasks)]).unwrap_err();
            assert!(error.to_string().contains(why), "{tasks}: {error}");
        }
    }
}
