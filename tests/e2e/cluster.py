"""Real daemons as child processes of a test. Whatever a Cluster started is ended with it, and nothing else is touched.

Nothing sleeps: a test waits for a line of output, or for the end of a process, with a deadline. Ports are the kernel's
choice, read from what the daemons say.
"""

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

DEADLINE = float(os.environ.get("SLUICE_E2E_DEADLINE", "60"))  # seconds that any single wait may take
BINARIES = os.environ["SLUICE_E2E_BINARIES"]                    # holds scheduler/sluice-scheduler and so on

_PR_SET_PDEATHSIG = 1


def die_with_parent():
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def clean_environment():
    """Settings of the surrounding shell are for other clusters."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "DMLC_", "SLURM_"))
            and k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}


class Watched:
    """Something that runs, and what it has said so far (standard output and error together)."""

    def __init__(self, name):
        self.name = name
        self._lines, self._status = [], None
        self._changed = threading.Condition()

    def heard(self, line):
        with self._changed:
            self._lines.append(line)
            self._changed.notify_all()

    def has_ended(self, status):
        with self._changed:
            self._status = status
            self._changed.notify_all()

    def output(self):
        with self._changed:
            return "\n".join(self._lines)

    def fail(self, what):
        tail = "\n    ".join(self.output().split("\n")[-25:])
        raise AssertionError("%s: %s; it said:\n    %s" % (self.name, what, tail))

    def wait_for(self, pattern, deadline=DEADLINE, start=0):
        """The match of the first line (from number `start`) that has the pattern."""
        end = time.monotonic() + deadline
        next_line = start
        with self._changed:
            while True:
                for line in self._lines[next_line:]:
                    match = re.search(pattern, line)
                    if match:
                        return match
                next_line = len(self._lines)
                ended = self._status is not None
                if ended:
                    break
                left = end - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
        self.fail("no line like /%s/ %s" % (pattern, "before it ended" if ended else "within %g s" % deadline))

    def wait(self, code=0, deadline=DEADLINE):
        """Waits for the end; `code` None takes any."""
        end = time.monotonic() + deadline
        with self._changed:
            while self._status is None and time.monotonic() < end:
                self._changed.wait(max(0, end - time.monotonic()))
            status = self._status
        if status is None:
            self.fail("it did not end within %g s" % deadline)
        if code is not None and status != code:
            self.fail("it ended with %d instead of %d" % (status, code))
        return status

    def ends_before(self, other, deadline=DEADLINE):
        """Waits until one of the two has ended: whether it is this one."""
        end = time.monotonic() + deadline
        while self.running() and other.running():
            if time.monotonic() > end:
                self.fail("neither it nor %s ended within %g s" % (other.name, deadline))
            with self._changed:
                if self._status is None:
                    self._changed.wait(0.1)
        return not self.running()

    def running(self):
        with self._changed:
            return self._status is None


class Process(Watched):
    """A child."""

    def __init__(self, name, command, environment=None):
        super().__init__(name)
        self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, preexec_fn=die_with_parent,
                                       env=dict(clean_environment(), **(environment or {})))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._child.stdout:
            self.heard(line.decode(errors="replace").rstrip("\n"))
        self.has_ended(self._child.wait())

    @property
    def pid(self):
        return self._child.pid

    def signal(self, number):
        self._child.send_signal(number)

    def stop(self):
        """As kill -STOP, and waits until all its threads stand still, which a busy machine takes its time for."""
        self._child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def go_on(self):
        self._child.send_signal(signal.SIGCONT)

    def kill(self):
        """As kill -9, and waits for the end."""
        self._child.kill()
        self.wait(code=None)

    def close(self):
        if self.running():
            self._child.kill()
        self._reader.join()
        self._child.stdout.close()


def binary(role):
    name = "sluicectl" if role == "ctl" else "sluice-" + role
    return os.path.join(BINARIES, role, name)


class Cluster:
    """One scheduler, some servers, and the workers that a test starts."""

    def __init__(self, servers=1, scheduler_args=(), server_args=()):
        self.folder = tempfile.mkdtemp(prefix="sluice-e2e-", dir=os.environ.get("TEST_TMPDIR"))
        self.processes = []
        self.scheduler_args = ["--node.servers=%d" % max(1, servers), "--node.state_file=" + self.path("state"),
                               "--node.lease_ms=10000"] + list(scheduler_args)
        self.port = 0
        self.scheduler = self.start_scheduler()
        self.servers = [self.start_server(i, server_args) for i in range(servers)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def run(self, name, command, environment=None):
        process = Process(name, command, environment)
        self.processes.append(process)
        return process

    def start_scheduler(self):
        """Again on the same port, if it ran before."""
        process = self.run("scheduler", [binary("scheduler"), "--node.port=%d" % self.port] + self.scheduler_args)
        self.port = int(process.wait_for(r"listens on [^ ]*:(\d+)").group(1))
        self.scheduler = process
        return process

    @property
    def address(self):
        return "127.0.0.1:%d" % self.port

    def start_server(self, index, arguments=()):
        return self.run("server-%d" % index, [binary("server"), "--node.scheduler=" + self.address,
                                              "--node.id=server-%d" % index, "--node.loops=1"] + list(arguments))

    def data_port(self, index):
        return int(self.servers[index].wait_for(r"data on [^ ]*:(\d+)").group(1))

    def start_worker(self, rank, arguments):
        return self.run("worker-%d" % rank, [binary("worker"), "--node.scheduler=" + self.address, "--rank=%d" % rank,
                                             "--result=" + self.path("result-%d.json" % rank)] + list(arguments))

    def ctl(self, *arguments, code=0):
        """What sluicectl said."""
        process = self.run("sluicectl", [binary("ctl"), "--scheduler=" + self.address] + list(arguments))
        process.wait(code)
        return process.output()

    def result(self, rank):
        with open(self.path("result-%d.json" % rank)) as file:
            return json.load(file)


def write_csv(path, rows=640, features=12, classes=4):
    """A small problem that can be learnt: the label shows in some of the columns. The same file each time."""
    state = 12345

    def draw():
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state >> 33) / 2.0**31

    with open(path, "w") as file:
        for _ in range(rows):
            label = int(draw() * classes)
            values = [sum(draw() for _ in range(4)) - 2 + (1.5 if j % classes == label else 0) for j in range(features)]
            file.write(",".join([str(label)] + ["%.4f" % v for v in values]) + "\n")
    return path


def train_args(cluster, workers=2, epochs=6, **more):
    """Arguments of a worker; keyword a__b becomes --a.b, a_b stays --a_b."""
    data = more.get("data") or cluster.path("data.csv")
    if "data" not in more and not os.path.exists(data):
        write_csv(data)
    given = {"job__name": "test", "job__workers": workers, "job__optimizer__kind": "momentum",
             "job__optimizer__rate": 0.02, "job__codec_min_elements": 1, "data": data, "model": "mlp", "hidden": 32,
             "batch": 8, "epochs": epochs, "progress": "-", "report_ms": 1, "node__connect_timeout_ms": 60000}
    given.update(more)
    return ["--%s=%s" % (key.replace("__", "."), value) for key, value in given.items()]


def step_pattern(step):
    """A line of progress at this step or (of three digits at most) a later one."""
    return r'"step":(%s)\b' % "|".join(str(s) for s in range(step, 1000))


class TestCase(unittest.TestCase):
    """Runs a whole training and gives the results by rank."""

    def train(self, cluster, workers=2, arguments=None, per_rank=lambda rank: []):
        arguments = arguments or train_args(cluster, workers)
        processes = [cluster.start_worker(rank, arguments + per_rank(rank)) for rank in range(workers)]
        for process in processes:
            process.wait()
        return [cluster.result(rank) for rank in range(workers)]
