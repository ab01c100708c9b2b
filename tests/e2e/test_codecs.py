"""Codecs by tensor and by round, as an operator sees them."""

import json
import unittest
import urllib.request

from cluster import Cluster, TestCase, step_pattern, train_args

TAMED = {"job__codec": "topk:0.05", "job__codec_warmup_rounds": 60, "job__codec_rules": "layer1*,kind=weight=int4",
         "job__optimizer__kind": "sgd", "job__momentum_correction": 0.9, "job__local_clip_norm": 5,
         "job__codec_stats_rounds": 5}


class Codecs(TestCase):
    def test_rules_and_what_was_measured_are_shown(self):
        with Cluster(servers=2) as cluster:
            arguments = train_args(cluster, **TAMED) + ["--node.metrics_port=0"]
            workers = [cluster.start_worker(rank, arguments) for rank in (0, 1)]
            port = int(workers[0].wait_for(r"metrics at [^ ]*:(\d+)/").group(1))
            workers[0].wait_for(step_pattern(80))
            with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port) as page:
                metrics = page.read().decode()
            for worker in workers:
                worker.wait()
            tensors = {t["name"]: t for t in json.loads(cluster.ctl("tensors", "--json"))["tensors"]}
            text = cluster.ctl("tensors")
        weights = [t for t in tensors.values() if t["kind"] == "TENSOR_WEIGHT"]
        self.assertEqual([t["codec"] for t in weights], ["topk:0.05", "int4"])
        self.assertEqual({t["codec"] for t in tensors.values() if t["kind"] == "TENSOR_BIAS"}, {"none"})
        sparse, dense = [t["measured"] for t in weights]
        self.assertGreater(int(sparse["round"]), 60)
        self.assertGreater(sparse["relative_error"], 3 * dense["relative_error"])
        self.assertGreater(sparse["residual_ratio"], 0.5)
        self.assertLess(int(sparse["wire_bytes"]), int(sparse["raw_bytes"]) / 8)
        self.assertIn("rule layer1*,kind=weight=int4", text)
        self.assertIn("a bias", text)
        for name in ("compression_ratio", "relative_error", "residual_ratio"):
            self.assertIn("sluice_worker_tensor_" + name, metrics)

    def test_a_killed_worker_goes_on_to_the_same_bits(self):
        """With its velocity, in the middle of the warm-up."""
        def arguments(cluster):
            return train_args(cluster, data__snapshot_dir=cluster.path("snapshots"), **TAMED)

        with Cluster(servers=2) as cluster:
            results = self.train(cluster, arguments=arguments(cluster))
            expected = results[0]["params_hash"]
            self.assertGreater(results[0]["test_accuracy"], 0.8)
        with Cluster(servers=2) as cluster:
            other, victim = [cluster.start_worker(rank, arguments(cluster)) for rank in (0, 1)]
            for step in (20, 90):
                victim.wait_for(step_pattern(step))
                victim.kill()
                victim = cluster.start_worker(1, arguments(cluster))
                victim.wait_for("continues from its snapshot at step")
            victim.wait()
            other.wait()
            self.assertEqual([cluster.result(rank)["params_hash"] for rank in (0, 1)], [expected] * 2)

    def test_auto_trains_and_says_what_it_has_chosen(self):
        with Cluster(servers=2) as cluster:
            results = self.train(cluster, arguments=train_args(cluster, job__codec="auto", epochs=3))
            self.assertGreater(results[0]["test_accuracy"], 0.8)
            self.assertIn("chosen by auto", cluster.ctl("tensors"))

    def test_a_calibration_is_stored_and_used(self):
        with Cluster(servers=2) as cluster:
            rules = cluster.path("ranges")
            for percentile in (0, 99.9):
                name = "p%d" % percentile
                self.train(cluster, arguments=train_args(cluster, job__name="look" + name, data__calibration_file=rules,
                                                         data__calibration_percentile=percentile, epochs=2))
                with open(rules) as file:
                    text = file.read()
                self.assertRegex(text, r"^layer0.weight=int8:static:[0-9.e-]+;\nlayer1.weight=int8:static:[0-9.e-]+;\n$")
                results = self.train(cluster, arguments=train_args(cluster, job__name="use" + name, job__codec_rules=text,
                                                                   job__codec_stats_rounds=10))
                self.assertGreater(results[0]["test_accuracy"], 0.8)
                measured = [t["measured"] for t in json.loads(cluster.ctl("tensors", "--json", "--job=use" + name))["tensors"]
                            if t["kind"] == "TENSOR_WEIGHT"]
                for tensor in measured:
                    self.assertIn("int8:static:", tensor["codec"])
                    self.assertLess(tensor["relative_error"], 0.8)   # the last gradients are far below the range

    def test_what_contradicts_itself_is_refused_with_the_reason(self):
        for more, words in (({"job__momentum_correction": 0.9}, "count twice"),
                            ({"job__codec_rules": "a=int9"}, 'the nearest is "int8"'),
                            ({"job__codec": "auto", "job__auto_codecs": "none,terngrad"}, "keeps no residual")):
            with self.subTest(**more), Cluster() as cluster:
                worker = cluster.start_worker(0, train_args(cluster, workers=1, **more))
                worker.wait_for(words)
                worker.wait(2)


if __name__ == "__main__":
    unittest.main()
