//! `transom bench tune`: which algorithm of each collective is the fastest here, as rules for `TRANSOM_COLLECTIVES`.

use super::cores;
use super::files::Output;
use super::machine::warn_of_circumstances;
use super::text::{Table, number, parse_size, print, size};
use clap::Args;
use std::error::Error;
use std::fmt::Write as _;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use transom::{Op, Tag, World, variables};
use transom_collective::{Algorithm, Call, Hosts, Rules, Shape, by_hosts};

/// Measures every algorithm of every collective by size, and prints rules that choose the fastest.
///
/// As ranks of a job that a launcher starts, of whichever hosts, it measures there; by itself it starts ranks on this machine. The
/// rules hold for as many ranks and hosts as it was measured with; those of several runs may be put into one file.
#[derive(Args)]
#[command(after_help = AFTER)]
pub struct Tune {
    /// Which collectives, e.g. all_reduce [default: all]
    #[arg(value_name = "COLLECTIVE", value_parser = collective)]
    collectives: Vec<&'static str>,
    /// With how many ranks, if no launcher starts them
    #[arg(short = 'n', long, value_name = "RANKS", default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=1024))]
    ranks: u16,
    /// Of how many bytes of a rank, or of each block [default: 8 and four times as many, up to 2 MiB]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_size)]
    sizes: Vec<usize>,
    /// How long each is measured at a time, in milliseconds, three times
    #[arg(long, value_name = "MS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    millis: u64,
    /// Where the rules are written, at rank 0, if not to stdout
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,
}

const AFTER: &str = "\
Examples:
  transom bench tune -n 4 -o four.rules           on this machine
  TRANSOM_COLLECTIVES=four.rules transom run -n 4 ./program
  transom run --hosts a,b -n 16 transom bench tune all_reduce broadcast -o two-hosts.rules
  srun -n 64 transom bench tune > cluster.rules

The file is to be on all hosts: ranks that have different rules are told so in their first collective.
docs/COLLECTIVES.md says what rules are.";

/// Makes a call once.
type Make = fn(&World, &mut Buffers) -> Result<(), transom::messages::Error>;

/// Of blocking calls; a barrier has one algorithm.
const COLLECTIVES: [(Call, Make); 9] = [
    (Call::Broadcast { root: 0 }, |t, b| t.broadcast(0, &mut b.mine)),
    (Call::Reduce { root: 0, commutes: true }, |t, b| t.reduce(0, &mut b.mine, Op::Max)),
    (Call::AllReduce { commutes: true }, |t, b| t.all_reduce(&mut b.mine, Op::Max)),
    (Call::ReduceScatter, |t, b| t.reduce_scatter(&b.all, &mut b.mine, Op::Max)),
    (Call::Scan { exclusive: false }, |t, b| t.scan(&mut b.mine, Op::Max)),
    (Call::Gather { root: 0 }, |t, b| t.gather_into(0, &b.mine, &mut b.all)),
    (Call::Scatter { root: 0 }, |t, b| t.scatter(0, &b.all, &mut b.mine)),
    (Call::AllGather, |t, b| t.all_gather_into(&b.mine, &mut b.all)),
    (Call::AllToAll, |t, b| t.all_to_all(&b.all, &mut b.other)),
];

fn collective(name: &str) -> Result<&'static str, String> {
    let names: Vec<_> = COLLECTIVES.iter().map(|(call, _)| call.name()).collect();
    let known = names.iter().find(|known| **known == name);
    known.copied().ok_or_else(|| format!("there are {}", names.join(", ")))
}

/// What collectives are made on.
struct Buffers {
    mine: Vec<u64>,
    all: Vec<u64>,
    other: Vec<u64>,
}

/// A rank leaves an algorithm only for one that is so much faster: figures are not so exact.
const WORTH: f64 = 0.95;

