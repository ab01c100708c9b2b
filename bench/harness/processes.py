"""Child processes of a benchmark: a Sluice cluster, workers that obey commands, iperf3 and gloo to compare with."""

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

_PR_SET_PDEATHSIG = 1


class BenchError(Exception):
    """What failed, in words."""


def die_with_parent():
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def clean_environment():
    """Settings of the surrounding shell are for other clusters than this one."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "DMLC_", "SLURM_"))
            and k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}


def cpu_seconds(pid):
    """User and system time of a process so far."""
    with open("/proc/%d/stat" % pid) as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid):
    """(now, peak) of what a process holds in memory, shared memory included."""
    values = {}
    with open("/proc/%d/status" % pid) as file:
        for line in file:
            if line.startswith(("VmRSS", "VmHWM")):
                values[line.split(":")[0]] = int(line.split()[1]) * 1024
    return values.get("VmRSS", 0), values.get("VmHWM", 0)


class Commanded:
    """A process that answers each line on its stdin with one line on its stdout."""

    def __init__(self, command, log, environment=None):
        self.name = os.path.basename(log)
        self._log = open(log, "w")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
                                        env=environment or clean_environment(), preexec_fn=die_with_parent)

    @property
    def pid(self):
        return self.process.pid

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            self._log.flush()
            with open(self._log.name) as file:
                raise BenchError("%s ended; its log says:\n%s" % (self.name, file.read()[-2000:]))
        return line.strip()

    def wait_ready(self):
        if self.answer() != "ready":
            raise BenchError("%s did not get ready" % self.name)
        return self

    def ask(self, line):
        self.tell(line)
        return self.answer()

    def close(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()


def step_together(workers, count):
    """`count` steps of all workers at once; the seconds of each step, as the slowest saw it."""
    for worker in workers:
        worker.tell("step %d" % count)
    times = [[float(x) for x in worker.answer().split()] for worker in workers]
    return [max(step) for step in zip(*times)]


class Cluster:
    """A scheduler and servers on free ports. Use as a context: whatever was started is ended at the end."""

    def __init__(self, binaries, folder, label, servers=1, server_flags=(), prefix=None):
        """prefix(role, index) is what to put before a command (a network namespace); roles: scheduler, server, worker."""
        self._binaries, self._folder, self._label = binaries, folder, label
        self._prefix = prefix or (lambda role, index: [])
        self._children, self._workers = [], []
        self._scheduler_flags = ["--node.port=0", "--node.servers=%d" % servers, "--node.log_level=warn"]
        self._server_flags = list(server_flags) + ["--node.log_level=warn"]
        self._servers = servers
        self.server_pids = []
        self.address = None

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self, scheduler_flags=(), server_flags=lambda index: ()):
        port_file = os.path.join(self._folder, self._label + "-scheduler.port")
        if os.path.exists(port_file):
            os.unlink(port_file)
        scheduler = self._start("scheduler", 0, self._scheduler_flags + list(scheduler_flags) +
                                ["--node.port_file=" + port_file])
        host = next((f.split("=", 1)[1] for f in scheduler_flags if f.startswith("--node.listen=")), "127.0.0.1")
        deadline = time.monotonic() + 30
        while self.address is None:
            if scheduler.poll() is not None or time.monotonic() > deadline:
                raise BenchError("the scheduler did not start; see %s-scheduler0.log" % self._label)
            if os.path.exists(port_file):
                with open(port_file) as file:
                    text = file.read().split()
                if text:
                    self.address = "%s:%s" % (host, text[0])
            time.sleep(0.02)
        for index in range(self._servers):
            # All end together: nobody is left to give shards to.
            child = self._start("server", index, ["--node.scheduler=" + self.address, "--node.id=server%d" % index,
                                                  "--node.drain_ms=0"] + self._server_flags + list(server_flags(index)))
            self.server_pids.append(child.pid)

    def _start(self, role, index, arguments):
        log = self._log(role, index)
        command = self._prefix(role, index) + [os.path.join(self._binaries, role, "sluice-" + role)] + arguments
        with open(log, "w") as out:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                     env=clean_environment(), preexec_fn=die_with_parent)
        self._children.append(child)
        return child

    def server_wire_bytes(self):
        """Sent and received by all servers so far, counted by their transports. They need --node.metrics_port=0."""
        total = 0
        for index in range(self._servers):
            with open(self._log("server", index), errors="replace") as file:
                address = re.search(r"metrics at (http\S+)", file.read()).group(1)
            with urllib.request.urlopen(address, timeout=10) as answer:
                total += sum(float(line.rsplit(" ", 1)[1]) for line in answer.read().decode().splitlines()
                             if line.startswith("sluice_server_wire_bytes_"))
        return total

    def _log(self, role, index):
        return os.path.join(self._folder, "%s-%s%d.log" % (self._label, role, index))

    def workers(self, job, count, flags=(), processes=None, flags_of=lambda index: (), binary="bench_worker", clients=True):
        """A job of `count` workers, one process each, or as many as `processes` says; ready to step. clients: the binary
        may hold several."""
        processes = processes or count
        started = []
        for index in range(processes):
            each = count // processes
            command = self._prefix("worker", index) + [os.path.join(self._binaries, "bench", "harness", binary),
                "--node.scheduler=" + self.address, "--job.name=" + job, "--job.workers=%d" % count,
                "--node.log_level=warn"]
            if clients:
                command += ["--clients=%d" % each, "--first_rank=%d" % (index * each)]
            log = os.path.join(self._folder, "%s-%s-worker%d.log" % (self._label, job, index))
            started.append(Commanded(command + list(flags) + list(flags_of(index)), log))
        self._workers += started
        return [worker.wait_ready() for worker in started]

    def release(self, workers):
        """The job of these workers is over."""
        for worker in workers:
            worker.process.stdin.close()
        for worker in workers:
            worker.process.wait(60)
            self._workers.remove(worker)

    def __exit__(self, *_):
        for worker in self._workers:
            if worker.process.poll() is None:
                worker.process.terminate()
        for child in reversed(self._children):
            if child.poll() is None:
                child.terminate()
        for child in [w.process for w in self._workers] + self._children:
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


class Gloo:
    """A two-rank all-reduce of the same size, by python3-torch."""

    def __init__(self, folder, elements, ranks=2):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gloo_rank.py")
        meeting = os.path.join(folder, "gloo-meeting")
        if os.path.exists(meeting):
            os.unlink(meeting)
        environment = dict(clean_environment(), GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
        self.ranks = [Commanded(["/usr/bin/python3", "-B", script, meeting, str(rank), str(ranks), str(elements)],
                                os.path.join(folder, "gloo-%d.log" % rank), environment) for rank in range(ranks)]
        for rank in self.ranks:
            rank.wait_ready()

    def step(self, count):
        return step_together(self.ranks, count)

    def close(self):
        for rank in self.ranks:
            rank.process.stdin.close()
        for rank in self.ranks:
            rank.process.wait(20)


_iperf_port = 25300


def iperf(seconds, arguments=(), server_prefix=(), client_prefix=(), host="127.0.0.1"):
    """Goodput in bytes a second, both directions summed if --bidir is among the arguments."""
    global _iperf_port
    _iperf_port += 1
    server = subprocess.Popen([*server_prefix, "iperf3", "-s", "-1", "-p", str(_iperf_port)], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, preexec_fn=die_with_parent)
    try:
        for attempt in range(20):
            time.sleep(0.2)
            run = subprocess.run([*client_prefix, "iperf3", "-c", host, "-p", str(_iperf_port), "-J", "-t", str(seconds),
                                  *arguments], capture_output=True, text=True, check=False)
            result = json.loads(run.stdout or "{}")
            if "sum_received" in result.get("end", {}):
                end = result["end"]
                bits = end["sum_received"]["bits_per_second"]
                return (bits + end.get("sum_received_bidir_reverse", {}).get("bits_per_second", 0)) / 8
        raise BenchError("iperf3 failed: %s" % result.get("error", run.stderr))
    finally:
        server.terminate()
        server.wait()


def need(program, package):
    if shutil.which(program) is None:
        sys.exit("%s is missing. Install it: apt-get install -y --no-install-recommends %s" % (program, package))


def need_torch():
    if subprocess.run(["/usr/bin/python3", "-c", "import torch.distributed"], capture_output=True, check=False).returncode:
        sys.exit("Debian's torch is missing. Install it: apt-get install -y --no-install-recommends python3-torch")
