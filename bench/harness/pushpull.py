"""bench/pushpull: what a push-pull costs, compared with iperf3, memcpy and gloo in the same run."""

import argparse
import os
import sys

from processes import BenchError, Cluster, Gloo, cpu_seconds, iperf, need, need_torch, resident_bytes, step_together
from report import median, table, write_json

MIB = 1 << 20


def large(cluster, folder, options):
    """64 MiB: repetitions of all contestants take turns, so that other load on the machine hits all alike."""
    elements = options.mib * MIB // 4
    size = options.mib * MIB
    flags = ["--elements=%d" % elements]
    tcp1 = cluster.workers("tcp1", 1, flags + ["--data.transport=tcp"])
    tcp2 = cluster.workers("tcp2", 2, flags + ["--data.transport=tcp"])
    shm = cluster.workers("shm", 1, flags + ["--data.transport=shm"])
    plain = cluster.workers("plain", 1, flags + ["--data.transport=shm", "--registered=0"])
    auto2 = cluster.workers("auto2", 2, flags + ["--data.transport=auto"])
    gloo = Gloo(folder, elements)
    contestants = {
        "tcp1": lambda: step_together(tcp1, 3),
        "tcp2": lambda: step_together(tcp2, 2),
        "shm": lambda: step_together(shm, 3),
        "plain": lambda: step_together(plain, 3),
        "auto2": lambda: step_together(auto2, 3),
        "gloo2": lambda: gloo.step(3),
        "memcpy": lambda: [float(x) for x in shm[0].ask("memcpy 3").split()],
    }
    times = {name: [] for name in contestants}
    goodput = []
    jobs = {"tcp1": tcp1, "tcp2": tcp2, "shm": shm, "auto2": auto2}
    cpu = {name: 0.0 for name in jobs}
    for name, run in contestants.items():
        run()  # warms memory, windows and caches
    for _ in range(options.reps):
        for name, run in contestants.items():
            pids = [w.pid for w in jobs.get(name, [])] + cluster.server_pids
            before = sum(map(cpu_seconds, pids))
            seconds = run()
            times[name] += seconds
            if name in jobs:
                cpu[name] += (sum(map(cpu_seconds, pids)) - before)
        goodput.append(iperf(1, ["--bidir"]))
    gloo.close()
    for job in (tcp1, tcp2, shm, plain, auto2):
        cluster.release(job)

    t = {name: median(values) for name, values in times.items()}
    moved = {"tcp1": 2 * size, "tcp2": 4 * size, "shm": 2 * size, "auto2": 4 * size}
    bidir = median(goodput)
    result = {
        "bytes": size, "repetitions": options.reps, "seconds": t, "iperf3_bidir_bytes_per_second": bidir,
        "tcp_over_iperf3": {"1 worker": moved["tcp1"] / t["tcp1"] / bidir, "2 workers": moved["tcp2"] / t["tcp2"] / bidir},
        "shm_over_memcpy": {"registered": t["shm"] / t["memcpy"], "unregistered": t["plain"] / t["memcpy"]},
        "gloo_over_auto": t["gloo2"] / t["auto2"],
        "cpu_seconds_per_gb": {name: cpu[name] / (moved[name] * len(times[name]) / 1e9) for name in jobs},
    }
    ms = lambda name: "%.1f" % (t[name] * 1e3)
    rows = [
        ["TCP, 1 worker", ms("tcp1"), "%.2f of iperf3 --bidir" % result["tcp_over_iperf3"]["1 worker"], ">= 0.75"],
        ["TCP, 2 workers", ms("tcp2"), "%.2f of iperf3 --bidir" % result["tcp_over_iperf3"]["2 workers"], ">= 0.75"],
        ["shm, registered buffers", ms("shm"), "%.2f memcpys" % result["shm_over_memcpy"]["registered"], "<= 4"],
        ["shm, unregistered", ms("plain"), "%.2f memcpys" % result["shm_over_memcpy"]["unregistered"], "<= 8"],
        ["auto, 2 workers, registered", ms("auto2"), "gloo takes %.2f times as long" % result["gloo_over_auto"], ">= 3"],
        ["gloo all-reduce, 2 ranks", ms("gloo2"), "", ""],
        ["memcpy", ms("memcpy"), "", ""],
        ["iperf3 --bidir, summed", "", "%.2f GB/s" % (bidir / 1e9), ""],
    ]
    print(table(["push-pull of %d MiB" % options.mib, "ms", "compared", "goal"], rows))
    print("CPU seconds per GB pushed and pulled, all processes: " +
          ", ".join("%s %.2f" % item for item in result["cpu_seconds_per_gb"].items()))
    return result


