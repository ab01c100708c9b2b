"""bench/links: how close a BSP step comes to the bound that the network sets.

Two workers and two servers, each in a network namespace of its own, on links that are shaped to a fixed rate (tc tbf, both
directions). A step is a push-pull of the whole model. The bound is the bytes that the busiest direction of the busiest
interface carries in a step, divided by the goodput that iperf3 reaches on such a link. Second, the same with a backward pass
that brings the gradients one by one, last layer first, and a forward pass that takes the first layer first.

With --codecs: steps in each of them instead, beside "none" in the same run; "auto" is given time to choose first. Parameters
come back as changes in --reply-codec in every row, so that pushes are what differs.
"""

import argparse
import os
import sys

from processes import BenchError, Cluster, iperf, need, step_together
from report import median, table, write_json
from shaped_network import SWITCH, ShapedNetwork, enter

MIB = 1 << 20
NODES = {"w0": "10.77.0.10", "w1": "10.77.0.11", "s0": "10.77.0.20", "s1": "10.77.0.21"}


PARTITION = 4 * MIB  # job.partition_bytes


def least_seconds(layers, layer_bytes, backward, forward, goodput):
    """What a step behind passes takes at best: a link that is never idle while something is ready, and always carries the
    most urgent partition whole; answers come back one partition behind. (Later layers' gradients are ready first, and
    their parameters are used last: what must be sent before the first layers are ready is not hidden.)"""
    parts = [min(PARTITION, layer_bytes - at) / goodput for at in range(0, layer_bytes, PARTITION)]
    ready = {(i, n): (layers - i) * backward / layers for i in range(layers) for n in range(len(parts))}
    sent = answered = 0.0
    here = [0.0] * layers
    while ready:
        sent = max(sent, min(ready.values()))
        layer, n = min(part for part, when in ready.items() if when <= sent)
        del ready[layer, n]
        sent += parts[n]
        answered = max(sent, answered) + parts[n]
        here[layer] = max(here[layer], answered)
    now = 0.0
    for when in here:
        now = max(now, when) + forward / layers
    return now


