"""bench/racks: steps on two racks of two hosts (network namespaces), 1 Gb/s to each host and 200 Mb/s between the racks.

Rows, each a job of its own with a step's seconds as measured, and as the scheduler predicted them (`sluicectl plan --explain`):
  flat             a worker and a server on each host; trees off
  trees            the same with topology.trees=auto
  all-reduce       the same as flat with job.exchange=allreduce: no server has a part in it
  uneven flat      workers on three of the hosts (two in rack 1), owners spread evenly; trees off
  uneven placed    the same, with the owners where the scheduler puts them
Beside them what plain TCP connections carry between the racks (--only tcp): how busy a step can keep the link.
Then, on two rails of these rates, one of them is throttled to a tenth, or drops all, in the middle of a transfer, and comes
back: how soon the bytes that cross are back at 90 % of what the rails can carry. A step is a push-pull of the whole model.
"""

import argparse
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "deploy", "racks"))
from daemons import Daemons, clean_environment
from network import NetworkError, RackNetwork, bits, enter
import plain_tcp
from processes import BenchError, Commanded, need, step_together
from report import median, table, write_json

MIB = 1 << 20


class Job:
    """Daemons and bench_workers on a RackNetwork; a cluster for each job, so that nothing of one is seen by another."""

    def __init__(self, network, options, folder, name, workers, scheduler_flags=(), worker_flags=()):
        self.network, self.options, self.name = network, options, name
        self.folder = os.path.join(folder, name.replace(" ", "-"))
        os.makedirs(self.folder, exist_ok=True)
        self.daemons = Daemons(network, options.binaries, self.folder)
        self.workers = []
        try:
            self.daemons.start_scheduler(len(network.hosts), list(scheduler_flags) + ["--node.log_level=info"])
            for host in network.hosts:
                self.daemons.start_server(host)
            flags = ["--job.name=racks", "--job.workers=%d" % len(workers), "--job.replicas=0", "--tensors=%d" % options.tensors,
                     "--elements=%d" % (options.mib * MIB // 4 // options.tensors)] + list(worker_flags)
            for rank, host in enumerate(workers):
                own = [f for f in self.daemons.of_host(host) if not f.startswith("--node.rails")]
                self.workers.append(Commanded(
                    network.prefix(host) + [os.path.join(options.binaries, "bench", "harness", "bench_worker")] + own + flags +
                    ["--first_rank=%d" % rank, "--clients=1"], os.path.join(self.folder, "worker-%s.log" % host)))
            for worker in self.workers:
                worker.wait_ready()
        except BaseException:
            self.close()
            raise

    def explain(self):
        program = os.path.join(self.options.binaries, "ctl", "sluicectl")
        done = subprocess.run([program, "--scheduler=" + self.daemons.address, "plan", "--explain", "--json"], capture_output=True,
                              text=True, check=False, env=clean_environment())
        if done.returncode != 0:
            raise BenchError("sluicectl plan --explain: " + done.stderr.strip())
        return json.loads(done.stdout)

    def measure(self):
        step_together(self.workers, 2)   # windows open
        before = self.network.counters()
        seconds = step_together(self.workers, self.options.steps)
        after = self.network.counters()
        said = self.explain()
        crossed = max((after[key][way] - before[key][way]) / self.options.steps for key in after for way in (0, 1))
        number = lambda key: float(said.get(key, 0) or 0) / 1e3
        return {"seconds": seconds, "median_seconds": median(seconds), "predicted_seconds": number("stepMs") or number("step_ms"),
                "crossed_bytes": crossed, "trees": len(said.get("trees", []))}

    def close(self):
        for worker in self.workers:
            worker.close()
        self.daemons.__exit__()


def rows(network, options, folder):
    everywhere, uneven = network.hosts, network.hosts[:3]
    off = ["--topology.trees=off"]
    cases = {"flat": (everywhere, off, []), "trees": (everywhere, ["--topology.trees=auto"], []),
             "all-reduce": (everywhere, off, ["--job.exchange=allreduce"]),
             "uneven flat": (uneven, off + ["--topology.files="], []), "uneven placed": (uneven, off, [])}
    runs = {}
    for name, (workers, flags, worker_flags) in cases.items():
        job = Job(network, options, folder, name, workers, flags, worker_flags)
        try:
            runs[name] = job.measure()
        finally:
            job.close()
    return runs


def degraded_rail(options, folder, rail, fault):
    """Bytes between the racks every 100 ms, before and after a fault of one of two rails, and after its end.

    fault: "throttled" to a tenth, or "gone" (it drops all packets). Rail 0 is the one that links begin with.
    """
    network = RackNetwork(rails=2)

    def change(end):
        for rack in range(1, network.racks + 1):
            if fault == "gone":
                network.cut(rack, rail, whole=end)
            else:
                network.throttle(rack, "%dkbit" % (bits(network.core_rate) / (1e3 if end else 1e4)), rail=rail)

    # One worker in each rack pushes to servers in the other, too: both directions of both rails are busy.
    job = Job(network, options, folder, "rail %d %s" % (rail, fault), [network.hosts[0], network.hosts[2]], ["--topology.trees=off"])
    try:
        step_together(job.workers, 2)
        for worker in job.workers:
            worker.tell("step %d" % 100000)
        samples, begin, bad_at, good_at = [], time.monotonic(), None, None
        total = lambda: sum(up for up, _ in network.counters().values())
        last, last_at = total(), time.monotonic()
        while time.monotonic() - begin < options.before + 2 * options.after:
            time.sleep(0.1)
            if bad_at is None and time.monotonic() - begin >= options.before:
                change(end=False)
                bad_at = time.monotonic() - begin
            if good_at is None and time.monotonic() - begin >= options.before + options.after:
                change(end=True)
                good_at = time.monotonic() - begin
            now, at = total(), time.monotonic()
            samples.append((at - begin, (now - last) / (at - last_at)))
            last, last_at = now, at
    finally:
        for worker in job.workers:
            worker.process.terminate()
        job.close()
        network.remove()
    both = 2 * network.racks * bits(network.core_rate) / 8     # both racks send
    can = both * (0.55 if fault == "throttled" else 0.5)

    def mean(begin, end):
        rates = [rate for at, rate in samples if begin <= at < end]
        return sum(rates) / max(1, len(rates))

    before = mean(1, bad_at)

    # The first moment from which the next second's mean, and that of all the rest, reach 90 % of the share that the workload
    # took before.
    def back(since, until, of):
        least = 0.9 * before / both * of
        starts = [at for at, _ in samples if since <= at < until - 1 and min(mean(at, at + 1), mean(at, until)) >= least]
        return starts[0] - since if starts else None

    end = options.before + 2 * options.after

    return {"rail": rail, "fault": fault, "before_bytes_per_second": before, "rails_bytes_per_second": both,
            "can_bytes_per_second": can, "seconds_to_90_percent": back(bad_at, good_at, can),
            "after_bytes_per_second": mean(bad_at + 3, good_at), "seconds_to_90_percent_of_both": back(good_at, end, both),
            "end_bytes_per_second": mean(good_at + 3, end), "samples": samples}


def rail_lines(runs):
    number = lambda value: "never" if value is None else "%.1f" % value
    lines = []
    for one in runs:
        share, after = one["before_bytes_per_second"] / one["rails_bytes_per_second"], one["after_bytes_per_second"]
        lines.append(["%d %s" % (one["rail"], one["fault"]), "%.1f" % (one["before_bytes_per_second"] / 1e6), "%.2f" % share,
                      number(one["seconds_to_90_percent"]), "%.1f" % (after / 1e6),
                      "%.2f" % (after / one["can_bytes_per_second"]), number(one["seconds_to_90_percent_of_both"]),
                      "%.1f" % (one["end_bytes_per_second"] / 1e6)])
    return table(["rail", "before MB/s", "of both", "back after s", "then MB/s", "of what is left", "it returns: back after s",
                  "then MB/s"], lines)


def main():
    parser = argparse.ArgumentParser(prog="bench/racks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--out", default="out/bench", help="folder for racks.json and logs (%(default)s)")
    parser.add_argument("--mib", type=int, default=32, help="size of the model in MiB (%(default)s)")
    parser.add_argument("--tensors", type=int, default=8, help="of the model (%(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="steps to measure (%(default)s)")
    parser.add_argument("--before", type=float, default=6, help="seconds before a rail fails (%(default)s)")
    parser.add_argument("--after", type=float, default=9, help="seconds that it lasts, and after it (%(default)s)")
    parser.add_argument("--only", choices=("tcp", "steps", "rail"), help="one part alone")
    options = parser.parse_args()
    for program in ("ip", "tc"):
        need(program, "iproute2")
    enter(os.path.abspath(__file__), sys.argv[1:])
    folder = os.path.abspath(os.path.join(options.out, "racks-logs"))
    os.makedirs(folder, exist_ok=True)
    result = {}
    try:
        if options.only != "rail":
            network = RackNetwork()
            if options.only != "steps":
                result["tcp"] = plain_tcp.measure(network, bits(network.core_rate))
            if options.only != "tcp":
                result["steps"] = rows(network, options, folder)
            network.remove()
        if options.only in (None, "rail"):
            result["rails"] = [degraded_rail(options, folder, rail, fault) for fault in ("throttled", "gone") for rail in (1, 0)]
    except (BenchError, NetworkError) as error:
        sys.exit("bench/racks: %s\nLogs are in %s" % (error, folder))
    if "tcp" in result:
        print("plain TCP between the racks, connections of each of two pairs of hosts")
        print(table(["connections", "ways", "share of the link's bandwidth"],
                    [[str(one["connections"]), "both" if one["both_ways"] else "one", "%.2f" % one["share"]] for one in result["tcp"]]))
    if "steps" in result:
        runs = result["steps"]
        flat = {"trees": "flat", "all-reduce": "flat", "uneven placed": "uneven flat"}
        blind = {"uneven flat"}   # its scheduler was not given the topology, so it has nothing to predict from
        lines = [[name, "%.3f" % one["median_seconds"], "-" if name in blind else "%.3f" % one["predicted_seconds"],
                  "-" if name in blind else "%+.0f %%" % (100 * (one["predicted_seconds"] / one["median_seconds"] - 1)),
                  "%.1f" % (one["crossed_bytes"] / MIB), str(one["trees"]),
                  "%.2f" % (one["median_seconds"] / runs[flat.get(name, name)]["median_seconds"])] for name, one in runs.items()]
        print("%d MiB model, two racks of two hosts" % options.mib)
        print(table(["row", "step s", "predicted", "error", "MiB over a rack's link", "trees", "of flat"], lines))
        print("goal: predictions within 15 %")
    if "rails" in result:
        print("two rails between the racks; back: 90 % of what is left, times the share of both that the workload took before")
        print(rail_lines(result["rails"]))
        print("goal: back within 3 s")
    path = os.path.join(options.out, "racks.json")
    write_json(path, result)
    print("written to " + path)


if __name__ == "__main__":
    main()
