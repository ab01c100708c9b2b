"""All-reduce among processes of this machine, Sluice's against gloo's, in turns: bench/collectives --help."""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


class Ranks:
    """The processes of one group."""

    def __init__(self, commands):
        self.children = [subprocess.Popen(c, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for c in commands]
        for child in self.children:
            if child.stdout.readline().strip() != "ready":
                raise SystemExit("a rank did not come up: " + " ".join(child.args))

    def step(self, steps):
        """Seconds of each step: that of the slowest rank."""
        for child in self.children:
            child.stdin.write("step %d\n" % steps)
            child.stdin.flush()
        times = [[float(word) for word in child.stdout.readline().split()] for child in self.children]
        return [max(at) for at in zip(*times)]

    def close(self):
        for child in self.children:
            child.stdin.close()
        for child in self.children:
            child.wait()


def has_gloo(python):
    return subprocess.run([python, "-c", "import torch.distributed"], stderr=subprocess.DEVNULL).returncode == 0


def measure(options, elements, algorithm, gloo):
    folder = tempfile.mkdtemp(prefix="sluice-collectives-")
    ranks = range(options.workers)
    try:
        rank = os.path.join(options.binaries, "bench/harness/collective_rank")
        ours = Ranks([[rank, folder, str(r), str(options.workers), str(elements), algorithm, options.transport] for r in ranks])
        theirs = None
        if gloo:
            theirs = Ranks([[options.python, "-B", os.path.join(HERE, "gloo_rank.py"), os.path.join(folder, "meeting"), str(r),
                             str(options.workers), str(elements)] for r in ranks])
        mine, other, ratios = [], [], []
        for turn in range(options.turns + 1):
            a = statistics.median(ours.step(options.steps))
            b = statistics.median(theirs.step(options.steps)) if theirs else None
            if turn == 0:
                continue   # links and pages are made
            mine.append(a)
            if b:
                other.append(b)
                ratios.append(b / a)
        ours.close()
        if theirs:
            theirs.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    row = {"workers": options.workers, "bytes": 4 * elements, "algorithm": algorithm, "transport": options.transport,
           "sluice_ms": round(1e3 * statistics.median(mine), 3)}
    if ratios:
        row["gloo_ms"] = round(1e3 * statistics.median(other), 3)
        row["gloo_over_sluice"] = round(statistics.median(ratios), 3)
    return row


def main():
    parser = argparse.ArgumentParser(prog="bench/collectives", description=__doc__)
    parser.add_argument("--binaries", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--elements", type=int, nargs="+", default=[256, 65536, 1 << 20, 16 << 20])
    parser.add_argument("--algorithms", nargs="+", default=["auto"], help="auto, ring, halving_doubling, double_tree")
    parser.add_argument("--transport", default="auto", choices=["auto", "tcp"])
    parser.add_argument("--steps", type=int, default=5, help="all-reduces in a turn, of which the median counts")
    parser.add_argument("--turns", type=int, default=5, help="pairs of turns, of which the median ratio counts")
    parser.add_argument("--python", default="/usr/bin/python3", help="that has torch, for gloo")
    options = parser.parse_args()
    gloo = has_gloo(options.python)
    if not gloo:
        print("no torch.distributed in %s: Sluice alone" % options.python, file=sys.stderr)
    for elements in options.elements:
        for algorithm in options.algorithms:
            print(json.dumps(measure(options, elements, algorithm, gloo)), flush=True)


if __name__ == "__main__":
    main()
