"""Aggregation trees with real daemons: the workers of a host push to the server that runs there (docs/topology/trees.md)."""

import json
import re
import urllib.request

from cluster import Cluster, TestCase, step_pattern, train_args

WORKERS = 4


class Trees(TestCase):
    # Bins give the same bits with a tree and without, and so do the runs in which the tree changes.
    SETTINGS = {"workers": WORKERS, "job__order": "exact", "job__codec": "int8", "job__partition_bytes": "8KiB",
                "hidden": "64,32", "epochs": 8}

    def cluster(self, trees, servers=3):
        """Server i is on host i; two workers each are on hosts 0 and 1, the last server is alone."""
        cluster = Cluster(servers=0, scheduler_args=["--node.servers=%d" % servers, "--node.shards=12", "--node.heartbeat_ms=100",
                                                     "--node.lease_ms=3000", "--topology.trees=" + trees])
        cluster.servers = [cluster.start_server(i, ["--node.host=h%d" % i, "--node.metrics_port=0"]) for i in range(servers)]
        return cluster

    def arguments(self, cluster, **more):
        return train_args(cluster, **dict(self.SETTINGS, **more))

    def start(self, cluster, **more):
        arguments = self.arguments(cluster, **more)
        return [cluster.start_worker(rank, arguments + ["--node.host=h%d" % (rank % 2)]) for rank in range(WORKERS)]

    def hashes(self, cluster, workers):
        for worker in workers:
            worker.wait()
        return {cluster.result(rank)["params_hash"] for rank in range(WORKERS)}

    def run_all(self, trees, **more):
        with self.cluster(trees) as cluster:
            workers = self.start(cluster, **more)
            hashes = self.hashes(cluster, workers)
            forwards = [self.metric(cluster, i, "sluice_server_forwards_total") for i in range(3)]
        self.assertEqual(len(hashes), 1)
        return hashes, forwards

    def metric(self, cluster, server, name):
        """The sum over the server's loops."""
        port = int(cluster.servers[server].wait_for(r"metrics at [^ ]*:(\d+)/").group(1))
        with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port, timeout=30) as answer:
            text = answer.read().decode()
        values = re.findall(r"^%s(?:\{[^}]*\})? (\S+)$" % name, text, re.MULTILINE)
        self.assertTrue(values, name)
        return sum(float(value) for value in values)

    def test_order_exact_has_the_bits_of_the_run_without_a_tree(self):
        for more in ({}, {"job__reply": "change", "data__transport": "tcp"}, {"job__optimizer__clip_norm": 1}):
            with self.subTest(**more):
                flat, none = self.run_all("off", **more)
                tree, forwards = self.run_all("on", **more)
                self.assertEqual(tree, flat)
                self.assertEqual(none, [0, 0, 0])
                self.assertGreater(forwards[0], 0)
                self.assertGreater(forwards[1], 0)
                self.assertEqual(forwards[2], 0)

    def test_order_rank_has_the_same_bits_each_time(self):
        first, forwards = self.run_all("on", job__order="rank")
        again, _ = self.run_all("on", job__order="rank")
        self.assertGreater(forwards[0], 0)
        self.assertEqual(first, again)

    def test_an_aggregator_is_killed(self):
        with self.cluster("off") as cluster:
            flat = self.hashes(cluster, self.start(cluster, epochs=40))
        with self.cluster("on") as cluster:
            workers = self.start(cluster, epochs=40)
            workers[0].wait_for(step_pattern(30))
            self.assertGreater(self.metric(cluster, 1, "sluice_server_forwards_total"), 0)
            cluster.servers[1].kill()
            cluster.scheduler.wait_for("server_lost.*server-1")
            self.assertEqual(self.hashes(cluster, workers), flat)
            self.assertGreater(self.metric(cluster, 0, "sluice_server_forwards_total"), 0)

    def test_explain_shows_trees_and_routes_of_a_running_job(self):
        with self.cluster("on") as cluster:
            workers = self.start(cluster, epochs=200)
            workers[0].wait_for(step_pattern(5))
            plan = json.loads(cluster.ctl("plan", "--explain", "--json"))
            text = cluster.ctl("plan", "--explain", "--all")
            cluster.ctl("abort", plan["job"])
        aggregators = {node["server"] for tree in plan["trees"] for node in tree["nodes"]}
        self.assertEqual(aggregators, {0, 1})   # of h0 and h1, where two workers are
        self.assertEqual(plan["routes_left_out"], 0)
        routes = {(route["from"], route["to"]): route for route in plan["routes"]}
        # Workers push to the server beside them by shared memory; what goes from host to host are its sums, and replies.
        self.assertEqual(set(routes), {(a, b) for a in ("h0", "h1", "h2") for b in ("h0", "h1", "h2") if a != b})
        for route in routes.values():
            self.assertIn("forwards", route["what"])
            self.assertEqual(route["via"], ["(unlisted)"])
            self.assertGreater(route["bytes"], 0)
            self.assertGreater(route["bytes_per_second"], 0)
        self.assertRegex(text, r"h0 -> h2 +via \(unlisted\) +[0-9.]+ \w+ +h0 -> \(unlisted\) ")
        self.assertRegex(text, r"TREE +NODE +SERVER +FORWARDS TO")

    def test_what_cannot_have_a_tree_runs_without(self):
        with self.cluster("on") as cluster:
            for worker in self.start(cluster, job__backup_workers=1, job__order="rank", epochs=3):
                worker.wait()
            for server in range(3):
                self.assertEqual(self.metric(cluster, server, "sluice_server_forwards_total"), 0)