def measure(network, cluster, name, options, flags):
    workers = cluster.workers(name, 2, ["--tensors=%d" % options.layers, "--data.transport=tcp",
                                        "--elements=%d" % (options.mib * MIB // 4 // options.layers)] + flags,
                              flags_of=lambda index: ["--node.listen=" + NODES["w%d" % index]])
    step_together(workers, 1)  # windows open
    before = network.counters()
    seconds = step_together(workers, options.steps)
    after = network.counters()
    cluster.release(workers)
    moved = {key: (after[key] - before[key]) / options.steps for key in after}
    busiest = max(moved, key=moved.get)
    return {"seconds": seconds, "median_seconds": median(seconds), "busiest": "%s %s" % busiest,
            "bytes": moved[busiest]}


def measure_codec(cluster, name, codec, options):
    """A step's seconds, and what was pushed for a step."""
    flags = ["--job.replicas=0", "--job.optimizer.kind=sgd", "--job.optimizer.rate=1e-6", "--job.reply=change",
             "--job.reply_codec=" + options.reply_codec, "--job.codec=" + codec, "--data.transport=tcp",
             "--tensors=%d" % options.layers, "--elements=%d" % (options.mib * MIB // 4 // options.layers)]
    workers = cluster.workers(name, 2, flags, flags_of=lambda index: ["--node.listen=" + NODES["w%d" % index]])
    step_together(workers, 1)
    settle = []
    if codec == "auto":
        while sum(settle) < options.settle:
            settle += step_together(workers, 4)
    before = [worker.ask("stats") for worker in workers]
    seconds = step_together(workers, options.steps)
    after = [worker.ask("stats") for worker in workers]
    cluster.release(workers)
    pushed = max(float(b.split()[0]) - float(a.split()[0]) for a, b in zip(before, after)) / options.steps
    return {"seconds": seconds, "median_seconds": median(seconds), "settle_seconds": settle, "pushed_bytes": pushed}


def compare_codecs(network, goodput, cluster, options):
    runs = {}
    for index, codec in enumerate(["none"] + [c for c in options.codecs.split(",") if c != "none"]):
        runs[codec] = measure_codec(cluster, "codec%d" % index, codec, options)
    plain = runs["none"]["median_seconds"]
    rows = [[codec, "%.3f" % one["median_seconds"], "%.2f" % (one["median_seconds"] / plain),
             "%.2f" % (one["pushed_bytes"] / MIB)] for codec, one in runs.items()]
    print("%d MiB model in %d tensors, links of %s (iperf3: %.1f MB/s), replies: changes in %s" %
          (options.mib, options.layers, options.rate, goodput / 1e6, options.reply_codec))
    print(table(["push codec", "step s", "of none", "MiB pushed a worker"], rows))
    path = os.path.join(options.out, "links-codecs.json")
    write_json(path, {"model_bytes": options.mib * MIB, "rate": options.rate, "reply_codec": options.reply_codec,
                      "iperf3_bytes_per_second": goodput, "runs": runs})
    print("written to " + path)


def main():
    parser = argparse.ArgumentParser(prog="bench/links", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--out", default="out/bench", help="folder for links.json and logs (%(default)s)")
    parser.add_argument("--mib", type=int, default=512, help="size of the model in MiB (%(default)s)")
    parser.add_argument("--layers", type=int, default=64, help="tensors of the model (%(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="steps to measure (%(default)s)")
    parser.add_argument("--rate", default="1gbit", help="of each link, as tc takes it (%(default)s)")
    parser.add_argument("--mtu", type=int, default=1500, help="(%(default)s)")
    parser.add_argument("--congestion", default="reno",
                        help="congestion control, pinned for all; one that any namespace may choose (%(default)s)")
    parser.add_argument("--compute", type=float, default=0.4,
                        help="forward and backward pass together, as part of the bound's time (%(default)s)")
    parser.add_argument("--codecs", default="", help="compare these, e.g. int8,topk:0.01,auto, instead of the two rows")
    parser.add_argument("--reply-codec", default="topk:0.01", help="with --codecs: of the parameters' changes (%(default)s)")
    parser.add_argument("--settle", type=float, default=25, help="with --codecs: seconds of steps for auto (%(default)s)")
    options = parser.parse_args()
    need("iperf3", "iperf3")
    for program in ("ip", "tc"):
        need(program, "iproute2")
    need("sysctl", "procps")
    enter(os.path.abspath(__file__), sys.argv[1:])
    folder = os.path.abspath(os.path.join(options.out, "links-logs"))
    os.makedirs(folder, exist_ok=True)
    try:
        network = ShapedNetwork(NODES, options.rate, options.congestion, options.mtu)
        place = {"worker": "w%d", "server": "s%d"}
        prefix = lambda role, index: [] if role == "scheduler" else network.prefix(place[role] % index)
        goodput = median([iperf(3, ["-C", options.congestion], network.prefix("s0"), network.prefix("w0"), NODES["s0"])
                          for _ in range(3)])
        runs = {}
        cluster = Cluster(options.binaries, folder, "links", servers=2, prefix=prefix)
        try:
            cluster.start(["--node.listen=" + SWITCH], lambda index: ["--node.listen=" + NODES["s%d" % index]])
            if options.codecs:
                compare_codecs(network, goodput, cluster, options)
                return
            runs["all at once"] = measure(network, cluster, "bare", options, ["--job.replicas=0"])
            compute = options.compute * runs["all at once"]["bytes"] / goodput * 1e3
            runs["behind passes"] = measure(network, cluster, "passes", options, [
                "--job.replicas=0",
                "--backward_ms=%f" % (compute * 2 / 3), "--forward_ms=%f" % (compute / 3)])
            runs["behind passes"]["compute_seconds"] = compute / 1e3
            carried = runs["behind passes"]["bytes"] / options.layers  # headers included
            runs["behind passes"]["least_seconds"] = least_seconds(
                options.layers, int(carried), compute * 2 / 3e3, compute / 3e3, goodput)
        finally:
            cluster.__exit__()
    except BenchError as error:
        sys.exit("bench/links: %s\nLogs are in %s" % (error, folder))

    rows = []
    for name, one in runs.items():
        one["bound_seconds"] = one["bytes"] / goodput
        one["ratio"] = one["median_seconds"] / one["bound_seconds"]
        rows.append([name, "%.3f" % one["median_seconds"], "%.3f" % one["bound_seconds"], "%.3f" % one["ratio"],
                     "%.1f" % (one["bytes"] / MIB), one["busiest"]])
    print("%d MiB model, links of %s (iperf3: %.1f MB/s), %s, MTU %d" %
          (options.mib, options.rate, goodput / 1e6, options.congestion, options.mtu))
    print(table(["step", "seconds", "bound", "ratio", "MiB", "busiest"], rows))
    behind = runs["behind passes"]
    print("goal: at most 1.05. Passes of %.2f s (sleeps) lie in the second row: in the same order, ideal links that carry one "
          "partition at a time would take %.3f s (%.3f of the bound), and the step is %.3f times that." %
          (behind["compute_seconds"], behind["least_seconds"], behind["least_seconds"] / behind["bound_seconds"],
           behind["median_seconds"] / behind["least_seconds"]))
    path = os.path.join(options.out, "links.json")
    write_json(path, {"model_bytes": options.mib * MIB, "rate": options.rate, "mtu": options.mtu,
                      "congestion": options.congestion, "iperf3_bytes_per_second": goodput, "runs": runs})
    print("written to " + path)


if __name__ == "__main__":
    main()
