"""A guest: QEMU, its console, and the virtio port of its agent."""

import ctypes
import os
import pathlib
import resource
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import time

import image

HERE = pathlib.Path(__file__).resolve().parent
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


class Failure(Exception):
    """The guests failed; the text has the reason."""


class Guest:
    """One QEMU. It gets only open descriptors, so that nothing needs cleaning up, whichever process dies."""

    def __init__(self, host, options, links, accelerator=None):
        self.host, self.show = host, options.console
        self.log, self.inbox, self.outbox = b"", b"", b""
        settings = {"HOST": host, "HOSTS": options.hosts, "RAILS": options.rails, "MTU": options.mtu,
                    "DIRECTORY": os.getcwd(), "OUT": options.out or "", "PYTHON": os.path.realpath(sys.executable)}
        settings |= {name.upper(): " ".join(f"{value:f}" for value in getattr(options, name))
                     for name in ("rate", "delay", "loss", "duplicate", "reorder")}
        text = "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in settings.items())
        own = [(name, 0o100755, (HERE / name).read_bytes()) for name in ("init", "agent.py")]
        own.append(("settings", 0o100644, os.fsencode(text)))
        initramfs = os.memfd_create("initramfs")
        with open(initramfs, "wb", closefd=False) as file:
            file.write(options.modules + image.cpio(own))
        self.port, port = socket.socketpair()
        self.console, console = socket.socketpair()
        accelerator = accelerator or options.accelerator
        command = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
                   "-name", f"soft-roce-host{host}", "-machine", "q35",
                   "-smp", str(options.cpus), "-m", f"{options.memory}M"]
        command += {"kvm": ["-accel", "kvm", "-cpu", "host"],
                    "tcg": ["-accel", "tcg,thread=multi", "-cpu", "max"]}[accelerator]
        command += ["-kernel", str(options.kernel), "-initrd", f"/proc/self/fd/{initramfs}",
                    "-append", "console=ttyS0 loglevel=5 panic=-1 oops=panic nokaslr mitigations=off "
                    "random.trust_cpu=on net.ifnames=0" +
                    (" tsc=reliable no_timer_check" if accelerator == "tcg" else "")]
        command += ["-chardev", f"socket,id=console,fd={console.fileno()}", "-serial", "chardev:console",
                    "-device", "virtio-serial-pci", "-chardev", f"socket,id=port,fd={port.fileno()}",
                    "-device", "virtserialport,chardev=port"]
        share = "local,security_model=none,multidevs=remap"
        command += ["-virtfs", f"{share},path=/,mount_tag=root,readonly=on"]
        if options.out:
            command += ["-virtfs", f"{share},path={options.out},mount_tag=out"]
        for rail, link in enumerate(links):
            command += ["-netdev", f"socket,id=rail{rail},fd={link.fileno()}",
                        "-device", f"virtio-net-pci,netdev=rail{rail},mac=52:54:00:00:{rail:02x}:{host + 1:02x}"]
        # A session of its own, so that only this process gets ^C. QEMU dies with this process, whatever the cause.
        self.qemu = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True,
            pass_fds=[initramfs, port.fileno(), console.fileno(), *(link.fileno() for link in links)],
            preexec_fn=lambda parent=os.getpid(): die_with(parent))
        os.close(initramfs), port.close(), console.close()
        self.port.setblocking(False), self.console.setblocking(False)

    def kill(self):
        self.qemu.kill()
        self.qemu.wait()
        while self.read_console():
            pass

    def read_console(self):
        """Reads console output. True if there was some."""
        try:
            data = self.console.recv(1 << 16)
        except (BlockingIOError, ConnectionResetError):
            return False
        if self.show and data:
            os.write(2, data)
        self.log = (self.log + data)[-16384:]
        return bool(data)

    def send(self, letter, data):
        self.outbox += struct.pack("=cI", letter, len(data)) + data

    def frames(self):
        """Yields the frames received from the agent."""
        try:
            data = self.port.recv(1 << 18)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            raise Failure(f"host{self.host} ended early")
        self.inbox += data
        while len(self.inbox) >= 5:
            letter, length = struct.unpack_from("=cI", self.inbox)
            if len(self.inbox) < 5 + length:
                break
            data, self.inbox = self.inbox[5:5 + length], self.inbox[5 + length:]
            yield letter, data


def die_with(parent):
    """Called between fork and exec: ties the child to its parent, and disables core files."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.getppid() != parent:  # the parent died before the prctl
        os._exit(1)


def wait(guests, others=(), seconds=None):
    """Sends queued frames. Returns the guests with input, and those of the other descriptors that are ready."""
    poll, said = select.poll(), []
    for guest in guests:
        poll.register(guest.port, select.POLLIN | (select.POLLOUT if guest.outbox else 0))
        poll.register(guest.console, select.POLLIN)
    for other in others:
        poll.register(other, select.POLLIN)
    ready = dict(poll.poll(None if seconds is None else seconds * 1000))
    for guest in guests:
        if guest.console.fileno() in ready:
            guest.read_console()
        events = ready.get(guest.port.fileno(), 0)
        if events & select.POLLOUT:
            try:
                guest.outbox = guest.outbox[guest.port.send(guest.outbox, socket.MSG_NOSIGNAL):]
            except (BrokenPipeError, ConnectionResetError):
                raise Failure(f"host{guest.host} ended early") from None
        if events & ~select.POLLOUT:
            said.append(guest)
    return said, [other for other in others if other in ready]


def probe(options, accelerator, seconds):
    """True if a guest starts its first process in time."""
    guest, end = Guest("probe", options, [], accelerator), time.monotonic() + seconds
    try:
        while guest.qemu.poll() is None and time.monotonic() < end:
            select.select([guest.console], [], [], 0.1)
            guest.read_console()
    finally:
        guest.kill()
    return b"soft-roce: up" in guest.log


def write(file, data):
    while data:
        try:
            data = data[os.write(file, data):]
        except BlockingIOError:
            select.select([], [file], [])