impl Tune {
    pub fn execute(self) -> Result<ExitCode, Box<dyn Error>> {
        if matches!(variables::TAG.get(), Ok(Some(Tag::All))) {
            // Rules are no rules with a tag before each line; of what starts the ranks only the environment can be chosen.
            let mut again = Command::new(std::env::current_exe()?);
            let args = std::env::args_os().skip(1);
            return Err(again.args(args).env("TRANSOM_TAG", Tag::Stderr.to_string()).exec().into());
        }
        let world = transom::start(self.ranks.into())?;
        if world.rank() == 0 {
            warn_of_circumstances();
        }
        // As `transom bench` has them; where a launcher has bound ranks each finds one core.
        let choice = cores::choice();
        if let Some(core) = choice.get(world.rank()).filter(|_| choice.len() >= world.size()) {
            cores::bind(*core);
        }
        // Before it takes time.
        let output = self.output.as_deref().filter(|_| world.rank() == 0).map(Output::at).transpose()?;
        let mut text = String::new();
        let measured = self.measure(&world, &mut text).and_then(|()| Ok(world.barrier()?));
        if let Err(why) = &measured {
            if text.is_empty() {
                return measured.map(|()| ExitCode::SUCCESS);
            }
            // Of those that were measured before.
            write!(text, "\n# It failed before all was measured: {}\n", why.to_string().replace('\n', " "))?;
        }
        if world.rank() == 0 {
            // As it will be read.
            text.parse::<Rules>()?;
            match output {
                Some(output) => output.write(text.as_bytes())?,
                None => print(&text)?,
            }
        }
        measured.map(|()| ExitCode::SUCCESS)
    }

    /// Writes rules for one collective after the other.
    fn measure(&self, world: &World, text: &mut String) -> Result<(), Box<dyn Error>> {
        let (hosts, ranks) = (world.hosts(), world.size());
        let between = Algorithm::all().filter_map(|algorithm| Algorithm::named(&format!("leaders:{algorithm}")));
        let teams = Algorithm::all()
            .chain(between.filter(|_| hosts.differ()))
            .map(|algorithm| {
                let team = world.split(Some(0), 0)?.ok_or("a team of all ranks")?;
                let all = Call::NAMES.map(|call| format!("{call} = {algorithm}")).join(",");
                team.collectives_by(&all.parse()?)?;
                Ok((algorithm, team))
            })
            .collect::<Result<Vec<_>, Box<dyn Error>>>()?;
        let sizes: Vec<usize> = match &self.sizes[..] {
            [] => (0..10).map(|nth| 8 << (2 * nth)).collect(),
            sizes => {
                let mut sizes = sizes.to_vec();
                sizes.sort_unstable();
                sizes.dedup();
                sizes
            }
        };
        let on = format!("{ranks} ranks on {} {}", hosts.count(), if hosts.count() == 1 { "host" } else { "hosts" });
        let head = format!("# Made by `transom bench tune`, transom {}: {on}.\n", env!("CARGO_PKG_VERSION"));
        let asked = |call: &Call| self.collectives.is_empty() || self.collectives.contains(&call.name());
        for (call, make) in COLLECTIVES.iter().filter(|(call, _)| asked(call)) {
            let shape =
                |bytes: usize| Shape { rank: world.rank(), ranks, len: bytes / 8, element: 8, hosts: Some(&hosts) };
            // All ranks find the same.
            let first = |bytes| Shape { rank: 0, ..shape(bytes) };
            let is_other = |algorithm: Algorithm| sizes.iter().any(|bytes| differs(algorithm, *call, first(*bytes)));
            let able = |algorithm| can(algorithm, *call, shape(8), &hosts) && is_other(algorithm);
            let able: Vec<_> = teams.iter().filter(|(algorithm, _)| able(*algorithm)).collect();
            let names: Vec<String> = able.iter().map(|(algorithm, _)| algorithm.to_string()).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let figures = sizes
                .iter()
                .map(|&bytes| {
                    of_size(
                        world,
                        &able.iter().map(|(_, team)| team).collect::<Vec<_>>(),
                        *call,
                        *make,
                        bytes,
                        self.millis,
                    )
                })
                .collect::<Result<Vec<_>, _>>()?;
            if text.is_empty() {
                text.push_str(&head);
            }
            write!(text, "\n{}", rules(call.name(), &names, &sizes, &figures, (ranks, hosts.count())))?;
        }
        Ok(())
    }
}

/// Whether it is worth measuring: what cannot do a call is the table's choice.
fn can(algorithm: Algorithm, call: Call, shape: Shape<'_>, hosts: &Hosts) -> bool {
    match algorithm.name() {
        "board" => hosts.count() == 1 && call != Call::ReduceScatter,
        _ => algorithm.can(call, shape),
    }
}

