"""One training job on a cluster of this machine, from the first process to the workers' results."""

import json
import os
import shutil
import time

from cluster import Cluster, ClusterError, tail

LIMIT_SECONDS = 1800


def train(options, folder, label, worker_arguments, progress, watch=lambda port: None, chaos=None):
    """Runs the job with options.servers and options.workers and gives the results of the workers, by rank.

    worker_arguments: of all workers; their files are FOLDER/LABEL-…. progress(path): an object that shows the lines of
    progress in this file. watch(port of the scheduler) is called now and then. chaos: a chaos.Kills, called often.
    """
    path = lambda name: os.path.join(folder, "%s-%s" % (label, name))
    for stale in [path("port")] + [path("worker-%d.%s" % (w, kind)) for w in range(options.workers)
                                   for kind in ("progress.jsonl", "result.json")]:
        if os.path.exists(stale):
            os.remove(stale)
    kept = path("kept")   # what the scheduler and workers need in order to come back
    shutil.rmtree(kept, ignore_errors=True)
    scheduler, worker = [], []
    if chaos:
        os.mkdir(kept)
        scheduler = ["--node.state_file=" + os.path.join(kept, "state")]
        worker = ["--data.snapshot_dir=" + os.path.join(kept, "snapshots"), "--report_ms=1"]

    with Cluster(options.binaries, folder, label) as cluster:
        cluster.start("scheduler", "scheduler", ["--node.port=0", "--node.port_file=" + path("port"),
                                                 "--node.exit_when_done", "--node.servers=%d" % options.servers] +
                      scheduler)
        port = cluster.wait_for_file(path("port"), "scheduler").split()[0]
        common = ["--node.scheduler=127.0.0.1:" + port]
        for s in range(options.servers):   # if they are told to end, then together: nobody is left to give shards to
            cluster.start("server-%d" % s, "server", common + ["--node.id=server-%d" % s, "--node.loops=1",
                                                               "--node.exit_when_done", "--node.drain_ms=0"])
        job = ["--job.name=quickstart", "--job.workers=%d" % options.workers, "--data.transport=" + options.transport]
        for w in range(options.workers):
            cluster.start("worker-%d" % w, "worker", common + job + worker_arguments + worker + [
                "--rank=%d" % w, "--progress=" + path("worker-%d.progress.jsonl" % w),
                "--result=" + path("worker-%d.result.json" % w)])

        shown = progress(path("worker-0.progress.jsonl"))
        deadline = time.monotonic() + LIMIT_SECONDS
        try:
            while cluster.any_runs("worker"):
                cluster.check()
                shown.update()
                watch(port)
                if time.monotonic() > deadline:
                    raise ClusterError("run \"%s\" did not end within %d s. The end of worker 0's log:\n%s" %
                                       (label, LIMIT_SECONDS, tail(cluster.log_of("worker-0"))))
                if chaos:
                    chaos.update(cluster, port, shown)
                time.sleep(0.01 if chaos else 0.1)
            cluster.check()
        finally:
            shown.close()

        results = []
        for w in range(options.workers):
            try:
                with open(path("worker-%d.result.json" % w)) as file:
                    results.append(json.load(file))
            except (OSError, ValueError) as error:
                raise ClusterError("worker-%d of run \"%s\" left no result (%s). The end of its log:\n%s" %
                                   (w, label, error, tail(cluster.log_of("worker-%d" % w))))
    shutil.rmtree(kept, ignore_errors=True)
    return results
