"""Servers that die, come back, are moved from and join, in the middle of a run: the same bits at the end as without."""

from cluster import Cluster, TestCase, step_pattern, train_args


class ServerKills(TestCase):
    SETTINGS = {"job__codec": "int8", "job__optimizer__kind": "momentum", "job__optimizer__rate": "0.05", "epochs": 12}

    def reference(self, **more):
        with Cluster(servers=2) as cluster:
            arguments = train_args(cluster, job__replicas=0, **dict(self.SETTINGS, **more))
            return self.train(cluster, arguments=arguments)[0]["params_hash"]

    def start(self, cluster, **more):
        arguments = train_args(cluster, **dict(self.SETTINGS, **more))
        return [cluster.start_worker(rank, arguments) for rank in (0, 1)]

    def end(self, cluster, workers, expected):
        for worker in workers:
            worker.wait()
        self.assertEqual([cluster.result(rank)["params_hash"] for rank in (0, 1)], [expected] * 2)

    def test_either_server(self):
        for victim, more in ((0, {}), (1, {"job__reply": "change", "data__transport": "tcp"})):
            with self.subTest(victim=victim, **more):
                expected = self.reference(**more)
                with Cluster(servers=2) as cluster:
                    workers = self.start(cluster, **more)
                    workers[0].wait_for(step_pattern(30))
                    cluster.servers[victim].kill()
                    self.end(cluster, workers, expected)

    def test_one_after_the_other(self):
        expected = self.reference(epochs=40)
        with Cluster(servers=2) as cluster:
            workers = self.start(cluster, epochs=40)
            workers[0].wait_for(step_pattern(30))
            cluster.servers[0].kill()
            cluster.scheduler.wait_for("server_lost")
            cluster.start_server(0)
            cluster.scheduler.wait_for("job_protected")
            cluster.servers[1].kill()
            self.end(cluster, workers, expected)


if __name__ == "__main__":
    import unittest

    unittest.main()