/// Whether leaders do something else between them than the table chooses, where that is said.
fn differs(algorithm: Algorithm, call: Call, shape: Shape<'_>) -> bool {
    algorithm.between().is_none() || by_hosts(call, shape, algorithm.between()) != by_hosts(call, shape, None)
}

/// How many ns each team takes for a call: the least of three turns, of the rank that takes longest.
fn of_size(
    world: &World,
    teams: &[&World],
    call: Call,
    make: Make,
    bytes: usize,
    millis: u64,
) -> Result<Vec<f64>, Box<dyn Error>> {
    let (len, ranks) = (bytes / 8, world.size());
    let blocks = matches!(
        call,
        Call::ReduceScatter | Call::Gather { .. } | Call::Scatter { .. } | Call::AllGather | Call::AllToAll
    );
    let all = if blocks { len * ranks } else { 0 };
    let other = if call == Call::AllToAll { all } else { 0 };
    let mut buffers = Buffers { mine: vec![1; len], all: vec![1; all], other: vec![1; other] };
    let mut turn = |team: &World, count: usize| -> Result<Duration, Box<dyn Error>> {
        world.barrier()?;
        let begun = Instant::now();
        (0..count).try_for_each(|_| make(team, &mut buffers))?;
        // The root of a broadcast may be done long before the others.
        world.barrier()?;
        Ok(Duration::from_nanos(world.all_reduce_one(begun.elapsed().as_nanos() as u64, Op::Max)?))
    };
    // As many as it takes; all ranks find the same.
    let mut counts = Vec::new();
    for team in teams {
        let mut count = 1;
        while turn(team, count)? < Duration::from_millis(millis) && count < 1 << 20 {
            count *= 2;
        }
        counts.push(count);
    }
    let mut least = vec![f64::INFINITY; teams.len()];
    for _ in 0..3 {
        for (nth, team) in teams.iter().enumerate() {
            least[nth] = least[nth].min(turn(team, counts[nth])?.as_secs_f64() * 1e9 / counts[nth] as f64);
        }
    }
    Ok(least)
}

/// What was measured, as a comment, and the rules that follow from it.
fn rules(call: &str, names: &[&str], sizes: &[usize], figures: &[Vec<f64>], (ranks, hosts): (usize, usize)) -> String {
    let mut table = Table::new(0, &[&["ns"], names].concat());
    for (bytes, figures) in sizes.iter().zip(figures) {
        table.row(std::iter::once(size(*bytes)).chain(figures.iter().map(|ns| number(*ns))).collect());
    }
    let mut text: String = table.to_string().lines().map(|line| format!("#{line}\n")).collect();
    // The fastest of each size; what was chosen for the size before is kept if it is about as fast.
    let mut chosen: Vec<usize> = Vec::new();
    for figures in figures {
        let best =
            (0..names.len()).min_by(|a, b| figures[*a].total_cmp(&figures[*b])).expect("the table's choice can do it");
        let kept = chosen.last().copied().filter(|kept| figures[best] > figures[*kept] * WORTH);
        chosen.push(kept.unwrap_or(best));
    }
    for (nth, algorithm) in chosen.iter().enumerate() {
        match chosen.get(nth + 1) {
            Some(next) if next == algorithm => continue,
            Some(_) => {
                text += &format!("{call} bytes<={} ranks={ranks} hosts={hosts} = {}\n", sizes[nth], names[*algorithm])
            }
            None => text += &format!("{call} ranks={ranks} hosts={hosts} = {}\n", names[*algorithm]),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_is_chosen_and_what_is_about_as_fast_kept() {
        let (names, sizes) = (["direct", "ring"], [8, 64, 512, 4096]);
        let figures = [vec![10.0, 20.0], vec![11.0, 10.5], vec![30.0, 20.0], vec![50.0, 60.0]];
        let text = rules("all_gather", &names, &sizes, &figures, (4, 2));
        let (comments, rules): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with('#'));
        assert_eq!(comments[1].split_whitespace().collect::<Vec<_>>(), ["#", "8", "B", "10.0", "20.0"]);
        let expected = [
            "all_gather bytes<=64 ranks=4 hosts=2 = direct",
            "all_gather bytes<=512 ranks=4 hosts=2 = ring",
            "all_gather ranks=4 hosts=2 = direct",
        ];
        assert_eq!(rules, expected);
    }
}
