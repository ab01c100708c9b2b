"""Training by real processes ends where it should, over every transport, with every codec."""

import json
import re
import signal

from cluster import Cluster, TestCase, train_args


class Training(TestCase):

    def hash_of(self, servers=2, **settings):
        with Cluster(servers=servers) as cluster:
            results = self.train(cluster, arguments=train_args(cluster, **settings))
            self.assertEqual(results[0]["params_hash"], results[1]["params_hash"])
            self.assertGreater(results[0]["test_accuracy"], 0.8)
            self.assertEqual(results[0]["skipped_steps"], 0)
            return results[0]

    def test_transports_and_placement_change_no_bit(self):
        for codec in ("none", "int8", "topk:0.1"):
            with self.subTest(codec=codec):
                tcp = self.hash_of(job__codec=codec, data__transport="tcp")
                shm = self.hash_of(job__codec=codec, data__transport="shm")
                one = self.hash_of(job__codec=codec, servers=1, data__connections=2, data__transport="tcp")
                self.assertEqual((tcp["transport"], shm["transport"]), ("tcp", "shm"))
                self.assertEqual(tcp["params_hash"], shm["params_hash"])
                self.assertEqual(tcp["params_hash"], one["params_hash"])

    def test_replies_can_be_changes(self):
        values = self.hash_of(job__codec="int8")
        changes = self.hash_of(job__codec="int8", job__reply="change", job__reply_codec="int8")
        self.assertNotEqual(values["params_hash"], changes["params_hash"])

    def test_bytes_on_the_wire_follow_the_codec(self):
        plain = self.hash_of(hidden=512, data__transport="tcp")
        small = self.hash_of(hidden=512, job__codec="topk:0.01", job__codec_min_elements=1024, data__transport="tcp")
        self.assertLess(small["wire_bytes_push"], plain["wire_bytes_push"] / 3)

    def test_a_worker_says_when_the_job_runs_and_when_an_epoch_has_ended(self):
        with Cluster(servers=2) as cluster:
            workers = [cluster.start_worker(rank, train_args(cluster, epochs=3)) for rank in (0, 1)]
            for rank, worker in enumerate(workers):
                worker.wait()
                said = worker.output()
                self.assertIn("job test runs: this is rank %d of 2, with 2 servers" % rank, said)
                self.assertEqual(len(re.findall(r"epoch \d has ended at step \d+ of \d+", said)), 3)
            self.assertIn(", test accuracy ", workers[0].output())   # which it evaluates

    def test_progress_and_result_are_complete(self):
        with Cluster() as cluster:
            arguments = train_args(cluster, workers=1, epochs=3)
            worker = cluster.start_worker(0, arguments)
            worker.wait()
            lines = [json.loads(line) for line in worker.output().split("\n") if line.startswith("{")]
            self.assertEqual(lines[-1]["step"], lines[-1]["steps"])
            evaluated = [line for line in lines if line["test_accuracy"] is not None]
            self.assertEqual([line["epoch"] for line in evaluated], [1, 2, 3])
            for key in ("loss", "accuracy", "step_ms", "push_wire_bytes", "push_raw_bytes", "pull_wire_bytes", "rate"):
                self.assertIn(key, lines[-1])
            self.assertLess(lines[-1]["loss"], lines[0]["loss"])
            result = cluster.result(0)
            self.assertEqual(result["steps"], lines[-1]["steps"])
            job = json.loads(cluster.ctl("status", "--json"))["jobs"][0]
            self.assertEqual((job["state"], int(job["round"])), ("JOB_FINISHED", result["steps"]))   # after the broadcast
            self.assertTrue(re.fullmatch(r"[0-9a-f]{16}", result["params_hash"]))

    def test_modes_train(self):
        for settings in ({"job__mode": "ssp", "job__staleness": 2}, {"job__mode": "asp"}, {"job__order": "exact"},
                         {"job__order": "fast"}, {"job__optimizer__kind": "adam", "job__optimizer__rate": 0.005},
                         {"job__optimizer__clip_norm": 1.0}):
            with self.subTest(**settings), Cluster(servers=2) as cluster:
                for result in self.train(cluster, arguments=train_args(cluster, **settings)):
                    self.assertGreater(result["test_accuracy"], 0.7)

    def test_a_trace_shows_the_way_of_every_partition(self):
        # Announced and granted over TCP; eager and in batches; by reference over shared memory.
        for more in ({"data__transport": "tcp", "data__eager_bytes": 64}, {"data__transport": "tcp"},
                     {"data__transport": "shm"}):
            with self.subTest(**more), Cluster(servers=0) as cluster:
                server_trace, worker_trace = cluster.path("server.json"), cluster.path("worker-%d.json")
                server = cluster.start_server(0, ["--trace=" + server_trace])
                self.train(cluster, arguments=train_args(cluster, epochs=1, job__codec="int8", **more),
                           per_rank=lambda rank: ["--trace=" + worker_trace % rank])
                server.signal(signal.SIGTERM)
                server.wait()
                ways = [self.stages(worker_trace % rank) for rank in (0, 1)]
                answers = self.stages(server_trace)
                self.assertTrue(ways[0])
                self.assertEqual(ways[0].keys(), ways[1].keys())
                for key in ways[0]:
                    for stages in (way[key] for way in ways):
                        self.assertLessEqual({"queue", "send", "push to reply", "decode"}, stages, key)
                    self.assertLessEqual({"aggregate", "send", "reply"}, answers[key], key)
                seen = set().union(*ways[0].values())
                self.assertIn("encode", seen)   # weights only
                if more == {"data__transport": "tcp"}:
                    self.assertIn("fuse", seen)

    @staticmethod
    def stages(path):
        """The names of the events by tensor, partition and round; round 0 is the broadcast, to which one rank sends."""
        with open(path) as file:
            events = json.load(file)["traceEvents"]
        found = {}
        for event in events:
            args = event.get("args", {})
            if "partition" in args and args["round"] > 0:
                found.setdefault((args["tensor"], args["partition"], args["round"]), set()).add(event["name"])
        return found
