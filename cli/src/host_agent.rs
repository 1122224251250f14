//! `transom host-agent`: starts the ranks of this host for a launcher elsewhere, which calls it.

use clap::Args;
use std::error::Error;
use std::process::ExitCode;
use transom::host_agent;

/// Starts ranks of this host for a launcher elsewhere, which calls this command.
#[derive(Args)]
pub struct HostAgent {
    /// Print the line by which a launcher knows that it can use this agent
    #[arg(long)]
    identity: bool,

    /// Name of this host in the launcher's list
    #[arg(long, default_value = "")]
    host: String,

    /// Process that guards this agent; none for the guard
    #[arg(long)]
    guard: Option<u32>,
}

impl HostAgent {
    pub fn execute(self) -> Result<ExitCode, Box<dyn Error>> {
        if self.identity {
            println!("{}", host_agent::IDENTITY);
            return Ok(ExitCode::SUCCESS);
        }
        let status = match self.guard {
            None => host_agent::guard(&self.host)?,
            Some(guard) => host_agent::serve(&self.host, guard)?,
        };
        Ok(ExitCode::from(status))
    }
}
