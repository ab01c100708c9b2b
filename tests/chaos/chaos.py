"""Random faults in real processes: a training that is killed and frozen again and again ends with the bits of another.

By hand (the same seed draws the same faults; the instants differ):
  bazel build //ctl:sluicectl //scheduler:sluice-scheduler //server:sluice-server //worker:sluice-worker
  tests/chaos/run.sh --binaries="$(bazel info bazel-bin)" --seed=7
  tests/chaos/run.sh --binaries="$(bazel info bazel-bin)" --long      one fault a minute, a quarter of an hour

1. A short training says how many steps this machine does, so how many the next two do.
2. The reference: two workers and two servers train without faults and without copies of shards. It gives the bits of
   the parameters, the count of rounds, and the usual rate.
3. The same training with one copy of each shard, under faults, each drawn from a deck that the seed shuffles:
     kill      kill -9 of the scheduler, a server, a worker. Workers and the scheduler start again at once, a server
               after the next applied push: it would tell the scheduler by its name that the former one is gone
     freeze    SIGSTOP, and SIGCONT after a time below or above the lease. A server that is frozen beyond it is lost,
               and wakes up as one that believes to own what others own now. (Over shared memory, as here, a worker may
               have to wait for it to wake or die: what was lent to it is its own again only then. Over TCP the job
               goes on without it.)
   The next fault follows as soon as the job is protected again (--every: so many seconds after the last at the least).
   The time to the next applied push ends with the first step of any worker all of which happened after the signal.
4. Near the end of the training, or after twice its usual length, the faults stop, and the workers end.
5. Checked: both workers ended in order after all steps, with the reference's bits, and no partition had more or fewer
   rounds than in the reference. Gradients are int8 with a residual and the optimizer has momentum, so a push that is
   lost or applied twice in any round changes what follows. This is how "lost 0, doubled 0" is known. Printed beside it:
   pushes that servers recognised as repeats, as counted by those that live at the end.
6. Printed: goodput under faults over the reference's (which has no copies to keep); mean, p50 and p99 of the time to
   the next applied push for each kind of fault and role; the same as a line of JSON.

Only processes that it started are signalled, by their ids.
"""

import argparse
import json
import os
import random
import re
import signal
import sys
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))


def options_of(arguments):
    parser = argparse.ArgumentParser(prog="tests/chaos/run.sh")
    parser.add_argument("--binaries", default=os.getcwd(), help="where scheduler/sluice-scheduler and so on lie")
    parser.add_argument("--seed", type=int, default=1, help="of the faults (%(default)s)")
    parser.add_argument("--seconds", type=float, default=12, help="of training without faults (%(default)s)")
    parser.add_argument("--every", type=float, default=0, help="seconds from fault to fault at the least (%(default)s)")
    parser.add_argument("--long", action="store_true", help="--seconds=900 --every=60")
    options = parser.parse_args(arguments)
    if options.long:
        options.seconds, options.every = 900, 60
    return options


OPTIONS = options_of(sys.argv[1:])
os.environ["SLUICE_E2E_BINARIES"] = os.path.abspath(OPTIONS.binaries)

from cluster import Cluster, train_args, write_csv  # noqa: E402  (it reads where the programs lie)

WORKERS, SERVERS = 2, 2
PATIENCE = 60        # seconds that any single wait may take
LOOK = 0.005         # between two looks at what has changed
LEASE = 5            # seconds, the default; tests/e2e has a longer one
CALIBRATION = 400    # steps
LAST_FAULT = 0.85    # of all steps
LONGEST = 2          # times what the training takes without faults: then the faults stop, too


class ChaosError(Exception):
    """What was not as it must be, in words."""


def check(condition, text):
    if not condition:
        raise ChaosError(text)


