"""Process 1 of the guest after its init: runs the command, and forwards its streams.

The agent exchanges frames with `run` on the host over a virtio port: a letter, the length, the bytes. Frames to the host: H the
guest has started (host0 of two adds the keys), R ready for ssh, O and E output of the command on stdout and stderr, S its status,
the last frame. Frames from the host: C the command (none for host1), I stdin (empty: end of file), W the terminal's size."""

# Few imports: each takes 0.1 s or more in an emulated machine.
import fcntl
import marshal
import os
import resource
import select
import struct
import termios

PORT = "/dev/vport0p1"
OWN = "/run/soft-roce"
CAP_IPC_LOCK, PR_CAPBSET_DROP = 14, 24
SIGKILL, SIGPIPE, SIGXFSZ = 9, 13, 25
CHUNK = 1 << 16

SSHD = """Port 22
ListenAddress 0.0.0.0
HostKey {own}/key
AuthorizedKeysFile {own}/key.pub
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
UseDNS no
PrintMotd no
PrintLastLog no
PidFile none
LogLevel ERROR
MaxStartups 1000
MaxSessions 1000
AcceptEnv TRANSOM_* TEST_* RUST_*
Subsystem sftp internal-sftp
SetEnv "PATH={path}" SHLVL=2
"""
SSH = """Host *
User root
IdentityFile {own}/key
IdentitiesOnly yes
UserKnownHostsFile {own}/known_hosts
StrictHostKeyChecking yes
BatchMode yes
LogLevel ERROR
SendEnv TRANSOM_* TEST_* RUST_*
"""


def main():
    port = os.open(PORT, os.O_RDWR)
    host, hosts = int(os.environ["HOST"]), int(os.environ["HOSTS"])
    keys = make_keys() if hosts > 1 and host == 0 else {}
    send(port, b"H", marshal.dumps(keys))
    letter, data = receive(port)
    assert letter == b"C", letter
    task = marshal.loads(data)
    limits(task["memlock"])
    if hosts > 1:
        ssh(task)
    if host > 0:
        send(port, b"R", b"")
        while True:  # until the host ends this guest
            os.waitpid(-1, 0)
    status = command(port, task)
    os.sync()
    send(port, b"S", b"%d" % status)
    while True:
        select.poll().poll()


def limits(memlock):
    """Sets limits for the command and for ssh sessions. A limit of locked memory drops CAP_IPC_LOCK, with which root exceeds it."""
    if memlock is None:
        bytes_ = resource.RLIM_INFINITY
    else:
        bytes_ = memlock * 1024
        import ctypes

        if ctypes.CDLL(None, use_errno=True).prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "CAP_IPC_LOCK cannot be given up")
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (bytes_, bytes_))
    resource.setrlimit(resource.RLIMIT_NOFILE, (65536, 65536))


