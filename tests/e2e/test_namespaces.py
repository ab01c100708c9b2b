"""deploy/namespaces: a cluster of racks on this machine comes up, knows its topology, and leaves nothing behind."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from cluster import TestCase, binary, clean_environment

HERE = os.path.dirname(os.path.abspath(__file__))
MAIN = os.path.join(HERE, "..", "..", "deploy", "racks", "main.py")


def namespaces_can_be_made():
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    probe = "ip link add probe type bridge && tc qdisc add dev probe root tbf rate 1mbit burst 16384 latency 20ms && mount -t tmpfs tmpfs /run"
    try:
        return subprocess.run(["unshare", "--net", "--mount"] + user + ["sh", "-c", probe], capture_output=True,
                              check=False).returncode == 0
    except OSError:
        return False


@unittest.skipUnless(namespaces_can_be_made(), "network namespaces with shaped links cannot be made here")
class Namespaces(TestCase):

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="sluice-racks-", dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.addCleanup(self.call, "down")

    def call(self, *arguments):
        """(exit code, what was printed)"""
        binaries = os.path.dirname(os.path.dirname(os.path.abspath(binary("scheduler"))))
        done = subprocess.run([sys.executable, "-B", os.path.abspath(MAIN)] + list(arguments), cwd=self.folder, capture_output=True,
                              text=True, check=False, timeout=60, env=dict(clean_environment(), RACKS_BINARIES=binaries))
        return done.returncode, done.stdout + done.stderr

    def test_a_cluster_of_racks(self):
        code, said = self.call("ctl", "status")
        self.assertEqual(code, 1)
        self.assertIn("deploy/namespaces up", said)
        for wrong in (["--racks=0"], ["--host-rate=fast"]):
            self.assertNotEqual(self.call("up", *wrong)[0], 0)
        code, said = self.call("up", "--hosts=1")
        self.assertEqual(code, 0, said)
        self.assertEqual(self.call("up")[0], 1)   # one at a time

        code, said = self.call("ctl", "status", "--json")
        self.assertEqual(code, 0, said)
        self.assertEqual({m["id"] for m in json.loads(said)["members"]}, {"r1h1", "r2h1"})
        code, said = self.call("ctl", "config")
        self.assertIn("topology.files", said)
        with open(os.path.join(self.folder, "out", "namespaces", "scheduler.log")) as log:
            self.assertIn("2 hosts, 3 switches, 4 links", log.read())

        code, said = self.call("exec", "r1h1", "ip", "-br", "address")
        self.assertEqual(code, 0, said)
        self.assertIn("10.80.1.1/16", said)
        self.assertEqual(self.call("exec", "nowhere", "true")[0], 1)
        code, said = self.call("throttle", "1", "20mbit")
        self.assertEqual(code, 0, said)
        self.assertEqual(self.call("throttle", "1", "slow")[0], 1)
        code, said = self.call("status")
        self.assertIn("rack 2 rail 0", said)

        with open(os.path.join(self.folder, "out", "namespaces", "state.json")) as file:
            pid = json.load(file)["pid"]
        self.assertEqual(self.call("down")[0], 0)
        self.assertFalse(os.path.exists("/proc/%d" % pid))
        self.assertEqual(self.call("status")[0], 1)

    # The shaper's burst became smaller than a packet that waited: nothing crossed the link any more, and `job` never ended.
    def test_a_job_goes_on_over_a_throttled_link_and_ends_with_the_cluster(self):
        code, said = self.call("up", "--hosts=1")
        self.assertEqual(code, 0, said)
        binaries = os.path.dirname(os.path.dirname(os.path.abspath(binary("scheduler"))))
        job = subprocess.Popen([sys.executable, "-B", os.path.abspath(MAIN), "job", "--epochs=1000"], cwd=self.folder, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(clean_environment(), RACKS_BINARIES=binaries))
        self.addCleanup(job.kill)

        def reach(round_number):
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                code, said = self.call("ctl", "workers", "--json")
                rounds = [int(w.get("round", 0)) for w in json.loads(said).get("workers", [])] if code == 0 else []
                if rounds and min(rounds) >= round_number:
                    return min(rounds)
            self.fail("round %d was not reached: %s" % (round_number, said))

        before = reach(20)
        self.assertEqual(self.call("throttle", "1", "20mbit")[0], 0)
        reach(before + 5)
        self.assertEqual(self.call("down")[0], 0)
        said, _ = job.communicate(timeout=30)
        self.assertEqual(job.returncode, 1)
        self.assertIn("taken down while the job ran", said)
