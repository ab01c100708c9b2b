"""The part of ./quickstart after the build: trains Fashion-MNIST with a cluster on this machine, once a codec."""

import argparse
import json
import os
import re
import signal
import sys
import time

from cluster import Cluster, ClusterError, tail
from render import Progress, table

FOLDER = "out/quickstart"
DATA = "/usr/share/datasets/fashion-mnist"   # of Debian's package dataset-fashion-mnist
CODECS = ("none", "int8", "topk:0.01")
LIMIT_SECONDS = 1800

# Chosen so that 0.885 is no luck. Test accuracy over seeds 1, 2, 3 at 12 epochs: none .8905 .8896 .8916,
# int8 .8905 .8907 .8899, topk:0.01 .8923 .8919 .8911. Momentum on the servers would cost top-k a point: what the
# residual delays arrives as if it were new.
BATCH = 32
MODEL = ["--model=mlp", "--hidden=256", "--batch=%d" % BATCH, "--seed=1"]
OPTIMIZER = {"kind": "sgd", "rate": "0.3", "schedule": "cosine", "final_rate": "0.001", "weight_decay": "0.0001"}


def arguments():
    def positive(text):
        value = int(text)
        if not 1 <= value <= 64:
            raise argparse.ArgumentTypeError("must lie between 1 and 64")
        return value

    def codec(text):
        if not re.fullmatch(r"none|fp16|bf16|int8|topk:(0?\.\d+|1(\.0*)?)", text):
            raise argparse.ArgumentTypeError("\"%s\" is none of none, fp16, bf16, int8, topk:RATIO" % text)
        return text

    parser = argparse.ArgumentParser(prog="./quickstart", add_help=False)
    parser.add_argument("--codec", type=codec)
    parser.add_argument("--servers", type=positive, default=2)
    parser.add_argument("--workers", type=positive, default=2)
    parser.add_argument("--epochs", type=positive, default=12)
    parser.add_argument("--transport", choices=("auto", "tcp", "shm"), default="auto")
    parser.add_argument("--binaries", default="", help=argparse.SUPPRESS)
    parser.add_argument("--check-only", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def run(options, codec):
    """One training; returns its line of the summary."""
    label = codec.replace(":", "-")
    path = lambda name: os.path.join(FOLDER, "%s-%s" % (label, name))
    for stale in [path("port")] + [path("worker-%d.%s" % (w, kind)) for w in range(options.workers)
                                   for kind in ("progress.jsonl", "result.json")]:
        if os.path.exists(stale):
            os.remove(stale)

    with Cluster(options.binaries, FOLDER, label) as cluster:
        cluster.start("scheduler", "scheduler", ["--node.port=0", "--node.port_file=" + path("port"),
                                                 "--node.exit_when_done", "--node.servers=%d" % options.servers])
        port = cluster.wait_for_file(path("port"), "scheduler").split()[0]
        common = ["--node.scheduler=127.0.0.1:" + port]
        for s in range(options.servers):
            cluster.start("server-%d" % s, "server", common + ["--node.id=server-%d" % s, "--node.loops=1",
                                                               "--node.exit_when_done"])
        steps = options.epochs * (60000 // (BATCH * options.workers))
        job = ["--job.name=quickstart", "--job.workers=%d" % options.workers, "--job.codec=" + codec,
               "--job.optimizer.total_rounds=%d" % steps, "--data.transport=" + options.transport]
        job += ["--job.optimizer.%s=%s" % pair for pair in OPTIMIZER.items()]
        workers = []
        for w in range(options.workers):
            workers.append(cluster.start("worker-%d" % w, "worker", common + job + MODEL + [
                "--rank=%d" % w, "--data=" + DATA, "--epochs=%d" % options.epochs,
                "--progress=" + path("worker-%d.progress.jsonl" % w), "--result=" + path("worker-%d.result.json" % w)]))

        progress = Progress(path("worker-0.progress.jsonl"), codec, options.epochs)
        deadline = time.monotonic() + LIMIT_SECONDS
        try:
            while any(worker.poll() is None for worker in workers):
                cluster.check()
                progress.update()
                if time.monotonic() > deadline:
                    raise ClusterError("run \"%s\" did not end within %d s. The end of worker 0's log:\n%s" %
                                       (codec, LIMIT_SECONDS, tail(cluster.log_of("worker-0"))))
                time.sleep(0.1)
            cluster.check()
        finally:
            progress.close()

        results = []
        for w in range(options.workers):
            try:
                with open(path("worker-%d.result.json" % w)) as file:
                    results.append(json.load(file))
            except (OSError, ValueError) as error:
                raise ClusterError("worker-%d of run \"%s\" left no result (%s). The end of its log:\n%s" %
                                   (w, codec, error, tail(cluster.log_of("worker-%d" % w))))
    return {"codec": codec, "test_accuracy": results[0]["test_accuracy"], "seconds": max(r["seconds"] for r in results),
            "wire_bytes_push": sum(r["wire_bytes_push"] for r in results),
            "wire_bytes_pull": sum(r["wire_bytes_pull"] for r in results), "steps": results[0]["steps"]}


def main():
    options = arguments()
    if options.check_only:
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.makedirs(FOLDER, exist_ok=True)
    runs = []
    print("Fashion-MNIST with 1 scheduler, %d servers and %d workers, %d epochs" %
          (options.servers, options.workers, options.epochs))
    try:
        for codec in [options.codec] if options.codec else CODECS:
            runs.append(run(options, codec))
    except ClusterError as error:
        print("\nquickstart: %s" % error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nquickstart: interrupted", file=sys.stderr)
        return 130
    with open(os.path.join(FOLDER, "summary.json"), "w") as file:
        json.dump({"runs": runs}, file, indent=1)
        file.write("\n")
    print("\n" + table(runs))
    print("\nwritten to %s/summary.json; logs of all processes are beside it" % FOLDER)
    return 0


if __name__ == "__main__":
    sys.exit(main())