def make_keys():
    """Makes one key pair, which authenticates hosts and users."""
    tool("/usr/bin/ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "soft-roce", "-f", f"{OWN}/key")
    keys = {}
    for name in ("key", "key.pub"):
        with open(f"{OWN}/{name}") as file:
            keys[name] = file.read()
    return keys


def ssh(task):
    """Starts an ssh server, and configures a client that asks no questions. All files belong to this run."""
    files = task["keys"] | {
        "known_hosts": "* " + task["keys"]["key.pub"],
        "sshd_config": SSHD.format(own=OWN, path=task["env"].get("PATH", os.defpath)),
        "ssh_config": SSH.format(own=OWN),
        "shadow": "root:*:1::::::\nsshd:*:1::::::\n",  # the host's file may lock root, or be unreadable
    }
    for name, text in files.items():
        with open(f"{OWN}/{name}", "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(text)
    tool("/bin/mount", "--bind", f"{OWN}/ssh_config", "/etc/ssh/ssh_config")
    tool("/bin/mount", "--bind", f"{OWN}/shadow", "/etc/shadow")
    if os.path.isdir("/root/.ssh"):
        tool("/bin/mount", "-t", "tmpfs", "ssh", "/root/.ssh")  # hides the host's settings
    tool("/usr/sbin/sshd", "-f", f"{OWN}/sshd_config")


def tool(*command):
    """Runs the command until it ends. Raises an error if it fails."""
    _, code = os.waitpid(os.posix_spawn(command[0], command, {"PATH": os.defpath}), 0)
    if code:
        raise RuntimeError(f"{' '.join(command)} failed with status {os.waitstatus_to_exitcode(code)}")


def command(port, task):
    """Runs the command. Returns its status by the convention of shells."""
    terminal, sources = None, {}
    if task["terminal"]:
        terminal, slave = os.openpty()
        window_size(terminal, task["terminal"])
        sources[terminal], stdin, ends = b"O", terminal, {slave}
        # Opened by the new session's leader, it is the session's terminal.
        actions = [(os.POSIX_SPAWN_OPEN, 0, os.ttyname(slave), os.O_RDWR, 0)]
        actions += [(os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2)]
    else:
        out, out_end = os.pipe()
        err, err_end = (out, out_end) if task["together"] else os.pipe()
        in_end, stdin = os.pipe()
        sources |= {err: b"E", out: b"O"}
        ends = {in_end, out_end, err_end}
        actions = [(os.POSIX_SPAWN_DUP2, end, file) for file, end in enumerate((in_end, out_end, err_end))]
    os.set_blocking(stdin, False)
    try:
        os.chdir(task["directory"])
        os.environ["PATH"] = task["env"].get("PATH", os.defpath)  # posix_spawnp searches it
        child = os.posix_spawnp(task["command"][0], task["command"], task["env"], file_actions=actions, setsid=True,
                                setsigdef=[SIGPIPE, SIGXFSZ])  # Python ignores these signals
    except OSError as error:
        send(port, b"E", f"soft-roce: in the guest: {error}\n".encode(errors="surrogateescape"))
        return 127 if isinstance(error, FileNotFoundError) else 126
    for end in ends:
        os.close(end)
    ending = os.pidfd_open(child)

    status, pending, ended = None, b"", False
    while status is None or sources:
        poll = select.poll()
        for file in [ending, *sources] if status is None else sources:
            poll.register(file, select.POLLIN)
        if not pending:
            poll.register(port, select.POLLIN)
        elif stdin is not None:
            poll.register(stdin, select.POLLIN | select.POLLOUT if stdin in sources else select.POLLOUT)
        ready = dict(poll.poll())
        for file in [file for file in sources if file in ready]:
            try:
                data = os.read(file, CHUNK)
            except OSError:  # no process has the terminal open any more
                data = b""
            if data:
                send(port, sources[file], data)
            else:
                del sources[file]
        if port in ready:
            letter, data = receive(port)
            if letter == b"W" and terminal is not None:
                window_size(terminal, marshal.loads(data))
            elif letter == b"I":
                pending, ended = data, not data
        if stdin is not None and pending:
            try:
                pending = pending[os.write(stdin, pending):]
            except BlockingIOError:
                pass
            except OSError:  # the reader has closed it
                pending, ended = b"", True
        elif stdin is None:
            pending = b""
        if ended and stdin is not None:
            if terminal is None:
                os.close(stdin)
            stdin, ended = None, False
        status = reap(child, status)
    return status


def reap(child, status):
    """Reaps ended orphans and the command. When the command ends, its remaining processes are killed."""
    while True:
        try:
            pid, code = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == child:
            code = os.waitstatus_to_exitcode(code)
            status = code if code >= 0 else 128 - code
            os.kill(-1, SIGKILL)


def window_size(terminal, size):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", *size, 0, 0))


def send(port, letter, data):
    frame = struct.pack("=cI", letter, len(data)) + data
    while frame:
        frame = frame[os.write(port, frame):]


def receive(port):
    letter, length = struct.unpack("=cI", read(port, 5))
    return letter, read(port, length)


def read(port, length):
    data = b""
    while len(data) < length:
        part = os.read(port, length - len(data))
        if not part:
            raise EOFError("the host has closed its end")
        data += part
    return data


main()
