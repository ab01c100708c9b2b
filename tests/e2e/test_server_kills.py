"""Servers that die, stand still, come back, are moved from and join, in the middle of a run: the same bits at the end as
without.

What has to be caught half-way (a fill, a move) is caught by a server that stands still (SIGSTOP): its copy stays
half-filled until the test goes on.
"""

import json
import signal

import test_clicks
from cluster import Cluster, TestCase, step_pattern, train_args


def lines(process):
    """How many it has said: where a wait for something new starts."""
    said = process.output()
    return said.count("\n") + 1 if said else 0


class Runs(TestCase):
    """Two workers on some servers, and what the operator sees of them."""

    # A dozen partitions, momentum at the servers, some seconds of steps of a millisecond or two.
    SETTINGS = {"job__codec": "int8", "job__optimizer__kind": "momentum", "job__optimizer__rate": "0.01",
                "hidden": "256,64", "batch": 32, "epochs": 200, "job__partition_bytes": "8KiB"}
    _references = {}

    def cluster(self, servers, server_args=()):
        """Its copies are said to be in sync soon, and a server that stands still is lost soon."""
        return Cluster(servers, ["--node.heartbeat_ms=100", "--node.lease_ms=3000", "--node.shards=12"], server_args)

    def reference(self, **more):
        """The bits of a run that nothing happens to. Kept: many tests have the same."""
        key = json.dumps(more, sort_keys=True)
        if key not in self._references:
            with Cluster(servers=2) as cluster:
                arguments = train_args(cluster, job__replicas=0, **dict(self.SETTINGS, **more))
                self._references[key] = self.train(cluster, arguments=arguments)[0]["params_hash"]
        return self._references[key]

    def start(self, cluster, **more):
        """Workers that have begun."""
        arguments = train_args(cluster, **dict(self.SETTINGS, **more))
        workers = [cluster.start_worker(rank, arguments) for rank in (0, 1)]
        workers[0].wait_for(step_pattern(30))
        return workers

    def end(self, cluster, workers, **more):
        for worker in workers:
            worker.wait()
        self.assertEqual([cluster.result(rank)["params_hash"] for rank in (0, 1)], [self.reference(**more)] * 2)

    def held(self, cluster):
        """{server: the shards with partitions that it owns}"""
        owned = {}
        for shard in json.loads(cluster.ctl("shards", "--json"))["shards"]:
            if shard["partitions"] > 0:
                owned.setdefault(shard["server_id"], []).append(shard["info"]["shard"])
        return owned

    def moves(self, cluster):
        return [(move["shard"], move["to"]) for move in json.loads(cluster.ctl("moves", "--json"))["moves"]]

    def goes_on(self, worker):
        """Waits until some step that was not reached yet is done."""
        worker.wait_for(r'"step":', start=lines(worker))

    def join(self, cluster, index):
        """Another server, once the job has it."""
        server = cluster.start_server(index)
        cluster.scheduler.wait_for("server_joined.*server-%d" % index)
        return server


class ServerKills(Runs):

    def test_either_server(self):
        for victim, more in ((0, {}), (1, {"job__reply": "change", "data__transport": "tcp"})):
            with self.subTest(victim=victim, **more), self.cluster(2) as cluster:
                workers = self.start(cluster, **more)
                cluster.servers[victim].kill()
                self.end(cluster, workers, **more)

    def test_one_after_the_other(self):
        with self.cluster(2) as cluster:
            workers = self.start(cluster)
            cluster.servers[0].kill()
            cluster.scheduler.wait_for("server_lost")
            cluster.start_server(0)
            cluster.scheduler.wait_for("job_protected")
            cluster.servers[1].kill()
            self.end(cluster, workers)

    def test_two_of_three_at_once(self):
        with self.cluster(3, server_args=["--node.loops=2"]) as cluster:
            workers = self.start(cluster, job__replicas=2)
            for victim in (0, 2):
                cluster.servers[victim].kill()
            self.end(cluster, workers)

    def test_scheduler_and_a_server_at_once(self):
        with self.cluster(2) as cluster:
            workers = self.start(cluster)
            cluster.scheduler.kill()
            cluster.servers[1].kill()
            cluster.start_scheduler()
            cluster.start_server(1)
            cluster.scheduler.wait_for("job_protected")
            self.end(cluster, workers)

    def test_server_that_is_being_filled(self):
        with self.cluster(2) as cluster:
            workers = self.start(cluster)
            cluster.servers[0].kill()
            cluster.scheduler.wait_for("server_lost")
            cluster.servers[1].stop()   # the owner must not be done with it before it stands still
            again = self.join(cluster, 0)
            again.stop()
            cluster.servers[1].go_on()
            self.goes_on(workers[0])
            self.assertIn("being filled", cluster.ctl("status"))
            again.kill()
            cluster.start_server(0)
            cluster.scheduler.wait_for("job_protected")
            cluster.servers[1].kill()   # what was filled the second time owns everything now
            self.end(cluster, workers)

    def test_server_that_stood_still_does_not_answer_with_its_old_state(self):
        with self.cluster(2) as cluster:
            # In shared memory a worker would wait for it: it may be reading what was lent to it.
            workers = self.start(cluster, data__transport="tcp")
            cluster.servers[0].stop()
            cluster.scheduler.wait_for("server_lost.*server-0 .*nothing heard")
            self.goes_on(workers[0])
            cluster.servers[0].go_on()
            cluster.scheduler.wait_for("job_protected")
            cluster.servers[1].kill()
            self.end(cluster, workers)


