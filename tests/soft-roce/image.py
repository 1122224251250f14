"""Boot files of a guest: Debian's kernel and its modules, fetched once into the cache, and a small archive for each run. Also
checks whether this machine can run a guest with KVM. As a program: installs its own and the named packages, or prints the command that
does."""

import fcntl
import lzma
import os
import pathlib
import shutil
import subprocess
import sys
import zlib

PACKAGES = """qemu-system-x86 busybox-static kmod rdma-core ibverbs-providers ibverbs-utils perftest iproute2
openssh-server openssh-client""".split()
# rdma_rxe needs crc32_generic without declaring it.
MODULES = """virtio_pci virtio_console virtio_net 9pnet_virtio 9p crc32_generic ib_uverbs rdma_rxe rdma_ucm dummy
sch_netem""".split()
BUSYBOX = "/bin/busybox"


class Unprepared(Exception):
    """This machine lacks something; the text names it, and the command that installs it."""


def prepare(cache):
    """Returns the paths of the kernel and of the archive of modules. Makes them if they are missing."""
    packages()
    kernel = cache / "vmlinux"
    modules = cache / f"modules-{zlib.crc32(' '.join(MODULES).encode()):08x}.cpio"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = open(cache / "lock", "w")
    except OSError as error:
        raise Unprepared(f"the kernel cannot be kept in {cache} ({error.strerror}); set CARGO_TARGET_DIR") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not modules.exists():  # the last file that is made
            partial = cache / "partial"
            shutil.rmtree(partial, ignore_errors=True)  # left by a run that was killed
            partial.mkdir()
            try:
                unpack(partial)
                os.rename(partial / "vmlinux", kernel)
                os.rename(partial / "modules.cpio", modules)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return kernel, modules


def packages(*others):
    """Installs missing packages if this process has the rights."""
    wanted = [*PACKAGES, *others]
    query = ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *wanted]
    try:
        lines = subprocess.run(query, capture_output=True, text=True).stdout.splitlines()
    except FileNotFoundError:
        raise Unprepared("this needs Debian's packages, and there is no dpkg here") from None
    missing = [name for name in wanted if f"{name} installed" not in lines]
    if not missing:
        return
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
    if os.geteuid() != 0:
        raise Unprepared(f"packages are missing; install them with: sudo {' '.join(install)}")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    if not succeeds(install, env=environment):  # the package lists may be missing
        succeeds(["apt-get", "update"])
        if not succeeds(install, env=environment):
            raise Unprepared(f"packages are missing, and this failed: {' '.join(install)}")


def unpack(partial):
    """Fetches the kernel's package, and makes `vmlinux` and `modules.cpio` in `partial`."""
    if not (package := kernel_package()):
        succeeds(["apt-get", "update"])
        package = kernel_package()
    fetch = ["setpriv", "--pdeathsig", "KILL", "apt-get", "download", package]
    fetched = package and succeeds(fetch, cwd=partial)
    if package and not fetched:  # the package lists may be outdated
        fetched = succeeds(["apt-get", "update"]) and succeeds(fetch, cwd=partial)
    if not fetched:
        raise Unprepared("Debian's kernel cannot be fetched; try: apt-get update && apt-get download linux-image-amd64")
    (archive,) = partial.glob("*.deb")
    if not succeeds(["dpkg-deb", "--extract", archive, partial]):
        raise Unprepared(f"{archive.name} cannot be unpacked; is the disk full?")
    (compressed,) = partial.glob("boot/vmlinuz-*")
    version = compressed.name.removeprefix("vmlinuz-")
    data = compressed.read_bytes()
    # QEMU starts an uncompressed kernel at once; a guest takes 3 s to decompress it.
    start = data.find(b"\xfd7zXZ\0")
    if start < 0:
        raise Unprepared(f"{compressed.name} is not compressed with xz as Debian's kernels are")
    (partial / "vmlinux").write_bytes(lzma.LZMADecompressor().decompress(data[start:]))

    root = partial if (partial / "lib").exists() else partial / "usr"
    subprocess.run(["depmod", "--basedir", root, version], check=True)
    entries, order = [], []
    for module in MODULES:
        show = ["modprobe", "--dirname", root, "--set-version", version, "--show-depends", module]
        for line in subprocess.run(show, check=True, capture_output=True, text=True).stdout.splitlines():
            if line.startswith("insmod ") and (path := pathlib.Path(line.split()[1])) not in order:
                order.append(path)
    for number, path in enumerate(order):
        data = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        entries.append((f"modules/{number:02}-{path.name.removesuffix('.xz')}", 0o100644, data))
    busybox = pathlib.Path(BUSYBOX).read_bytes()
    folders = [(name, 0o40755, b"") for name in ("bin", "modules", "proc", "sys", "dev", "host", "bare")]
    (partial / "modules.cpio").write_bytes(cpio([*folders, ("bin/busybox", 0o100755, busybox), *entries]))


def kernel_package():
    """The package on which linux-image-amd64 depends today."""
    show = subprocess.run(["apt-cache", "depends", "linux-image-amd64"], capture_output=True, text=True).stdout
    names = [line.split()[1] for line in show.splitlines() if line.startswith("  Depends: linux-image-")]
    return names[0] if names else None


def cpio(entries):
    """A cpio archive for the kernel, of (name, mode, bytes). Archives may be concatenated."""
    archive = bytearray()
    for number, (name, mode, data) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        name = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
        for part in (b"070701" + b"".join(b"%08X" % field for field in fields) + name, data):
            archive += part
            archive += b"\0" * (-len(archive) % 4)
    return bytes(archive)


def accelerator(cache, boot):
    """`kvm` if a guest starts its first process with it, else `tcg`. Tested once per boot of this machine, by
    `boot(accelerator, seconds)`."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    here = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    answer = cache / "accelerator"
    try:
        known, name = answer.read_text().split()
        if known == here and name in ("kvm", "tcg"):
            return name
    except (OSError, ValueError):
        pass
    name = "kvm" if boot("kvm", 20) else "tcg"
    answer.write_text(f"{here} {name}\n")
    return name


def succeeds(command, **options):
    """True if the command succeeds. Its output goes to stderr."""
    return subprocess.run(command, stdout=2, stdin=subprocess.DEVNULL, **options).returncode == 0


if __name__ == "__main__":
    try:
        packages(*sys.argv[1:])
    except Unprepared as error:
        sys.exit(f"soft-roce: {error}")
