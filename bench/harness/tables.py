"""bench/tables: rows a second and GB/s of a table's pulls and pushes, next to a plain loop over one flat array in this run.

One server holds the rows. Ids follow Zipf's law, exponent 1.05, in batches of 4,096, some of them in flight; a row's place has
nothing to do with its popularity. `gather` copies the same rows, by index, from a flat array in the worker's own process: the
memory's limit. Contestants take turns; medians.
"""

import argparse
import os
import sys

from processes import BenchError, Cluster, cpu_seconds, resident_bytes
from report import median, table, write_json

BATCH = 4096


class TableWorkers:
    """One job with one table, of `count` workers."""

    def __init__(self, cluster, label, dim, flags, count=1):
        self.dim = dim
        self.workers = cluster.workers(label, count, flags_of=lambda index: ["--dim=%d" % dim, "--share=%d" % index,
                                                                            "--shares=%d" % count] + flags,
                                       binary="table_worker", clients=False)

    def all(self, command):
        """The longest time that one of them took."""
        for worker in self.workers:
            worker.tell(command)
        return max(float(worker.answer() or 0) for worker in self.workers)

    def rates(self, command, options):
        seconds = self.all("%s %d %d %d" % (command, BATCH, options.in_flight, options.batches))
        rows = BATCH * options.batches * len(self.workers) / seconds
        return rows


def throughput(binaries, folder, options, dim, result, rows):
    """Pulls and pushes over both transports, and the plain loop."""
    with Cluster(binaries, folder, "tables%d" % dim, server_flags=["--data.pool_bytes=1GiB"]) as cluster:
        jobs = {}
        for transport in ("shm", "tcp"):
            jobs[transport] = TableWorkers(cluster, "%s%d" % (transport, dim), dim, ["--data.transport=" + transport])
            jobs[transport].all("fill %d" % options.rows)
        samples = {}
        note = lambda name, value: samples.setdefault(name, []).append(value)
        for repetition in range(options.reps + 1):
            warm = repetition > 0
            seconds = jobs["shm"].all("gather %d %d" % (BATCH, options.batches))
            if warm:
                note("gather", BATCH * options.batches / seconds)
            for transport, job in jobs.items():
                for command in ("pull", "push"):
                    rate = job.rates(command, options)
                    if warm:
                        note("%s %s" % (command, transport), rate)
        latency = {}
        for transport, job in jobs.items():
            job.workers[0].tell("latency 256 2000")
            times = sorted(float(x) for x in job.workers[0].answer().split())
            latency[transport] = {"median_us": median(times) * 1e6, "p99_us": times[len(times) * 99 // 100] * 1e6}
        now, _ = resident_bytes(cluster.server_pids[0])
        for job in jobs.values():
            cluster.release(job.workers)
    gather = median(samples["gather"])
    result["dim %d" % dim] = {"rows_per_second": {k: median(v) for k, v in samples.items()},
                              "of_gather": {k: median(v) / gather for k, v in samples.items()},
                              "pull_256": latency, "server_bytes_per_row": now / (2 * options.rows)}
    for name, values in samples.items():
        rate = median(values)
        rows.append([str(dim), name, "%.2f" % (rate / 1e6), "%.2f" % (rate * dim * 4 / 1e9), "%.2f" % (rate / gather),
                     ">= 0.5" if name == "pull shm" else ""])
    for transport, one in latency.items():
        print("dim %d, pull of 256 ids over %s: %.0f us median, %.0f us at 99 %%" %
              (dim, transport, one["median_us"], one["p99_us"]))
    print("dim %d: server %.0f bytes a row in all (values alone are %d)" % (dim, now / (2 * options.rows), 4 * dim))


def modes(binaries, folder, options, result):
    """Two workers push and pull in turn: what the ways of keeping step cost."""
    rows = []
    for mode in ("bsp", "ssp", "asp"):
        with Cluster(binaries, folder, "modes-" + mode) as cluster:
            flags = ["--job.mode=" + mode, "--job.optimizer.kind=sgd"]
            job = TableWorkers(cluster, "modes-" + mode, 16, flags, count=2)
            job.all("fill %d" % min(options.rows, 1000000))
            rates = []
            for repetition in range(options.reps + 1):
                rate = job.rates("push", options)
                if repetition > 0:
                    rates.append(rate)
            cluster.release(job.workers)
        result[mode] = median(rates)
        rows.append([mode.upper(), "%.2f" % (median(rates) / 1e6)])
    print(table(["two workers, dim 16, pushes", "million rows/s"], rows))


def main():
    parser = argparse.ArgumentParser(prog="bench/tables", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--out", default="out/bench", help="folder for tables.json and logs (%(default)s)")
    parser.add_argument("--rows", type=int, default=10000000, help="rows of the table (%(default)s)")
    parser.add_argument("--dims", default="16,64", help="values a row (%(default)s)")
    parser.add_argument("--batches", type=int, default=500, help="batches of 4,096 ids a measurement (%(default)s)")
    parser.add_argument("--in-flight", type=int, default=4, help="batches asked for at a time (%(default)s)")
    parser.add_argument("--reps", type=int, default=5, help="interleaved repetitions (%(default)s)")
    options = parser.parse_args()
    folder = os.path.abspath(os.path.join(options.out, "tables-logs"))
    os.makedirs(folder, exist_ok=True)
    result, rows = {"rows": options.rows}, []
    try:
        for dim in map(int, options.dims.split(",")):
            throughput(options.binaries, folder, options, dim, result, rows)
        print()
        print(table(["dim", "%d million rows" % (options.rows // 1000000), "million rows/s", "GB/s", "of gather", "goal"], rows))
        print()
        modes(options.binaries, folder, options, result)
    except BenchError as error:
        sys.exit("bench/tables: %s\nLogs are in %s" % (error, folder))
    path = os.path.join(options.out, "tables.json")
    write_json(path, result)
    print("written to " + path)


if __name__ == "__main__":
    main()
