"""The job of ./quickstart (its model, optimizer and codecs) across the two machines, over RDMA, on the first images of
Fashion-MNIST's test set: a step takes an emulated processor two seconds."""

import gzip
import os
import sys

from cluster import Cluster, TestCase
from job import Job, WORKERS
from scenario import Scenario

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "quickstart"))
import image_model as images  # pylint: disable=wrong-import-position

FOLDER = "/images"            # in both machines; run.py puts it there
STEPS = 8
IMAGES = STEPS * images.BATCH * WORKERS


def write_images(folder):
    """The files of a data set, by the paths that they have in the machines. What trains is what tests."""
    os.makedirs(folder, exist_ok=True)
    paths = {}
    for kind, head, size in (("images-idx3", 16, 28 * 28), ("labels-idx1", 8, 1)):
        with gzip.open("%s/t10k-%s-ubyte.gz" % (images.DATA, kind)) as file:
            data = file.read(head + IMAGES * size)
        data = data[:4] + IMAGES.to_bytes(4, "big") + data[8:]
        for part in ("train", "t10k"):
            name = "%s-%s-ubyte.gz" % (part, kind)
            with gzip.open(os.path.join(folder, name), "wb") as file:
                file.write(data)
            paths["%s/%s" % (FOLDER, name)] = os.path.join(folder, name)
    return paths


def arguments(folder, codec):
    return (["--job.name=test", "--job.workers=%d" % WORKERS, "--job.codec=" + codec, "--data=" + folder, "--epochs=1",
             "--job.optimizer.total_rounds=%d" % STEPS, "--progress=-", "--report_ms=1"] +
            ["--job.optimizer.%s=%s" % pair for pair in images.OPTIMIZER.items()] + images.MODEL)


class Quickstart(Scenario):

    def test_the_quickstart_job_runs_over_rdma(self):
        codec = "none"
        job = Job(self.pair, servers=2)
        for rank in range(WORKERS):
            job.start_worker(rank, arguments(FOLDER, codec))
        results = job.end()
        with Cluster() as cluster:   # over TCP on this machine
            folder = cluster.path("images")
            write_images(folder)
            reference = TestCase().train(cluster, WORKERS, arguments(folder, codec) + ["--data.transport=tcp"])
        for result in results:
            self.assertEqual(result["transport"], "rdma" if Job.transport != "tcp" else "tcp")
            self.assertEqual(result["params_hash"], reference[0]["params_hash"])
        self.tell("over %s: %d steps, test accuracy %.3f, the bits of a run over TCP on this machine; %.1f s of "
                  "training" % (results[0]["transport"], results[0]["steps"], results[0]["test_accuracy"],
                                max(result["seconds"] for result in results)))
