"""sluicectl links --probe: servers measure the links of the topology that training has not (docs/topology.md, "Probes")."""

import json
import os
import signal
import tempfile

from cluster import Cluster, TestCase, binary, step_pattern, train_args

TOPOLOGY = """sluice-topology 1
host   h[0-3]
switch r[1-2],core
link   h[0-1] r1
link   h[2-3] r2
link   r[1-2] core
"""
NETWORK_LINKS = 12   # both directions


class Probes(TestCase):

    def cluster(self, servers=3):
        """Server i is on host i of the topology; this machine's loopback is all that joins them."""
        handle, path = tempfile.mkstemp(prefix="sluice-topology-", dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(os.remove, path)
        with os.fdopen(handle, "w") as file:
            file.write(TOPOLOGY)
        cluster = Cluster(servers=0, scheduler_args=["--topology.files=" + path, "--node.heartbeat_ms=100"])
        self.addCleanup(cluster.__exit__)
        for i in range(servers):
            cluster.servers.append(cluster.start_server(i, ["--node.host=h%d" % i]))
            cluster.scheduler.wait_for(r"server_registered.*server-%d" % i)
        return cluster

    def probe(self, cluster, *arguments, code=0):
        said = json.loads(cluster.ctl("links", "--probe", "--json", *arguments, code=code))
        return said["probe"], {(e["from"], e["to"]): e for e in said["estimates"]}

    def test_each_link_that_servers_reach_gets_an_estimate(self):
        cluster = self.cluster()
        probe, links = self.probe(cluster)
        self.assertEqual(probe["failures"], [])
        self.assertRegex(probe["summary"], r"probed 4 pairs in \d+\.\d s: slowest \S+ -> \S+ \d+\.\d+ [MG]b/s")
        self.assertEqual(sorted(probe["answer"]["unreachable"]), ["h3 -> r2", "r2 -> h3"])
        self.assertEqual(len(links), NETWORK_LINKS)
        for (start, end), link in links.items():
            with self.subTest("%s -> %s" % (start, end)):
                if "h3" in (start, end):
                    self.assertEqual(link["source"], "assumed")
                    continue
                self.assertEqual(link["source"], "measured")
                self.assertGreater(link["confidence"], 0.5)
                self.assertGreater(link["bytes_per_second"], 1e6)
                self.assertGreater(link["rtt_us"], 0)
        # It is fresh now: nothing is left in question, unless all are asked for.
        self.assertEqual(self.probe(cluster)[0]["answer"]["pairs"], 0)
        self.assertIn("nothing to probe", cluster.ctl("links", "--probe"))
        probe, _ = self.probe(cluster, "--all", "--bytes=1MiB")
        self.assertEqual((probe["answer"]["pairs"], int(probe["answer"]["bytes"])), (4, 4 << 20))
        text = cluster.ctl("links", "--probe", "--all")
        self.assertRegex(text, r"(?m)^probed 4 pairs")
        self.assertIn("since no two servers have them on their way: ", text)
        self.assertRegex(text, r"(?m)^r1 +core .* measured ")

    def test_a_server_that_dies_meanwhile_is_a_row_of_errors(self):
        cluster = self.cluster()
        cluster.servers[2].stop()   # connects, and says nothing more
        ctl = cluster.run("probe", [binary("ctl"), "--scheduler=" + cluster.address, "links", "--probe", "--json"])
        cluster.scheduler.wait_for("probe_begun")
        again = cluster.ctl("links", "--probe", code=1)
        self.assertRegex(again, r"FAILED_PRECONDITION: .*links are being probed already: request \d+, for \d+\.\d s, round")
        cluster.servers[2].kill()
        ctl.wait()
        said = json.loads(ctl.output())
        self.assertTrue(said["probe"]["failures"])
        for failure in said["probe"]["failures"]:
            self.assertIn("server-2", failure)
        self.assertIn("failed", said["probe"]["summary"])
        links = {(e["from"], e["to"]): e for e in said["estimates"]}
        self.assertEqual(links["h0", "r1"]["source"], "measured")
        self.assertEqual(links["h2", "r2"]["source"], "assumed")
        # Everybody else lives.
        for process in [cluster.scheduler] + cluster.servers[:2]:
            self.assertTrue(process.running(), process.name)
        probe, _ = self.probe(cluster, "--all")
        self.assertEqual((probe["answer"]["pairs"], probe["failures"]), (2, []))
        cluster.servers[0].signal(signal.SIGTERM)
        cluster.servers[0].wait()

    def test_training_goes_on_and_keeps_its_bits(self):
        hashes = set()
        for probing in (False, True):
            cluster = self.cluster()
            arguments = train_args(cluster, epochs=60, job__order="exact", data__transport="tcp")
            workers = [cluster.start_worker(rank, arguments + ["--node.host=h%d" % rank]) for rank in (0, 1)]
            if probing:
                workers[0].wait_for(step_pattern(20))
                probe, _ = self.probe(cluster, "--all", "--bytes=4MiB")
                self.assertEqual((probe["answer"]["pairs"], probe["failures"]), (4, []))
            for worker in workers:
                worker.wait()
            hashes |= {cluster.result(rank)["params_hash"] for rank in (0, 1)}
        self.assertEqual(len(hashes), 1)

    def test_requests_that_make_no_sense_say_so(self):
        cluster = self.cluster(servers=1)
        self.assertIn("probes need servers on two hosts at least", cluster.ctl("links", "--probe", code=1))
        self.assertIn("bytes: 65536 to 268435456 are possible", cluster.ctl("links", "--probe", "--bytes=1GiB", code=1))
        self.assertIn("links only", cluster.ctl("status", "--probe", code=2))

