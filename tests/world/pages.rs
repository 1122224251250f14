//! Reference pages agree with the code: docs/configuration.md has the tables of the code, docs/troubleshooting.md its
//! messages.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use transom::variables::{SetBy, TABLE, Variable};
use transom_channel::{Config, FIELDS, Field, NAMED};

const CONFIGURATION: &str = "docs/configuration.md";
const REWRITE: &str = "BLESS=1 cargo test --test world pages:: --features verbs";

fn in_tree(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn variables(chosen: impl Fn(&Variable) -> bool) -> String {
    let mut table = "| variable | meaning | values | default |\n|---|---|---|---|\n".to_owned();
    for Variable { name, meaning, expected, default, .. } in TABLE.iter().filter(|variable| chosen(variable)) {
        writeln!(table, "| `{name}` | {} | {} | {} |", cell(meaning), cell(expected), cell(default)).unwrap();
    }
    table
}

/// The default of a field on one host and, if another, between hosts: those that `Config::default()` has not.
fn default(field: &Field) -> String {
    match field.name {
        "eager" => "16384; 8192".into(),
        "ring_slots" => "256; 32".into(),
        "ring_bytes" => "16704; 8256".into(),
        "window" => "32; 64".into(),
        "zero_copy_from" => "16384; the value of `TRANSOM_VERBS_ZCOPY_MIN`".into(),
        "rules" => "the rules of `eager` and `zero_copy_from`".into(),
        _ => field.value(&Config::default()),
    }
}

fn fields() -> String {
    let mut table = "| field | meaning | values | default |\n|---|---|---|---|\n".to_owned();
    for field in FIELDS {
        let (meaning, values) = (cell(field.meaning), cell(field.must));
        writeln!(table, "| `{}` | {meaning} | {values} | {} |", field.name, default(field)).unwrap();
    }
    table
}

fn named() -> String {
    let mut table = "| name | meaning | fields |\n|---|---|---|\n".to_owned();
    for named in NAMED {
        writeln!(table, "| `{}` | {} | `{}` |", named.name, cell(named.meaning), cell(named.text)).unwrap();
    }
    table
}

/// The table of a section of the page. Returns `None` if only a build with other features has it.
fn table(section: &str) -> Option<String> {
    let network = |variable: &Variable| {
        variable.name.starts_with("TRANSOM_VERBS_")
            || ["TRANSOM_INTRANODE", "TRANSOM_INTRANODE"].contains(&variable.name)
    };
    let table = match section {
        "user" => variables(|variable| variable.set_by == SetBy::User && !network(variable)),
        "launcher" => variables(|variable| variable.set_by == SetBy::Launcher),
        "network" if cfg!(feature = "verbs") => variables(network),
        "network" => return None,
        "fields" => fields(),
        "named" => named(),
        _ => panic!("{CONFIGURATION}: there is no table {section:?}"),
    };
    Some(table)
}

/// The page with the tables of this build between `<!-- table: SECTION -->` and `<!-- end -->`.
fn with_tables(page: &str) -> String {
    let mut parts = page.split("<!-- table: ");
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (section, rest) = part.split_once(" -->\n").expect("a marker ends its line");
        let (old, after) = rest.split_once("<!-- end -->").expect("each table has an end");
        let new = table(section).unwrap_or_else(|| old.to_owned());
        write!(whole, "<!-- table: {section} -->\n{new}<!-- end -->{after}").unwrap();
    }
    whole
}

#[test]
fn configuration_page_matches_the_code() {
    let page = read(in_tree(CONFIGURATION));
    for section in ["user", "launcher", "network", "fields", "named"] {
        let marker = format!("<!-- table: {section} -->\n");
        assert_eq!(page.matches(&marker).count(), 1, "{CONFIGURATION} should have one table {section:?}");
    }
    let expected = with_tables(&page);
    if std::env::var_os("BLESS").is_some() {
        return std::fs::write(in_tree(CONFIGURATION), expected).unwrap();
    }
    let differs = page.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
    let length = (page.lines().count(), expected.lines().count());
    assert!(page == expected, "{CONFIGURATION}: {differs:#?}, lines {length:?}; rewrite the tables: {REWRITE}");
}

fn sources(folder: &Path, all: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        if path.is_dir() && !name.starts_with('.') && !["target", "tests", "benches", "examples"].contains(&&*name) {
            sources(&path, all);
        } else if name.ends_with(".rs") {
            // A literal may go on in the next line.
            let mut lines = read(&path);
            while let Some(at) = lines.find("\\\n") {
                let rest = lines[at + 2..].trim_start().to_owned();
                lines.truncate(at);
                lines += &rest;
            }
            all.push_str(&lines);
        }
    }
}

/// Each row begins with the text of a message in backquotes, and `…` where the message has a value.
#[test]
fn troubleshooting_quotes_messages_of_the_code() {
    let mut all = String::new();
    sources(&in_tree(""), &mut all);
    let page = read(in_tree("docs/troubleshooting.md"));
    let quoted: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |")).collect();
    assert!(quoted.len() > 30, "{} messages are quoted, expected more than 30", quoted.len());
    for (message, _) in quoted {
        for part in message.split('…').map(str::trim).filter(|part| part.len() > 3) {
            assert!(all.contains(part), "no source has {part:?} of the message {message:?} in docs/troubleshooting.md");
        }
    }
}
