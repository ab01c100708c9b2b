"""A cluster whose processes are killed and started again, and what its workers say of their steps."""

import json
import os
import signal
import subprocess
import threading
import time

from processes import BenchError, clean_environment, die_with_parent

PATIENCE = 60  # seconds that any single wait may take


class Steps:
    """What one rank has said: (begin, end, longest gap of a tensor) of each step, over all lives of the rank."""

    def __init__(self):
        self._steps, self._lock = [], threading.Lock()

    def follow(self, pipe):
        def read():
            for line in pipe:
                fields = line.split()
                if len(fields) != 3:
                    continue  # "ready", or the last words of a process that was killed in mid-line
                with self._lock:
                    self._steps.append(tuple(map(float, fields)))
        threading.Thread(target=read, daemon=True).start()

    def between(self, begin, end):
        """The steps that ended in between."""
        with self._lock:
            return [step for step in self._steps if begin <= step[1] < end]


class FaultCluster:
    """Use as a context: whatever it started is ended at the end, and nothing else is touched."""

    def __init__(self, binaries, folder, label, servers=2, workers=2, job_flags=()):
        self._binaries, self._folder, self._label = binaries, folder, label
        self._servers, self._workers, self._job_flags = servers, workers, list(job_flags)
        self._children = {}  # (role, index) -> Popen of its present life
        self._port = 0
        self.steps = [Steps() for _ in range(workers)]

    def __enter__(self):
        try:
            for suffix in ("state", "state-wal", "state-shm"):
                if os.path.exists(self._path(suffix)):
                    os.unlink(self._path(suffix))
            self.start("scheduler", 0)
            for index in range(self._servers):
                self.start("server", index)
            for index in range(self._workers):
                self.start("worker", index)
            self.wait_protected()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for child in self._children.values():
            if child.poll() is None:
                child.kill()
        for child in self._children.values():
            child.wait()

    def _path(self, name):
        return os.path.join(self._folder, "%s-%s" % (self._label, name))

    def start(self, role, index):
        """A new life of this process, under the same name; the scheduler on the same port."""
        program = os.path.join(self._binaries, role, "sluice-" + role)
        if role == "scheduler":
            port_file = self._path("port")
            if os.path.exists(port_file):
                os.unlink(port_file)
            flags = ["--node.port=%d" % self._port, "--node.port_file=" + port_file,
                     "--node.state_file=" + self._path("state"), "--node.servers=%d" % self._servers]
        elif role == "server":
            flags = ["--node.scheduler=" + self.address, "--node.id=server-%d" % index, "--node.loops=1"]
        else:
            program = os.path.join(self._binaries, "bench", "harness", "bench_worker")
            flags = ["--node.scheduler=" + self.address, "--first_rank=%d" % index, "--job.name=faults",
                     "--job.workers=%d" % self._workers, "--node.log_level=info"] + self._job_flags
        worker = role == "worker"
        with open(self._path("%s%d.log" % (role, index)), "a") as log:
            child = subprocess.Popen([program] + flags, stdin=subprocess.PIPE if worker else subprocess.DEVNULL,
                                     stdout=subprocess.PIPE if worker else log, stderr=log, text=True,
                                     env=clean_environment(), preexec_fn=die_with_parent)
        self._children[role, index] = child
        if worker:
            child.stdin.write("train\n")
            child.stdin.flush()
            self.steps[index].follow(child.stdout)
        elif role == "scheduler":
            self.wait_for(lambda: os.path.exists(port_file) and os.path.getsize(port_file), "the scheduler's port")
            with open(port_file) as file:
                self._port = int(file.read().split()[0])

    @property
    def address(self):
        return "127.0.0.1:%d" % self._port

    def kill(self, role, index):
        """kill -9; the moment just before it."""
        child = self._children[role, index]
        when = time.monotonic()
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        return when

    def ctl(self, *arguments):
        """What sluicectl answers, or None where nobody does."""
        program = os.path.join(self._binaries, "ctl", "sluicectl")
        done = subprocess.run([program, "--scheduler=" + self.address, "--json", "--timeout=5", *arguments],
                              capture_output=True, text=True, check=False, env=clean_environment())
        return json.loads(done.stdout) if done.returncode == 0 else None

    def job(self):
        status = self.ctl("status") or {}
        return (status.get("jobs") or [{}])[0], status

    def protected(self):
        """Everybody is there, and any server may be lost."""
        job, status = self.job()
        return (job.get("is_protected", False) and job.get("workers_alive") == self._workers and
                sum(m.get("role") == "ROLE_SERVER" and m.get("alive", False) and not m.get("unheard", False)
                    for m in status["members"]) == self._servers)

    def wait_for(self, condition, what, patience=PATIENCE):
        deadline = time.monotonic() + patience
        while not condition():
            if time.monotonic() > deadline:
                raise BenchError("%s: not there after %d s; logs: %s*" % (what, patience, self._path("")))
            time.sleep(0.05)

    def wait_steps(self, count):
        """Until rank 0 has done so many steps more."""
        begin = time.monotonic()
        self.wait_for(lambda: len(self.steps[0].between(begin, float("inf"))) >= count, "%d steps" % count,
                      PATIENCE + 10 * count)

    def wait_protected(self):
        """Until the next fault is one that the job must survive."""
        self.wait_for(self.protected, "a protected job")
        self.next_push(time.monotonic())

    def next_push(self, when):
        """The end of the first whole step of the first worker that began one after this moment: all its pushes are
        applied. At most one step later than the first push that is."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            found = [step for steps in self.steps for step in steps.between(when, float("inf")) if step[0] >= when]
            if found:
                return min(step[1] for step in found)
            time.sleep(0.005)
        raise BenchError("no push was applied for %d s; logs: %s*" % (PATIENCE, self._path("")))
