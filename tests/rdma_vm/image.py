"""What the machines boot: Debian's kernel, and an archive (initramfs) with a shell, the tools and the programs under test.

The archive is written here, entry by entry, in the kernel's format (Documentation/driver-api/early-userspace in its
source: "newc"), so that device nodes need no root and no copy of anything lies about. It is not compressed: unpacking
would cost the emulated processor more than reading costs.
"""

import glob
import os
import re
import stat
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
KERNEL = os.path.join(ROOT, "third_party", "kernel")

# Roots of modprobe's dependencies, in the order of loading. Without a crc32 module `rdma link add` fails with ENOENT;
# the generic one is the fastest where the processor is emulated.
MODULES = ("crc32_generic", "virtio_pci", "virtio_console", "virtio_net", "ib_uverbs", "rdma_rxe",
           "rdma_ucm", "sch_netem", "sch_ingress", "cls_u32", "act_gact")
TOOLS = ("/sbin/ip", "/sbin/tc", "/bin/rdma", "/usr/bin/ibv_devinfo", "/usr/bin/ib_write_bw", "/usr/bin/ib_write_lat",
         "/usr/bin/ib_send_bw", "/usr/bin/ib_send_lat")
PROVIDERS = ("/etc/libibverbs.d/rxe.driver", "/usr/lib/x86_64-linux-gnu/libibverbs/librxe*.so")
SCRIPTS = {"/init": "init.sh", "/bin/agent": "agent.sh", "/bin/nic": "nic.sh"}
SHELL = "/bin/busybox"


class ImageError(Exception):
    """What is missing on this machine, in words."""


def _run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise ImageError("%s ended with %d: %s" % (" ".join(command), done.returncode, done.stderr.strip()))
    return done.stdout


def kernel():
    path = os.path.join(KERNEL, "vmlinuz")
    if not os.path.exists(path):
        raise ImageError("%s is not there; deploy/setup.sh vm fetches it" % path)
    return path


def modules():
    """Paths of the kernel's modules, each after those that it needs."""
    kernel()
    with open(os.path.join(KERNEL, "version")) as file:
        version = file.read().strip()
    found = []
    for name in MODULES:
        said = _run(["/sbin/modprobe", "-d", KERNEL, "-S", version, "--show-depends", name])
        for path in re.findall(r"^insmod (\S+)", said, re.MULTILINE):
            if path not in found:
                found.append(path)
    return found


def libraries(program):
    """What the loader maps for it, as ldd says."""
    said = _run(["ldd", program])
    missing = re.findall(r"^\s*(\S+) => not found", said, re.MULTILINE)
    if missing:
        raise ImageError("%s needs %s, which are not installed" % (program, ", ".join(missing)))
    return re.findall(r"(?:=> |^\s*)(/\S+) \(0x", said, re.MULTILINE)


class Archive:
    """Entries by path; a folder is added before what lies in it."""

    def __init__(self, path):
        self._file = open(path, "wb")
        self._seen = {"/"}
        self._inode = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._entry("TRAILER!!!", 0, b"")
        self._file.close()

    def _entry(self, name, mode, data, device=(0, 0)):
        self._inode += 1
        encoded = name.encode() + b"\0"
        fields = [self._inode, mode, 0, 0, 1, 0, len(data), 0, 0, device[0], device[1], len(encoded), 0]
        head = b"070701" + b"".join(b"%08X" % value for value in fields) + encoded
        self._file.write(head + b"\0" * (-len(head) % 4))
        self._file.write(data)
        self._file.write(b"\0" * (-len(data) % 4))

    def _add(self, path, mode, data, device=(0, 0)):
        if path not in self._seen:
            self.folder(os.path.dirname(path))
            self._seen.add(path)
            self._entry(path[1:], mode, data, device)

    def folder(self, path):
        if path not in self._seen:
            self._add(path, stat.S_IFDIR | 0o755, b"")

    def link(self, path, target):
        self._add(path, stat.S_IFLNK | 0o777, target.encode())

    def node(self, path, major, minor):
        self._add(path, stat.S_IFCHR | 0o600, b"", (major, minor))

    def text(self, path, text, mode=0o644):
        self._add(path, stat.S_IFREG | mode, text.encode())

    def file(self, path, source):
        if path in self._seen:
            return
        with open(source, "rb") as file:
            self._add(path, stat.S_IFREG | stat.S_IMODE(os.stat(source).st_mode), file.read())

    def program(self, path, source):
        """With the libraries that it is linked with."""
        self.file(path, source)
        for library in libraries(source):
            self.file(library, library)


def build(path, programs, files=None):
    """Writes the archive. `programs`: files of this machine, each to be found in /bin; `files`: {path in the machines:
    path here}."""
    with Archive(path) as archive:
        for folder in ("/proc", "/sys", "/dev", "/tmp", "/run", "/root"):
            archive.folder(folder)
        archive.node("/dev/console", 5, 1)
        archive.file(SHELL, SHELL)
        for name, script in SCRIPTS.items():
            with open(os.path.join(HERE, script)) as file:
                archive.text(name, file.read(), 0o755)
        for tool in TOOLS:
            archive.program(tool, tool)
        for pattern in PROVIDERS:
            found = glob.glob(pattern)
            if not found:
                raise ImageError("nothing here is named %s; deploy/setup.sh vm installs it" % pattern)
            for name in found:
                archive.file(name, name)
        for program in programs:
            archive.program("/bin/" + os.path.basename(program), os.path.realpath(program))
        for applet in _run([SHELL, "--list"]).split():
            archive.link("/bin/" + applet, "busybox")   # after the tools: theirs are the names that they have
        order = modules()
        for module in order:
            archive.file("/modules/" + os.path.basename(module), module)
        archive.text("/modules/order", "".join("/modules/%s\n" % os.path.basename(module) for module in order))
        for name, source in (files or {}).items():
            archive.file(name, source)
