//! The report as text.

use super::finding::{Finding, Verdict};
use std::io::{self, Write};

/// Prints findings as they arrive, and keeps them.
pub struct Text {
    /// `false` keeps the findings only.
    prints: bool,
    findings: Vec<Finding>,
}

impl Text {
    pub fn new(prints: bool) -> Self {
        Text { prints, findings: Vec::new() }
    }

    /// Adds the findings of a host.
    pub fn host(&mut self, title: &str, findings: Vec<Finding>) -> io::Result<()> {
        let rows = findings.iter().map(|finding| (finding.subject.clone(), finding)).collect::<Vec<_>>();
        self.print(&section(title, &rows))?;
        self.findings.extend(findings);
        Ok(())
    }

    /// Adds the findings between hosts. Those without a fault are one line for each network.
    pub fn between_hosts(&mut self, findings: Vec<Finding>) -> io::Result<()> {
        let network = |finding: &Finding| finding.subject.split(' ').next().unwrap_or_default().to_owned();
        let mut networks: Vec<String> = findings.iter().map(network).collect();
        networks.sort();
        networks.dedup();
        let is_ok = |finding: &&Finding| finding.verdict == Verdict::Ok;
        let works = networks.into_iter().filter_map(|name| {
            let all = findings.iter().filter(|finding| network(finding) == name);
            let (all, works) = (all.clone().count(), all.filter(is_ok).collect::<Vec<_>>());
            let first = works.first()?;
            let found = format!(
                "{} of {all} ways between hosts work; {} {}: {}",
                works.len(),
                first.host,
                first.subject,
                first.found
            );
            Some(Finding::ok(&name, found))
        });
        let works: Vec<_> = works.collect();
        let failed = findings.iter().filter(|finding| !is_ok(finding));
        let failed = failed.map(|finding| (format!("{}: {}", finding.host, finding.subject), finding));
        let rows: Vec<_> = works.iter().map(|finding| (finding.subject.clone(), finding)).chain(failed).collect();
        if !rows.is_empty() {
            self.print(&section("between hosts", &rows))?;
        }
        self.findings.extend(findings);
        Ok(())
    }

    /// Prints the sum, and returns all findings.
    pub fn end(self) -> io::Result<Vec<Finding>> {
        let count = |verdict| self.findings.iter().filter(|finding| finding.verdict == verdict).count();
        let [failed, warnings] = [Verdict::Failed, Verdict::Warning].map(count);
        self.print(&format!("{failed} FAILED, {warnings} warnings, {} checks\n", self.findings.len()))?;
        Ok(self.findings)
    }

    fn print(&self, text: &str) -> io::Result<()> {
        if !self.prints {
            return Ok(());
        }
        match io::stdout().write_all(text.as_bytes()) {
            // The reader closed stdout, e.g. `| head`. The exit status still counts.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written,
        }
    }
}

/// A title with a line for each finding, and a line for its advice.
fn section(title: &str, rows: &[(String, &Finding)]) -> String {
    let width = rows.iter().map(|(subject, _)| subject.chars().count()).max().unwrap_or(0);
    let mut text = format!("{title}\n");
    for (subject, finding) in rows {
        text += &format!("  {:<7}  {subject:<width$}  {}\n", finding.verdict.name(), finding.found);
        if let Some(advice) = &finding.advice {
            text += &format!("  {:<7}  {:<width$}  -> {advice}\n", "", "");
        }
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_aligned_lines_with_advice() {
        let findings = [Finding::ok("shm", "works"), Finding::failed("memlock", "64 KiB", "raise it")];
        let rows: Vec<_> = findings.iter().map(|finding| (finding.subject.clone(), finding)).collect();
        let text = "a\n  ok       shm      works\n  FAILED   memlock  64 KiB\n                    -> raise it\n\n";
        assert_eq!(section("a", &rows), text);
    }
}
