//! A Slurm of one node, this machine, in a folder of its own. All of it ends with this value, whatever happens.

use rustix::process::{Pid, Signal, getuid, kill_process, set_parent_process_death_signal};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

pub struct Slurm {
    folder: PathBuf,
    /// In the order of their start.
    daemons: Vec<(&'static str, Child)>,
}

impl Slurm {
    /// Starts it, and waits until its node takes jobs.
    pub fn start() -> Self {
        let folder =
            std::env::temp_dir().join(format!("transom-slurm-{}-{:08x}", std::process::id(), fastrand::u32(..)));
        let mut slurm = Slurm { folder, daemons: Vec::new() };
        for part in ["", "munge", "state", "spool"] {
            std::fs::create_dir_all(slurm.folder.join(part)).unwrap();
        }
        // munged requires that only its user can write where its socket is, and that all users can enter there.
        for part in ["", "munge"] {
            std::fs::set_permissions(slurm.folder.join(part), PermissionsExt::from_mode(0o755)).unwrap();
        }
        let key = slurm.folder.join("munge/key");
        std::fs::write(&key, (0..1024).map(|_| fastrand::u8(..)).collect::<Vec<_>>()).unwrap();
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o400)).unwrap();
        slurm.configure();

        let munge = |name: &str| format!("{}/munge/{name}", slurm.folder.display());
        let mut munged = Command::new("/usr/sbin/munged");
        munged.args(["--foreground", "--force"]).arg(format!("--socket={}", munge("socket")));
        munged.arg(format!("--key-file={}", munge("key"))).arg(format!("--pid-file={}", munge("pid")));
        munged.arg(format!("--log-file={}", munge("log"))).arg(format!("--seed-file={}", munge("seed")));
        slurm.daemon("munged", munged);
        slurm.wait("munged", |slurm| slurm.folder.join("munge/socket").exists());
        for (name, more) in [("slurmctld", &["-D"][..]), ("slurmd", &["-D", "-N", "one"])] {
            let mut command = slurm.command(name);
            command.args(more);
            slurm.daemon(name, command);
        }
        slurm.wait("sinfo", |slurm| {
            let state = slurm.command("sinfo").args(["-h", "-o", "%T"]).stderr(Stdio::null()).output().unwrap();
            state.stdout.starts_with(b"idle")
        });
        slurm
    }

    /// A command of Slurm's with this configuration.
    pub fn command(&self, name: &str) -> Command {
        let folders = ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/bin", "/usr/local/sbin"];
        let found = folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists());
        let mut command = Command::new(found.unwrap_or_else(|| name.into()));
        command.env("SLURM_CONF", self.folder.join("slurm.conf"));
        command
    }

    fn configure(&self) {
        // Both listeners are held until both ports are known, so that the ports differ.
        let ports = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [control, node] = ports.map(|listener| listener.local_addr().unwrap().port());
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let folder = self.folder.display();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let user = if getuid().is_root() { "root".into() } else { std::env::var("USER").unwrap_or_default() };
        let conf = format!(
            "ClusterName=transom\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={control}\nSlurmUser={user}\n\
             SlurmdUser={user}\nAuthType=auth/munge\nAuthInfo=socket={folder}/munge/socket\nCryptoType=crypto/munge\n\
             StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool\nSlurmctldPidFile={folder}/ctld.pid\n\
             SlurmdPidFile={folder}/slurmd.pid\nSlurmctldLogFile={folder}/slurmctld.log\n\
             SlurmdLogFile={folder}/slurmd.log\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nReturnToService=2\nMailProg=/bin/true\n\
             JobAcctGatherType=jobacct_gather/none\nAccountingStorageType=accounting_storage/none\nSwitchType=switch/none\n\
             NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={node} CPUs={cpus} State=UNKNOWN\n\
             PartitionName=all Nodes=one Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8\n"
        );
        std::fs::write(self.folder.join("slurm.conf"), conf).unwrap();
        std::fs::write(self.folder.join("cgroup.conf"), "CgroupPlugin=cgroup/v1\n").unwrap();
    }

    fn daemon(&mut self, name: &'static str, mut command: Command) {
        let said = std::fs::File::create(self.folder.join(format!("{name}.said"))).unwrap();
        command.stdin(Stdio::null()).stdout(said.try_clone().unwrap()).stderr(said);
        // SAFETY: one system call between fork and exec.
        unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?)) };
        self.daemons.push((name, command.spawn().unwrap()));
    }

    fn wait(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let until = Instant::now() + LIMIT;
        while !done(self) {
            for at in 0..self.daemons.len() {
                let (name, ended) = (self.daemons[at].0, self.daemons[at].1.try_wait().unwrap());
                assert!(ended.is_none(), "{name} ended: {ended:?}\n{}", self.logs());
            }
            assert!(Instant::now() < until, "{what} is not ready after {LIMIT:?}\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn logs(&self) -> String {
        let files = ["munged.said", "slurmctld.said", "slurmctld.log", "slurmd.said", "slurmd.log", "munge/log"];
        let read = |name| std::fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        files.map(|name| format!("--- {name}\n{}", read(name))).concat()
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        for (_, daemon) in self.daemons.iter_mut().rev() {
            let _ = kill_process(Pid::from_child(daemon), Signal::TERM);
            let until = Instant::now() + Duration::from_secs(10);
            while daemon.try_wait().is_ok_and(|ended| ended.is_none()) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
