"""bench/faults: what replication costs, what moving a server's state costs, and what kills cost a job.

Steps are whole push-pulls of the model by two workers on this machine; where a job "computes", its workers sleep, as
they would while another device computes. Servers have one event loop each, leases and heartbeats are the defaults."""

import argparse
import os
import random
import sys
import time

from fault_cluster import FaultCluster
from processes import BenchError, Cluster, cpu_seconds, step_together
from report import median, table, write_json

MIB = 1 << 20
METRICS_SECONDS = 0.5  # how old a server's counters may be
TENSOR_MIB = 4  # as large as a partition: a tensor's round is a partition's


def model(mib):
    return ["--tensors=%d" % max(1, mib // TENSOR_MIB), "--elements=%d" % (min(mib, TENSOR_MIB) * MIB // 4)]


def passes(ms):
    """Two thirds of the time that a step computes go to the backward pass."""
    return ["--backward_ms=%g" % (ms * 2 / 3), "--forward_ms=%g" % (ms / 3)]


def update(options):
    """How the gradient of `replication` is coded, and what the servers do with it."""
    flags = ["--job.codec=" + options.codec]
    if options.optimizer:
        flags += ["--job.optimizer.kind=" + options.optimizer, "--job.optimizer.rate=0.001"]
    return flags


def replication(folder, options):
    """The same job with one copy of each shard and with none, in turns."""
    result, rows = {}, []
    copies = {"none": 0, "one": 1}
    for compute in sorted(set(options.compute_ms), reverse=True) + [0]:
        name = "computing %g ms" % compute if compute else "pushing only"
        times = {c: [] for c in copies}
        cpu, wire = dict.fromkeys(copies, 0.0), {}
        clusters = {c: Cluster(options.binaries, folder, "replication-%g-%s" % (compute, c), servers=2,
                               server_flags=["--node.loops=1", "--node.metrics_port=0"]) for c in copies}
        try:
            jobs = {}
            for c, cluster in clusters.items():
                cluster.start(server_flags=lambda index: ["--node.log_level=info"])  # they say where their metrics are
                flags = model(options.mib) + passes(compute) + ["--job.replicas=%d" % copies[c]] + update(options)
                jobs[c] = cluster.workers(c, 2, flags)
                step_together(jobs[c], 2)   # warms memory, windows and caches
            time.sleep(2 * METRICS_SECONDS)
            before = {c: cluster.server_wire_bytes() for c, cluster in clusters.items()}
            for _ in range(options.reps):
                for c, cluster in clusters.items():
                    used = sum(map(cpu_seconds, cluster.server_pids))
                    times[c] += step_together(jobs[c], options.steps)
                    cpu[c] += sum(map(cpu_seconds, cluster.server_pids)) - used
            time.sleep(2 * METRICS_SECONDS)
            for c, cluster in clusters.items():
                wire[c] = cluster.server_wire_bytes() - before[c]
                cluster.release(jobs[c])
        finally:
            for cluster in clusters.values():
                cluster.__exit__()
        steps = options.reps * options.steps
        part = {"compute_ms": compute,
                "step_seconds": {c: median(times[c]) for c in copies},
                "ratio": median(times["one"]) / median(times["none"]),
                "server_cpu_seconds_per_step": {c: cpu[c] / steps for c in copies},
                "wire_bytes_per_step": {c: wire[c] / steps for c in copies}}
        result[name] = part
        for c in copies:
            first = c == "none"
            rows.append(["%s, %s" % (name, "no copies" if first else "one copy"),
                         "%.1f" % (part["step_seconds"][c] * 1e3), "" if first else "%.3f" % part["ratio"],
                         "%.0f" % (part["wire_bytes_per_step"][c] / MIB),
                         "%.1f" % (part["server_cpu_seconds_per_step"][c] * 1e3),
                         "<= 1.15" if not first and compute else ""])
    without, with_one = (result["pushing only"]["step_seconds"][c] for c in copies)
    result["compute_ms_for_1.15"] = max(0.0, (with_one - 1.15 * without) / 0.15 * 1e3)
    print(table(["step of %d MiB, 2 workers, codec %s, %s" % (options.mib, options.codec, options.optimizer or "mean"),
                 "ms", "ratio", "server wire MiB", "server CPU ms", "goal"], rows))
    print("without overlap the ratio would be 1.15 at %.0f ms of computing" % result["compute_ms_for_1.15"])
    return result


def migration(folder, options):
    """Drains one of three servers while a job trains."""
    # Momentum doubles what is kept. Each of three servers owns a third, and has a third as copies.
    mib = options.move_mib * 3 // 4 // TENSOR_MIB * TENSOR_MIB
    flags = model(mib) + passes(options.move_compute_ms) + ["--job.optimizer.kind=momentum", "--job.optimizer.rate=0"]
    with FaultCluster(options.binaries, folder, "migration", servers=3, job_flags=flags) as cluster:
        steps = cluster.steps[0]
        cluster.wait_steps(4)          # warms memory
        begin = time.monotonic()
        cluster.wait_steps(options.move_steps)
        before = steps.between(begin, float("inf"))
        began = time.monotonic()
        cluster.ctl("drain", "server-2")
        cluster.wait_for(lambda: (cluster.ctl("drain-status", "server-2") or {}).get("empty", False), "an empty server",
                         options.patience)
        ended = time.monotonic()
        cluster.wait_steps(options.move_steps + 1)
        during = [step for step in steps.between(began, float("inf")) if step[0] < ended]   # whatever it overlapped
        after = [step for step in steps.between(ended, float("inf")) if step[0] >= ended]
    usual = median([end - begin for begin, end, _ in before + after])
    gap = max(step[2] for step in during)
    usual_gap = median([step[2] for step in before + after])
    result = {"moved_bytes": options.move_mib * MIB, "seconds": ended - began, "steps": len(during),
              "usual_step_seconds": usual, "step_seconds": [end - begin for begin, end, _ in during],
              "slowdown": sum(end - begin for begin, end, _ in during) / (usual * len(during)) - 1,
              "slowest_step_rounds": max(end - begin for begin, end, _ in during) / usual,
              "usual_gap_rounds": usual_gap / usual, "longest_gap_rounds": gap / usual,
              "longest_usual_gap_rounds": max(step[2] for step in before + after) / usual,
              "longest_pause_rounds": (gap - usual_gap) / usual}
    print(table(["drain of a server with %d MiB" % options.move_mib, "measured", "goal"], [
        ["seconds", "%.1f" % result["seconds"], ""],
        ["steps meanwhile", str(len(during)), ""],
        ["usual step, ms", "%.0f" % (usual * 1e3), ""],
        ["slowdown meanwhile", "%.1f %%" % (100 * result["slowdown"]), "<= 10 %"],
        ["longest gap between a partition's rounds, in steps", "%.2f" % result["longest_gap_rounds"], ""],
        ["of that, pause", "%.2f" % result["longest_pause_rounds"], "<= 1"],
        ["the same without a move, the longest gap", "%.2f" % result["longest_usual_gap_rounds"], ""]]))
    return result


def quantile(values, q):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def summary(values):
    return {"count": len(values), "mean": sum(values) / len(values), "p50": quantile(values, 0.5),
            "p99": quantile(values, 0.99), "max": max(values), "all": values}


def one_kill(cluster, role, index):
    """Kills, starts again, and gives the seconds to the next applied push. A server comes back only after that: it
    would tell the scheduler by its name that the former one is gone."""
    when = cluster.kill(role, index)
    if role != "server":
        cluster.start(role, index)
    seconds = cluster.next_push(when) - when
    if role == "server":
        cluster.start(role, index)
    return seconds


ROLES = [("server", 0), ("server", 1), ("worker", 0), ("worker", 1), ("scheduler", 0)]


def small_job(options):
    return model(options.kill_mib) + passes(options.kill_compute_ms)


def kills(folder, options):
    """kill -9 of each role, again and again, as soon as the job is protected again."""
    result, rows = {}, []
    with FaultCluster(options.binaries, folder, "kills", job_flags=small_job(options)) as cluster:
        for role in ("server", "worker", "scheduler"):
            places = [place for place in ROLES if place[0] == role]
            times = []
            for i in range(options.kills):
                times.append(one_kill(cluster, *places[i % len(places)]))
                cluster.wait_protected()
            result[role] = summary(times)
            rows.append([role, str(len(times))] + ["%.2f" % result[role][key] for key in ("mean", "p50", "p99", "max")])
        everything = summary([t for role in result.values() for t in role["all"]])
        result["all"] = everything
        rows.append(["all", str(everything["count"])] + ["%.2f" % everything[k] for k in ("mean", "p50", "p99", "max")])
    print(table(["kill -9 to the next applied push, s", "kills", "mean", "p50", "p99", "max"], rows))
    print("goals: mean < 2 s, p99 < 3 s")
    return result


def goodput(folder, options):
    """One kill of a random role every so many seconds. The usual rate is that of the times between: from when the job is
    protected again to the next kill, so that other load on the machine hits both alike."""
    random_kill = random.Random(options.seed)
    with FaultCluster(options.binaries, folder, "goodput", job_flags=small_job(options)) as cluster:

        def steps_between(begin, end):
            # A rank that was killed made fewer: the other tells what the job did.
            return max(len(steps.between(begin, end)) for steps in cluster.steps)

        killed, quiet = [], []
        begin = time.monotonic()
        for i in range(options.goodput_kills):
            cluster.wait_protected()
            quiet_from = time.monotonic()
            time.sleep(max(0.0, begin + (i + 0.5) * options.every - quiet_from))
            quiet.append((quiet_from, time.monotonic()))
            role, index = random_kill.choice(ROLES)
            killed.append([role, index, one_kill(cluster, role, index)])
        cluster.wait_protected()
        quiet_from = time.monotonic()
        time.sleep(max(0.0, begin + options.goodput_kills * options.every - quiet_from))
        end = time.monotonic()
        quiet.append((quiet_from, end))
        usual = sum(steps_between(*q) for q in quiet) / sum(q[1] - q[0] for q in quiet)
        under = steps_between(begin, end) / (end - begin)
    lost = (1 - under / usual) * (end - begin) / options.goodput_kills
    result = {"every_seconds": options.every, "kills": killed, "seconds": end - begin, "goodput": under / usual,
              "steps_per_second": {"usual": usual, "under kills": under},
              "lost_seconds_per_kill": lost, "goodput_at_one_a_minute": 1 - lost / 60}
    print(table(["goodput under kills", "measured", "goal"], [
        ["steps a second: between kills, in all", "%.1f, %.1f" % (usual, under), ""],
        ["goodput, one kill in %g s" % options.every, "%.3f" % result["goodput"], ">= 0.95 at 60 s"],
        ["lost seconds a kill", "%.2f" % lost, "<= 3.00"],
        ["so at one kill a minute", "%.3f" % result["goodput_at_one_a_minute"], ">= 0.95"]]))
    return result


PARTS = {"replication": replication, "migration": migration, "kills": kills, "goodput": goodput}


def main():
    parser = argparse.ArgumentParser(prog="bench/faults", description=__doc__)
    parser.add_argument("--binaries", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--out", default="out/bench", help="folder for faults.json and logs (%(default)s)")
    parser.add_argument("--only", choices=list(PARTS), action="append", help="this part alone; may be given again")
    parser.add_argument("--mib", type=int, default=64, help="replication: the model (%(default)s)")
    parser.add_argument("--compute-ms", type=float, nargs="*", default=[300, 100],
                        help="replication: of a step; each is measured, and 0 (300 100)")
    parser.add_argument("--reps", type=int, default=7, help="replication: turns of each (%(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="replication: steps in a turn (%(default)s)")
    parser.add_argument("--codec", default="none", help="replication: of the gradient (%(default)s)")
    parser.add_argument("--optimizer", default="", help="replication: the servers' (none: they send back the mean)")
    parser.add_argument("--move-mib", type=int, default=256, help="migration: what the server holds (%(default)s)")
    parser.add_argument("--move-compute-ms", type=float, default=500, help="migration: of a step (%(default)s)")
    parser.add_argument("--move-steps", type=int, default=20, help="migration: steps before and after (%(default)s)")
    parser.add_argument("--kill-mib", type=int, default=16, help="kills, goodput: the model (%(default)s)")
    parser.add_argument("--kill-compute-ms", type=float, default=30, help="kills, goodput: of a step (%(default)s)")
    parser.add_argument("--kills", type=int, default=10, help="kills: of each role (%(default)s)")
    parser.add_argument("--goodput-kills", type=int, default=6, help="goodput: how many (%(default)s)")
    parser.add_argument("--every", type=float, default=20, help="goodput: seconds from kill to kill (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="goodput: whom to kill (%(default)s)")
    parser.add_argument("--patience", type=float, default=300, help="migration: seconds at most (%(default)s)")
    options = parser.parse_args()
    folder = os.path.abspath(os.path.join(options.out, "faults-logs"))
    os.makedirs(folder, exist_ok=True)
    result = {"load_average_at_begin": os.getloadavg()}
    try:
        for name, part in PARTS.items():
            if options.only and name not in options.only:
                continue
            result[name] = part(folder, options)
            print(flush=True)
    except BenchError as error:
        sys.exit("bench/faults: %s\nLogs are in %s" % (error, folder))
    result["load_average_at_end"] = os.getloadavg()
    path = os.path.join(options.out, "faults.json")
    write_json(path, result)
    print("load average %.1f at the begin, %.1f at the end" % (result["load_average_at_begin"][0],
                                                                result["load_average_at_end"][0]))
    print("written to " + path)


if __name__ == "__main__":
    main()