class Tables(Runs):
    """Rows of tables: the trainer of click logs."""

    SETTINGS = {"model": "lr", "epochs": 4}

    def arguments(self, cluster, **more):
        return test_clicks.arguments(cluster, **dict(self.SETTINGS, **more))

    def test_either_server(self):
        with self.cluster(2) as cluster:
            expected = self.train(cluster, arguments=self.arguments(cluster, job__replicas=0))[0]
        for victim, more in ((0, {}), (1, {"data__transport": "tcp"})):
            with self.subTest(victim=victim), self.cluster(2) as cluster:
                arguments = self.arguments(cluster, **more)
                workers = [cluster.start_worker(rank, arguments) for rank in (0, 1)]
                workers[0].wait_for(step_pattern(60))
                cluster.servers[victim].kill()
                for worker in workers:
                    worker.wait()
                for rank in (0, 1):
                    self.assertEqual(cluster.result(rank)["params_hash"], expected["params_hash"])
                    self.assertEqual(cluster.result(rank)["auc"], expected["auc"])


class Moves(Runs):

    def test_move_shard(self):
        with self.cluster(3) as cluster:
            workers = self.start(cluster)
            shard = self.held(cluster)["server-0"][0]
            for target in ("server-1", "server-2", "server-0"):   # one of the first two has its copy
                cluster.ctl("move-shard", str(shard), target)
                cluster.scheduler.wait_for("shard_moved.*shard %d is owned by %s " % (shard, target))
                self.assertIn(shard, self.held(cluster)[target])
            self.assertEqual(self.moves(cluster), [])
            self.end(cluster, workers)

    def test_drain_and_undrain(self):
        with self.cluster(3) as cluster:
            workers = self.start(cluster)
            cluster.ctl("drain", "server-1")
            cluster.scheduler.wait_for("server_drained.*server-1")
            self.assertNotIn("server-1", self.held(cluster))
            self.assertIn("protected: every shard has 1 copy in sync", cluster.ctl("status"))
            cluster.ctl("undrain", "server-1")
            cluster.ctl("drain", "server-0")
            cluster.scheduler.wait_for("server_drained.*server-0")
            self.assertEqual(set(self.held(cluster)) - {"server-1", "server-2"}, set())
            cluster.servers[0].kill()   # as one does with a server that is empty: nobody waits for it
            self.end(cluster, workers)

    def test_rebalance_to_a_server_that_joined(self):
        with self.cluster(2) as cluster:
            workers = self.start(cluster)
            self.join(cluster, 2)
            self.assertNotIn("server-2", self.held(cluster))
            planned = json.loads(cluster.ctl("rebalance", "--json"))["moves"]
            self.assertTrue(planned)
            for move in planned:
                cluster.scheduler.wait_for("shard_moved.*shard %d is owned by %s " % (move["shard"], move["to"]))
            self.assertIn("server-2", self.held(cluster))
            cluster.servers[0].kill()
            self.end(cluster, workers)

    def begin_a_move(self, cluster, source):
        """To a server that joined and stands still, so that the move stays half-way: that server, and the shard."""
        target = self.join(cluster, 3)
        target.stop()
        shard = self.held(cluster)["server-%d" % source][0]
        cluster.ctl("move-shard", str(shard), "server-3")
        self.assertEqual(self.moves(cluster), [(shard, "server-3")])
        return target, shard

    def test_target_killed(self):
        with self.cluster(2) as cluster:
            workers = self.start(cluster)
            target, shard = self.begin_a_move(cluster, 0)
            self.goes_on(workers[0])
            target.kill()
            cluster.scheduler.wait_for("server_lost.*server-3 ")
            self.assertEqual(self.moves(cluster), [])
            self.assertIn(shard, self.held(cluster)["server-0"])
            cluster.servers[0].kill()
            self.end(cluster, workers)

    def test_owner_killed(self):
        with self.cluster(2) as cluster:
            workers = self.start(cluster)
            target, shard = self.begin_a_move(cluster, 0)
            cluster.servers[0].kill()
            cluster.scheduler.wait_for("server_lost.*server-0 ")
            target.go_on()
            self.assertEqual(self.moves(cluster), [])
            self.assertIn(shard, self.held(cluster)["server-1"])
            cluster.scheduler.wait_for("job_protected")   # the target has taken the copies
            cluster.servers[1].kill()
            self.end(cluster, workers)

    def test_both_ends_killed(self):
        with self.cluster(3) as cluster:
            workers = self.start(cluster)
            target, shard = self.begin_a_move(cluster, 0)
            for victim in (cluster.servers[0], target):
                victim.kill()
            cluster.scheduler.wait_for("server_lost.*server-0 ")
            self.assertEqual(self.moves(cluster), [])
            cluster.scheduler.wait_for("job_protected")
            self.assertTrue(any(shard in shards for shards in self.held(cluster).values()))
            self.end(cluster, workers)

    def test_server_killed_while_it_is_drained(self):
        with self.cluster(3) as cluster:
            workers = self.start(cluster)
            cluster.ctl("drain", "server-0")
            cluster.servers[0].kill()   # the drain lasts two heartbeats and more
            cluster.scheduler.wait_for("server_lost.*server-0 ")
            cluster.scheduler.wait_for("job_protected|server_drained.*server-0 ")
            self.assertNotIn("server-0", self.held(cluster))
            self.end(cluster, workers)