class Training:
    """A cluster and its two workers; how far each has come is read from their lines of progress."""

    def __init__(self, steps, replicas):
        self.steps = steps
        self.cluster = Cluster(SERVERS, ["--node.lease_ms=%d" % (LEASE * 1000)], ["--node.metrics_port=0"])
        write_csv(self.cluster.path("data.csv"), rows=2048, features=64)
        self._arguments = train_args(self.cluster, WORKERS, epochs=0, steps=steps, hidden=256, batch=16,
                                     eval_every=0, job__replicas=replicas, job__codec="int8",
                                     job__optimizer__kind="momentum", job__optimizer__rate="0.01",
                                     data__snapshot_dir=self.cluster.path("snapshots"))
        self._files = {}     # rank -> progress of its present life, open
        self._lives = [0] * WORKERS
        self.reached = [0] * WORKERS
        self.workers = [None] * WORKERS
        for rank in range(WORKERS):
            self.start("worker", rank)

    def start(self, role, index):
        if role == "scheduler":
            self.cluster.start_scheduler()
        elif role == "server":
            self.cluster.servers[index] = self.cluster.start_server(index, ["--node.metrics_port=0"])
        else:
            self._lives[index] += 1
            path = self.cluster.path("progress-%d-%d" % (index, self._lives[index]))
            open(path, "w").close()
            self._files[index] = open(path, errors="replace")
            self.workers[index] = self.cluster.start_worker(index, self._arguments + ["--progress=" + path])

    def process(self, role, index):
        cluster = self.cluster
        return {"scheduler": [cluster.scheduler], "server": cluster.servers, "worker": self.workers}[role][index]

    def step(self):
        """The furthest step that any worker has said."""
        for rank, file in self._files.items():
            found = re.findall(r'"step":(\d+),.*\n', file.read())
            if found:
                self.reached[rank] = max(self.reached[rank], int(found[-1]))
        return max(self.reached)

    def wait(self, condition, what):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                raise ChaosError("%s: not within %d s. The scheduler said:\n%s\nworker 0:\n%s\nworker 1:\n%s" % (
                    what, PATIENCE, *(p.output()[-3000:] for p in [self.cluster.scheduler] + self.workers)))
            for worker in self.workers:
                if not worker.running():
                    check(worker.wait(code=None) == 0, "%s failed:\n%s" % (worker.name, worker.output()[-3000:]))
            time.sleep(LOOK)

    def ended(self):
        """Whether the training came to its end, as it does while the scheduler is frozen."""
        return not all(worker.running() for worker in self.workers)

    def status(self):
        # Nobody may answer: the scheduler has just been started, or is still reading its state.
        process = self.cluster.run("sluicectl", [os.path.join(OPTIONS.binaries, "ctl", "sluicectl"), "status", "--json",
                                                 "--scheduler=" + self.cluster.address, "--timeout=5"])
        code = process.wait(code=None)
        text = process.output()
        process.close()
        self.cluster.processes.remove(process)
        return json.loads(text) if code == 0 else {}

    def protected(self):
        status = self.status()
        job = (status.get("jobs") or [{}])[0]
        heard = [m for m in status.get("members", []) if m.get("alive") and not m.get("unheard")]
        return (job.get("is_protected", False) and job.get("workers_alive") == WORKERS and
                sum(m["role"] == "ROLE_SERVER" for m in heard) == SERVERS)

    def repeats(self):
        """Pushes that came again and were not applied again."""
        total = 0
        for server in self.cluster.servers:
            address = server.wait_for(r"metrics at (http\S+)").group(1)
            with urllib.request.urlopen(address, timeout=10) as answer:
                total += sum(float(line.rsplit(" ", 1)[1]) for line in answer.read().decode().splitlines()
                             if line.startswith("sluice_server_duplicates_total"))
        return int(total)

    def end(self):
        """Bits and rounds, after both workers have ended in order."""
        for worker in self.workers:
            worker.wait(deadline=max(PATIENCE, OPTIONS.seconds * 3))
        results = [self.cluster.result(rank) for rank in range(WORKERS)]
        for result in results:
            check(result["steps"] == self.steps, "a worker made %d of %d steps" % (result["steps"], self.steps))
        hashes = {result["params_hash"] for result in results}
        check(len(hashes) == 1, "the workers' parameters differ from each other")
        return hashes.pop(), int(self.status()["jobs"][0]["round"])


def fault_free(steps):
    """(bits, rounds), steps a second."""
    training = Training(steps, replicas=0)
    with training.cluster:
        training.wait(lambda: training.step() > steps * 0.1, "the first tenth of the reference")
        begin, first = time.monotonic(), training.step()
        while training.step() < steps * 0.9:
            training.wait(lambda: True, "")
        rate = (training.step() - first) / (time.monotonic() - begin)
        return training.end(), rate


def faults(seed):
    """(kind, role, index, seconds of a freeze), without end: kills are the larger part of each deck."""
    source = random.Random(seed)
    while True:
        deck = [("kill", "server", i, 0) for i in range(SERVERS)] + [("kill", "worker", i, 0) for i in range(WORKERS)]
        deck += [("kill", "scheduler", 0, 0)]
        deck += [("freeze", source.choice(["server", "worker", "scheduler"]), 0, source.choice([0.3, 1.5]))]
        deck += [("freeze", source.choice(["server", "server", "worker", "scheduler"]), 0, LEASE + 2)]
        source.shuffle(deck)
        yield from deck


