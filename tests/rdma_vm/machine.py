"""A machine of its own kernel, emulated: started, asked to run commands, ended.

Every wait has a deadline, and an error says which machine, which command, how long, and what its console said last.
"""

import base64
import itertools
import os
import shlex
import signal
import socket
import subprocess
import threading
import time

import image
from cluster import Watched, die_with_parent

BOOT_SECONDS = 120     # on a machine with much else to do; 10 s are usual
COMMAND_SECONDS = 30
MEMORY = 1024          # MiB


class MachineError(Exception):
    """What a machine did not do, in words."""


class GuestProcess(Watched):
    """A command in a machine; its name says in which."""

    def __init__(self, machine, number, name):
        super().__init__(name)
        self._machine, self.number = machine, number
        self.pid = None

    def has_pid(self, pid):
        with self._changed:
            self.pid = pid
            self._changed.notify_all()

    def _wait_for_pid(self):
        end = time.monotonic() + COMMAND_SECONDS
        with self._changed:
            while self.pid is None and self._status is None and time.monotonic() < end:
                self._changed.wait(max(0, end - time.monotonic()))
        if self.pid is None and self.running():
            self.fail("it did not start within %d s" % COMMAND_SECONDS)

    def signal(self, number):
        """To it and to what it has started."""
        self._wait_for_pid()
        if self.running():
            # It may end by itself meanwhile, which is as good.
            self._machine.run("kill -%d -- -%d" % (number, self.pid), check=False)

    def kill(self):
        """As kill -9, and waits for the end."""
        self.signal(signal.SIGKILL)
        self.wait(code=None)


class Machine:
    """`number` is 1 or 2; its network card on rail r has the address 10.7.r.NUMBER."""

    def __init__(self, number, folder, archive, netdevs):
        """`netdevs`: QEMU's options for the back ends of its network cards, without the id."""
        self.number = number
        self.name = "machine %d" % number
        self.rails = len(netdevs)
        self._console = os.path.join(folder, "console-%d.log" % number)
        self._processes, self._lock = {}, threading.Lock()
        self._numbers = itertools.count(1)
        self._ready = GuestProcess(self, 0, self.name + ": start")
        self._processes[0] = self._ready
        self._started = time.monotonic()
        self._agent, self._reader = None, None
        # The emulator connects to us, so that nothing that the agent says is lost.
        agent = os.path.join(folder, "agent-%d" % number)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(agent)
        self._listener.listen(1)
        self._log = open(os.path.join(folder, "qemu-%d.log" % number), "w+")
        # TCG even where there is KVM: nested KVM that hangs is common, and the times of a run stay comparable. Without
        # "erms" nobody copies by `rep movsb`, which is emulated byte by byte: it halves the speed of Soft-RoCE.
        command = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max,-erms", "-m", str(MEMORY), "-smp", "2",
                   "-nodefaults", "-display", "none", "-no-reboot", "-kernel", image.kernel(), "-initrd", archive,
                   "-append", "console=ttyS0 quiet panic=-1 no_timer_check mitigations=off machine=%d rails=%d" % (number, self.rails),
                   "-serial", "file:" + self._console, "-device", "virtio-serial-pci",
                   "-chardev", "socket,id=agent,path=" + agent, "-device", "virtserialport,chardev=agent,name=agent"]
        for rail, netdev in enumerate(netdevs):
            command += ["-netdev", netdev + ",id=n%d" % rail, "-device",
                        "virtio-net-pci,netdev=n%d,romfile=,mac=52:54:00:07:%02d:%02d,host_mtu=9000" % (rail, rail, number)]
        # From the main thread: the child dies with the thread that started it.
        self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT,
                                       preexec_fn=die_with_parent)

    @property
    def pid(self):
        return self._child.pid

    def address(self, rail=0):
        return "10.7.%d.%d" % (rail, self.number)

    def console(self, lines=25):
        """Its last lines, and what the emulator said."""
        said = []
        for path in (self._log.name, self._console):
            if os.path.exists(path):
                with open(path, errors="replace") as file:
                    said += file.read().split("\n")
        return "\n    ".join(said[-lines:])

    def _fail(self, what):
        raise MachineError("%s: %s; its console said:\n    %s" % (self.name, what, self.console()))

    def wait_until_ready(self, deadline=BOOT_SECONDS):
        """Seconds from its start until the agent answered."""
        end = self._started + deadline
        self._listener.settimeout(1)
        while self._agent is None:
            try:
                self._agent, _ = self._listener.accept()
            except socket.timeout:
                if self._child.poll() is not None:
                    self._fail("the emulator ended with %d" % self._child.returncode)
                if time.monotonic() > end:
                    self._fail("the emulator did not connect within %d s" % deadline)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self._ready.wait(deadline=max(1, end - time.monotonic()))
        except AssertionError:
            self._fail("it was not up within %d s" % deadline if self._child.poll() is None
                       else "the emulator ended with %d" % self._child.returncode)
        return time.monotonic() - self._started

    def _read(self):
        with self._agent.makefile("rb") as lines:
            try:
                for line in lines:
                    self._said(line.decode(errors="replace").rstrip("\n"))
            except OSError:
                pass
        with self._lock:
            left = list(self._processes.values())
        for process in left:
            process.heard("(the machine is gone)")
            process.has_ended(-1)

    def _said(self, line):
        number, _, rest = line.partition(" ")
        kind, _, text = rest.partition(" ")
        with self._lock:
            process = self._processes.get(int(number)) if number.isdigit() else None
            if process and kind == "e":
                del self._processes[int(number)]
        if process is None:
            return
        if kind == "p":
            process.has_pid(int(text))
        elif kind == "o":
            process.heard(text)
        elif kind == "e":
            process.has_ended(int(text))

    def start(self, command, name=None):
        """`command`: for its shell, or a list of words. Runs in /tmp, beside all others, as the head of a session."""
        if not isinstance(command, str):
            command = "exec " + " ".join(shlex.quote(word) for word in command)
        number = next(self._numbers)
        process = GuestProcess(self, number, "%s, %s" % (self.name, name or command[:200]))
        with self._lock:
            self._processes[number] = process
        try:
            self._agent.sendall(b"%d %s\n" % (number, base64.b64encode(command.encode())))
        except OSError as error:
            self._fail("cannot be asked to run \"%s\": %s" % (command[:200], error))
        return process

    def run(self, command, deadline=COMMAND_SECONDS, check=True):
        """Its output, once it has ended; with check=False (status, output)."""
        process = self.start(command)
        try:
            status = process.wait(code=0 if check else None, deadline=deadline)
        except AssertionError as error:
            self._fail(str(error))
        return process.output() if check else (status, process.output())

    def fetch(self, path):
        """The bytes of a file of the machine's."""
        return base64.b64decode(self.run(["base64", "-w", "8000", path]))

    def put(self, path, data):
        """A small file: the agent reads it byte by byte."""
        self.run("echo %s | base64 -d > %s" % (base64.b64encode(data).decode(), shlex.quote(path)))

    def end_processes(self):
        """kill -9 of all that runs, and waits for it."""
        with self._lock:
            left = list(self._processes.values())
        for process in left:
            process.kill()

    def alive(self):
        return self._child.poll() is None

    def close(self):
        if self.alive():
            self._child.kill()
        self._child.wait()
        if self._reader:
            self._reader.join()
            self._agent.close()
        self._listener.close()
        self._log.close()