class Rebalancing(Runs):
    """The scheduler finds the bottleneck itself."""

    def test_one_server_that_owns_everything_gives_shards_away(self):
        longer = {"epochs": 1500}
        with Cluster(3, ["--node.heartbeat_ms=100", "--node.lease_ms=5000", "--node.shards=12",
                         "--node.rebalance_after_ms=1s", "--node.rebalance_cooldown_ms=1s"]) as cluster:
            workers = self.start(cluster, **longer)
            for shard in range(12):
                if shard not in self.held(cluster).get("server-0", []):
                    cluster.ctl("move-shard", str(shard), "server-0", code=None)   # one without partitions may be there
            cluster.scheduler.wait_for(r"rebalance \[test\]: server server-0 has been the bottleneck")
            cluster.scheduler.wait_for("shard_moved.*is owned by server-[12] ", start=lines(cluster.scheduler) - 1)
            self.assertLess(len(self.held(cluster)["server-0"]), 12)
            said = cluster.ctl("rebalance", "--dry-run")
            self.assertRegex(said, "LOAD +CPU +IN +OUT|weighed by bytes")
            self.end(cluster, workers, **longer)


class Sigterm(Runs):
    """A server that is told to end gives away what it has, and ends by itself."""

    def test_in_the_middle_of_a_run(self):
        for servers in (2, 3):
            with self.subTest(servers=servers), self.cluster(servers) as cluster:
                workers = self.start(cluster)
                cluster.servers[0].signal(signal.SIGTERM)
                cluster.servers[0].wait(code=0)
                self.assertIn("ends: drained", cluster.servers[0].output())
                self.assertTrue(workers[0].running())
                self.assertEqual(set(self.held(cluster)) - {"server-%d" % i for i in range(1, servers)}, set())
                self.end(cluster, workers)

    def test_one_after_the_other_as_in_a_rolling_restart(self):
        longer = {"epochs": 400}
        with self.cluster(2) as cluster:
            workers = self.start(cluster, **longer)
            for server in cluster.servers:
                before = lines(cluster.scheduler)
                server.signal(signal.SIGTERM)
                server.wait(code=0)
                self.assertIn("ends: drained", server.output())
                cluster.start_server(cluster.servers.index(server))
                cluster.scheduler.wait_for("job_protected", start=before)
            self.end(cluster, workers, **longer)

    def test_the_only_server(self):
        with self.cluster(1) as cluster:
            self.start(cluster)
            cluster.servers[0].signal(signal.SIGTERM)
            cluster.servers[0].wait(code=0, deadline=10)   # node.drain_ms is 25 s
            cluster.servers[0].wait_for("ends: signal 15; not drained, there is no other server")

    def test_a_second_signal_ends_it_at_once(self):
        with self.cluster(2) as cluster:
            workers = self.start(cluster)
            cluster.servers[1].stop()   # nothing moves to it
            cluster.servers[0].signal(signal.SIGTERM)
            cluster.servers[0].wait_for("to other servers first")
            cluster.servers[0].signal(signal.SIGTERM)
            cluster.servers[0].wait(code=0, deadline=10)
            cluster.servers[1].go_on()
            self.end(cluster, workers)

    def test_after_the_job_it_ends_at_once(self):
        with self.cluster(2) as cluster:
            self.end(cluster, self.start(cluster))
            for server in cluster.servers:
                server.signal(signal.SIGTERM)
                server.wait(code=0)
                self.assertIn("ends: signal 15", server.output())


if __name__ == "__main__":
    import unittest

    unittest.main()
