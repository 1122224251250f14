//! `transom bench tune`: measures which algorithm of each collective is fastest here, and prints rules for
//! `TRANSOM_COLLECTIVES`.

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
use transom::{Op, OutputPrefix, World, variables};
use transom_collective::{Algorithm, Call, Hosts, Rules, Shape, by_hosts};

/// Measures every algorithm of every collective by size, and prints rules that choose the fastest.
///
/// Started as ranks by a launcher, it measures on the job's hosts; otherwise it starts ranks on this machine. The rules
/// apply to the number of ranks and hosts of the run. Rules of several runs may be joined in one file.
#[derive(Args)]
#[command(after_help = AFTER)]
pub struct Tune {
    /// Collectives to measure, e.g. all_reduce [default: all]
    #[arg(value_name = "COLLECTIVE", value_parser = collective)]
    collectives: Vec<&'static str>,
    /// Number of ranks, if no launcher starts them
    #[arg(short = 'n', long, value_name = "RANKS", default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=1024))]
    ranks: u16,
    /// Bytes of a rank, or of a block, e.g. 8,4KiB [default: 8 B, 32 B and so on, times 4, up to 2 MiB]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_size)]
    sizes: Vec<usize>,
    /// Measuring time of each of three repetitions, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    millis: u64,
    /// File to which rank 0 writes the rules, instead of stdout
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,
}

const AFTER: &str = "\
Examples:
  transom bench tune -n 4 -o four.rules           on this machine
  TRANSOM_COLLECTIVES=four.rules transom run -n 4 ./program
  transom run --hosts a,b -n 16 transom bench tune all_reduce broadcast -o two-hosts.rules
  srun -n 64 transom bench tune > cluster.rules

The file must be on all hosts. If ranks have different rules, their first collective fails and names the difference.
docs/configuration.md describes the rules.";

/// Executes a call once.
type Make = fn(&World, &mut Buffers) -> Result<(), transom::messages::Error>;

/// The blocking collectives. A barrier is omitted, because it has one algorithm.
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
    known.copied().ok_or_else(|| format!("expected one of {}", names.join(", ")))
}

/// The buffers of the calls.
struct Buffers {
    mine: Vec<u64>,
    all: Vec<u64>,
    other: Vec<u64>,
}

/// A rule changes the algorithm only if the new one takes less than this fraction of the time, because measurements
/// vary.
const WORTH: f64 = 0.95;

impl Tune {
    pub fn execute(self) -> Result<ExitCode, Box<dyn Error>> {
        if matches!(variables::OUTPUT_PREFIX.get(), Ok(Some(OutputPrefix::All))) {
            // Tags before the lines would spoil the rules. The restarted program reads its tag mode from the
            // environment.
            let mut again = Command::new(std::env::current_exe()?);
            let args = std::env::args_os().skip(1);
            return Err(again.args(args).env("TRANSOM_OUTPUT_PREFIX", OutputPrefix::Stderr.to_string()).exec().into());
        }
        let world = transom::start(self.ranks.into())?;
        if world.rank() == 0 {
            warn_of_circumstances();
        }
        // Binds ranks as `transom bench` does. A rank that the launcher has bound sees a single core.
        let choice = cores::choice();
        if let Some(core) = choice.get(world.rank()).filter(|_| choice.len() >= world.size()) {
            cores::bind(*core);
        }
        // Checks the output before the measurement takes time.
        let output = self.output.as_deref().filter(|_| world.rank() == 0).map(Output::at).transpose()?;
        let mut text = String::new();
        let measured = self.measure(&world, &mut text).and_then(|()| Ok(world.barrier()?));
        if let Err(why) = &measured {
            if text.is_empty() {
                return measured.map(|()| ExitCode::SUCCESS);
            }
            // Rules of the collectives measured before the error.
            write!(text, "\n# It failed before everything was measured: {}\n", why.to_string().replace('\n', " "))?;
        }
        if world.rank() == 0 {
            // Checks that the rules parse.
            text.parse::<Rules>()?;
            match output {
                Some(output) => output.write(text.as_bytes())?,
                None => print(&text)?,
            }
        }
        measured.map(|()| ExitCode::SUCCESS)
    }

    /// Appends the rules of one collective after the other to `text`.
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
            // All ranks must compute the same set, so the shape is rank 0's.
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

/// True if the algorithm applies to the call. If not, the default table would choose another one, so measuring is
/// pointless.
fn can(algorithm: Algorithm, call: Call, shape: Shape<'_>, hosts: &Hosts) -> bool {
    match algorithm.name() {
        "board" => hosts.count() == 1 && call != Call::ReduceScatter,
        _ => algorithm.can(call, shape),
    }
}

/// True unless the name gives an algorithm between leaders that equals the default table's choice.
fn differs(algorithm: Algorithm, call: Call, shape: Shape<'_>) -> bool {
    algorithm.between().is_none() || by_hosts(call, shape, algorithm.between()) != by_hosts(call, shape, None)
}

/// The nanoseconds that each team takes for a call: the minimum of three turns, each timed by its slowest rank.
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
        // The root of a broadcast may return long before the others.
        world.barrier()?;
        Ok(Duration::from_nanos(world.all_reduce_one(begun.elapsed().as_nanos() as u64, Op::Max)?))
    };
    // Doubles the number of calls until a turn is long enough. All ranks find the same number, because a turn's time is
    // the maximum over the ranks.
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

/// The measured times as a comment, and the rules that follow from them.
fn rules(call: &str, names: &[&str], sizes: &[usize], figures: &[Vec<f64>], (ranks, hosts): (usize, usize)) -> String {
    let mut table = Table::new(0, &[&["ns"], names].concat());
    for (bytes, figures) in sizes.iter().zip(figures) {
        table.row(std::iter::once(size(*bytes)).chain(figures.iter().map(|ns| number(*ns))).collect());
    }
    let mut text: String = table.to_string().lines().map(|line| format!("#{line}\n")).collect();
    // Chooses the fastest algorithm of each size, but keeps the previous size's choice if that is about as fast.
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
    fn tuned_rules_select_fastest_and_keep_near_equals() {
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
