"""Every call of the client library about tables, by two real workers against real servers."""

import os
import unittest

from cluster import BINARIES, Cluster


class Tables(unittest.TestCase):
    def calls(self, *flags, server_args=()):
        with Cluster(servers=2, server_args=list(server_args)) as cluster:
            command = [os.path.join(BINARIES, "tests", "e2e", "table_calls"), "--node.scheduler=" + cluster.address,
                       "--job.name=calls", "--job.workers=2", "--node.log_level=warn"] + list(flags)
            workers = [cluster.run("worker-%d" % rank, command) for rank in range(2)]
            for worker in workers:
                worker.wait()
            status = cluster.ctl("status")
            self.assertIn("finished", status)

    def test_over_shared_memory(self):
        self.calls("--data.transport=auto")

    def test_over_tcp(self):
        self.calls("--data.transport=tcp")

    def test_in_small_stripes_with_little_memory(self):
        # A push of 300,000 rows has half a MiB a segment, twice what the pool takes.
        small = ["--data.stripe_bytes=4096", "--data.eager_bytes=64"]
        self.calls("--data.transport=tcp", *small, server_args=small + ["--data.pool_bytes=1MiB"])


if __name__ == "__main__":
    unittest.main()