def inflict(training, kind, role, index, seconds):
    """Seconds from the signal to the next applied push."""
    process = training.process(role, index)
    before = training.step()
    when = time.monotonic()
    if kind == "kill":
        process.kill()
        if role != "server":
            training.start(role, index)
    else:
        process.signal(signal.SIGSTOP)
    # Lines are of steps whose own pushes are on their way: the third from here has only pushes that began after the
    # signal, and those before it were applied.
    applied = None
    thaw = when + seconds if kind == "freeze" else None

    def done():
        nonlocal applied, thaw
        if applied is None and training.step() >= before + 3:
            applied = time.monotonic()
        if thaw is not None and time.monotonic() >= thaw:
            process.signal(signal.SIGCONT)
            thaw = None
        return applied is not None and thaw is None

    try:
        training.wait(done, "the next applied push after %s of %s %d" % (kind, role, index))
    finally:
        if thaw is not None:
            process.signal(signal.SIGCONT)
    if kind == "kill" and role == "server":
        training.start(role, index)
    return applied - when


def under_faults(steps):
    """(bits, rounds), steps a second, [(name of the fault, seconds to the next applied push)], repeats."""
    training = Training(steps, replicas=1)
    with training.cluster:
        training.wait(training.protected, "a protected job")
        training.wait(lambda: training.step() > 10, "the first steps")
        begin, first, made = time.monotonic(), training.step(), []
        for fault in faults(OPTIONS.seed):
            kind, role, index, seconds = fault
            next_at = begin + len(made) * OPTIONS.every
            training.wait(lambda: training.step() > steps * LAST_FAULT or time.monotonic() >= next_at, "the next fault")
            if training.step() > steps * LAST_FAULT or time.monotonic() - begin > LONGEST * OPTIONS.seconds:
                break
            name = "kill of " + role if kind == "kill" else "freeze of %s for %g s" % (role, seconds)
            took = inflict(training, *fault)
            made.append((name, took))
            print("  %6.2f s, step %6d: %s, number %d: %.2f s to the next applied push" %
                  (time.monotonic() - begin, training.step(), name, index, took), flush=True)
            training.wait(lambda: training.ended() or training.protected(), "protection after the %s" % name)
            if training.ended():
                break
        rate = (training.step() - first) / (time.monotonic() - begin)
        return training.end(), rate, made, training.repeats()


def summary(times):
    ordered = sorted(times)
    at = lambda q: ordered[min(len(ordered) - 1, int(q * len(ordered)))]
    return {"count": len(ordered), "mean": sum(ordered) / len(ordered), "p50": at(0.5), "p99": at(0.99)}


def main():
    _, rate = fault_free(CALIBRATION)
    steps = int(rate * OPTIONS.seconds)
    expected, usual = fault_free(steps)
    print("reference: %d steps, %.0f a second, bits %s, %d rounds" % (steps, usual, *expected), flush=True)
    got, rate, made, repeats = under_faults(steps)
    print("under %d faults: %.0f steps a second, bits %s, %d rounds" % (len(made), rate, *got))
    check(made, "no fault was made: the training is too short")
    check(got[1] == expected[1], "rounds: %d instead of %d" % (got[1], expected[1]))
    check(got[0] == expected[0], "the bits differ from the reference's: pushes were lost, or applied twice")
    by_fault = {name: summary([t for n, t in made if n == name]) for name in sorted({n for n, _ in made})}
    for name, figures in by_fault.items():
        print("%-32s %3d  mean %.2f s  p50 %.2f s  p99 %.2f s" % (name, *figures.values()))
    print("lost pushes 0, doubled pushes 0 (equal bits and rounds); %d pushes were recognised as repeats" % repeats)
    print("goodput over fault-free: %.2f" % (rate / usual))
    print(json.dumps({"seed": OPTIONS.seed, "faults": len(made), "goodput": rate / usual, "lost": 0, "doubled": 0,
                      "repeats_recognised": repeats, "seconds_to_next_push": by_fault}))


if __name__ == "__main__":
    try:
        main()
    except (ChaosError, AssertionError) as error:
        sys.exit("tests/chaos, seed %d: %s" % (OPTIONS.seed, error))
