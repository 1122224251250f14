//! A finding: the result of one check, and what to do about it. Ranks on hosts print theirs as lines of JSON, which the
//! doctor reads from their output.

use serde::{Deserialize, Serialize};
use std::io::{self, Write};

/// Beginning of a line by which a rank of the doctor reports.
const MARK: &str = "transom doctor: ";

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    #[serde(rename = "ok")]
    Ok,
    /// Jobs start, and some of them will fail or be slow.
    #[serde(rename = "warning")]
    Warning,
    /// Jobs fail.
    #[serde(rename = "FAILED")]
    Failed,
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Failed => "FAILED",
        }
    }
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Host on which the check was made; a rank leaves it empty.
    #[serde(default)]
    pub host: String,
    pub subject: String,
    pub verdict: Verdict,
    pub found: String,
    /// What to do, if the verdict is not `Ok`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Finding {
    fn new(verdict: Verdict, subject: &str, found: impl Into<String>, advice: Option<String>) -> Self {
        Finding { host: String::new(), subject: subject.into(), verdict, found: found.into(), advice }
    }

    pub fn ok(subject: &str, found: impl Into<String>) -> Self {
        Self::new(Verdict::Ok, subject, found, None)
    }

    pub fn warning(subject: &str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Verdict::Warning, subject, found, Some(advice.into()))
    }

    pub fn failed(subject: &str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Verdict::Failed, subject, found, Some(advice.into()))
    }

    pub fn on(mut self, host: &str) -> Self {
        self.host = host.into();
        self
    }
}

/// A rail of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rail {
    /// Its name in TRANSOM_VERBS_DEVICE.
    pub name: String,
    /// Its port is an Ethernet port, not one of InfiniBand.
    pub is_roce: bool,
}

/// A line of output of a rank of the doctor.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum Report {
    Found(Finding),
    /// Rails by which this rank reaches other hosts, in order: the n-th rails of two ranks are connected.
    Rails(Vec<Rail>),
    /// The last report of a rank.
    End {
        /// Seconds from the start of the rank's process.
        seconds: f64,
        /// Networks that the host can use.
        networks: Vec<String>,
    },
}

impl Report {
    /// Prints the report on stdout.
    pub fn print(&self) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "{MARK}{}", serde_json::to_string(self)?)?;
        stdout.flush()
    }

    /// The reports in the output of a rank, and its other lines. A login may print before the rank does.
    pub fn read_all(output: &[u8]) -> (Vec<Report>, Vec<String>) {
        let (mut reports, mut others) = (Vec::new(), Vec::new());
        for line in String::from_utf8_lossy(output).lines().filter(|line| !line.trim().is_empty()) {
            match line.find(MARK).and_then(|at| serde_json::from_str(&line[at + MARK.len()..]).ok()) {
                Some(report) => reports.push(report),
                None => others.push(line.to_owned()),
            }
        }
        (reports, others)
    }
}

/// Returns the advice to open the ports of a variable, or `example` if it is not set.
pub fn through_firewall(variable: &str, example: &str) -> String {
    let ports = std::env::var(variable).unwrap_or_else(|_| example.to_owned());
    format!("{variable}={ports}, and `firewall-cmd --add-port={ports}/tcp` there")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read_among_other_lines() {
        let finding = Finding::warning("memlock", "64 KiB", "raise it");
        let end = Report::End { seconds: 0.5, networks: vec!["tcp".into()] };
        let json = [serde_json::to_string(&Report::Found(finding.clone())), serde_json::to_string(&end)];
        let [first, last] = json.map(|json| format!("{MARK}{}", json.unwrap()));
        let output = format!("Welcome!\nno newline here {first}\n\n{MARK}{{\"Found\":7}}\n{last}\n");
        let (reports, others) = Report::read_all(output.as_bytes());
        assert_eq!(reports, [Report::Found(finding), end]);
        assert_eq!(others, ["Welcome!".to_owned(), format!("{MARK}{{\"Found\":7}}")]);
        assert_eq!(Report::read_all(b"\xff\n").1.len(), 1);
    }
}
