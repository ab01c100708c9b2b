"""Tensors that go among the workers instead of over servers (job.exchange; docs/topology/collectives.md, "The hybrid")."""

import json
import urllib.request

from cluster import Cluster, TestCase, step_pattern, train_args

WORKERS = 3


class Exchange(TestCase):
    def arguments(self, cluster, exchange, **more):
        return train_args(cluster, WORKERS, **dict({"job__exchange": exchange}, **more))

    def run_all(self, exchange, **more):
        with Cluster() as cluster:
            results = self.train(cluster, WORKERS, self.arguments(cluster, exchange, **more))
            plan = json.loads(cluster.ctl("plan", "--job", "test", "--json"))
            self.events = cluster.ctl("events")
            self.explained = cluster.ctl("plan", "--job", "test", "--explain")
        self.assertEqual(len({r["params_hash"] for r in results}), 1)   # all ranks have the same bits
        return results, plan["tensors"]

    def test_all_ways_train_alike_and_servers_see_nothing_of_it(self):
        """Sums are added in other orders, which is all the difference: less than a thousandth of the loss."""
        for optimizer in ("momentum", "adam"):
            results = {}
            for exchange in ("servers", "allreduce", "sharded"):
                with self.subTest(optimizer=optimizer, exchange=exchange):
                    results[exchange], tensors = self.run_all(exchange, job__optimizer__kind=optimizer)
                    partitions = sum(len(t.get("partition_shard", [])) for t in tensors)
                    self.assertEqual(partitions > 0, exchange == "servers")
                    self.assertIn("exchange of tensors", self.explained)
                    self.assertEqual("among the workers" in self.events, exchange != "servers")
            for exchange in ("allreduce", "sharded"):
                for there, here in zip(results["servers"], results[exchange]):
                    self.assertGreater(here["test_accuracy"], 0.8)
                    self.assertAlmostEqual(here["test_loss"], there["test_loss"], delta=1e-3 * there["test_loss"])
                    for way in ("wire_bytes_push", "wire_bytes_pull"):
                        self.assertLess(here[way], there[way] / 100)

    def test_a_codec_trains_too(self):
        for exchange in ("allreduce", "sharded"):
            results, _ = self.run_all(exchange, job__codec="int8")
            self.assertGreater(results[0]["test_accuracy"], 0.8)

    def test_a_killed_worker_ends_the_others_in_words(self):
        for exchange in ("allreduce", "sharded"):
            with self.subTest(exchange=exchange), Cluster(scheduler_args=["--node.lease_ms=1500", "--node.heartbeat_ms=100"]) as cluster:
                arguments = self.arguments(cluster, exchange, epochs=400)
                workers = [cluster.start_worker(rank, arguments) for rank in range(WORKERS)]
                workers[1].wait_for(step_pattern(20))
                workers[2].kill()
                for worker in workers[:2]:
                    worker.wait(code=1)
                    self.assertRegex(worker.output(), r"rank 2 .*was lost.*start them from the trainer's own checkpoint")
                for rank in range(WORKERS):
                    cluster.scheduler.wait_for("worker_lost.*rank %d" % rank)
                # All of them again are a new beginning of the same job.
                arguments = self.arguments(cluster, exchange, epochs=3)
                for worker in [cluster.start_worker(rank, arguments) for rank in range(WORKERS)]:
                    worker.wait()

    def test_what_does_not_go_together_is_refused_by_name(self):
        with Cluster() as cluster:
            worker = cluster.start_worker(0, self.arguments(cluster, "sharded", job__optimizer__clip_norm=1))
            worker.wait(code=1)
            self.assertRegex(worker.output(), r"job.exchange=sharded does not go with job.optimizer.clip_norm: .*use job.exchange=servers")
        with Cluster() as cluster:
            arguments = self.arguments(cluster, "allreduce", data__snapshot_dir=cluster.path("snapshots"))
            workers = [cluster.start_worker(rank, arguments) for rank in range(WORKERS)]
            for worker in workers:
                worker.wait(code=1)
                self.assertIn("data.snapshot_dir does not go with tensor", worker.output())

    def test_auto_says_what_it_chose(self):
        self.run_all("auto", epochs=2)
        self.assertIn("auto: ", self.events)
        self.run_all("auto", epochs=2, job__optimizer__clip_norm=1)
        self.assertIn("auto means servers here: job.exchange=allreduce does not go with job.optimizer.clip_norm", self.events)