def latency(cluster, options):
    """One small push-pull after the other."""
    rows, result = [], {}
    jobs = {name: cluster.workers("latency-" + name, 1, ["--elements=1024", "--data.transport=" + name])
            for name in ("tcp", "shm")}
    times = {name: [] for name in jobs}
    for _ in range(options.reps):
        for name, workers in jobs.items():
            times[name] += sorted(step_together(workers, 200))[:200]
    for name, workers in jobs.items():
        cluster.release(workers)
        ordered = sorted(times[name])
        result[name] = {"median_us": median(ordered) * 1e6, "p99_us": ordered[len(ordered) * 99 // 100] * 1e6}
        rows.append([name, "%.0f" % result[name]["median_us"], "%.0f" % result[name]["p99_us"]])
    print(table(["push-pull of 4 KiB", "median us", "99 % us"], rows))
    return result


def small_tensors(cluster, unfused, options):
    """Many tensors of 64 elements in one step."""
    flags = ["--tensors=%d" % options.small, "--elements=64", "--data.transport=tcp"]
    jobs = {"with fusion": cluster.workers("small", 1, flags),
            "without": unfused.workers("small", 1, flags + ["--data.fusion_bytes=0"])}
    times = {name: [] for name in jobs}
    for workers in jobs.values():
        step_together(workers, 1)
    for _ in range(options.reps):
        for name, workers in jobs.items():
            times[name] += step_together(workers, 1)
    result = {name: median(values) for name, values in times.items()}
    cluster.release(jobs["with fusion"])
    unfused.release(jobs["without"])
    print(table(["%d tensors of 256 bytes a step, TCP" % options.small, "ms"],
                [[name, "%.1f" % (seconds * 1e3)] for name, seconds in result.items()]))
    return result


def server_memory(binaries, folder, options):
    """What one server holds after some rounds, with few and with many workers of the same model."""
    rows, result = [], {}
    pool = 32
    for workers in (2, options.many):
        label = "memory%d" % workers
        with Cluster(binaries, folder, label, server_flags=["--data.pool_bytes=%dMiB" % pool]) as cluster:
            job = cluster.workers(label, workers, ["--elements=%d" % (16 * MIB // 4), "--data.transport=tcp",
                                                   "--registered=0"], processes=2)
            step_together(job, 3)
            now, peak = resident_bytes(cluster.server_pids[0])
            result[workers] = {"resident_bytes": now, "peak_bytes": peak}
            rows.append([str(workers), "%.0f" % (now / MIB), "%.0f" % (peak / MIB)])
            cluster.release(job)
    print(table(["workers (16 MiB model, pool of %d MiB)" % pool, "server MiB", "peak MiB"], rows))
    return result


def main():
    parser = argparse.ArgumentParser(prog="bench/pushpull", description=__doc__)
    parser.add_argument("--binaries", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--out", default="out/bench", help="folder for pushpull.json and logs (%(default)s)")
    parser.add_argument("--mib", type=int, default=64, help="size of the large push-pull in MiB (%(default)s)")
    parser.add_argument("--reps", type=int, default=7, help="interleaved repetitions (%(default)s)")
    parser.add_argument("--small", type=int, default=10000, help="tensors of the small-tensor step (%(default)s)")
    parser.add_argument("--many", type=int, default=64, help="workers of the memory test (%(default)s)")
    parser.add_argument("--only", choices=["large", "latency", "small", "memory"], help="one part alone")
    options = parser.parse_args()
    need("iperf3", "iperf3")
    need_torch()
    folder = os.path.abspath(os.path.join(options.out, "pushpull-logs"))
    os.makedirs(folder, exist_ok=True)
    result = {}
    wanted = lambda part: options.only in (None, part)
    try:
        with Cluster(options.binaries, folder, "main") as cluster:
            if wanted("large"):
                result["large"] = large(cluster, folder, options)
                print()
            if wanted("latency"):
                result["latency"] = latency(cluster, options)
                print()
            if wanted("small"):
                with Cluster(options.binaries, folder, "unfused", server_flags=["--data.fusion_bytes=0"]) as unfused:
                    result["small_tensors"] = small_tensors(cluster, unfused, options)
                print()
        if wanted("memory"):
            result["server_memory"] = server_memory(options.binaries, folder, options)
            print()
    except BenchError as error:
        sys.exit("bench/pushpull: %s\nLogs are in %s" % (error, folder))
    path = os.path.join(options.out, "pushpull.json")
    write_json(path, result)
    print("written to " + path)


if __name__ == "__main__":
    main()
