"""A training job in the two machines: scheduler and servers in machine 1, workers in machine 2, so that every push and
reply crosses the network."""

import json
import re
import time
import urllib.request

from cluster import Cluster, TestCase, train_args

DATA = "/data.csv"      # in both machines; run.py puts it there
CONTROL_PORT = 7700
DEADLINE = 120          # seconds that any single wait may take
# Momentum, so that a push that is lost or applied twice in any round changes all that follows.
COMMON = {"job__optimizer__kind": "momentum", "job__optimizer__rate": "0.02", "batch": 8, "data__eager_bytes": 1024}
# Several partitions of some KiB with a residual: over RDMA all goes in packets.
SMALL = {**COMMON, "job__codec": "int8", "hidden": "128,32", "job__partition_bytes": "8KiB", "data__stripe_bytes": 4096}
# A partition of 75 KiB and one of 28, which are granted slots: over RDMA their stripes are written there.
LARGE = {**COMMON, "job__codec": "none", "hidden": "600,32", "job__partition_bytes": "256KiB", "data__stripe_bytes": 32768}
LARGE_BYTES = (12 + 32) * 600 * 4   # in slots, each way, of each worker and step
WORKERS = 2
# Emulated processors take long to answer, so a packet is sent again after 268 ms. Seven times are over before the cuts of
# the scenarios are. A queue pair that broke is soon made again.
RDMA = ["--rdma.timeout=16", "--rdma.reconnect_ms=250"]


PATH_UP = r"RDMA path \d+ is up"
PUBLISHED = 0.5         # seconds after which a server's metrics have what it has done


def applied(read):
    """Pushes that counted; `read` gives servers' metrics in Prometheus' text. Read until they stand still."""
    end = time.monotonic() + DEADLINE
    last = None
    while time.monotonic() < end:
        values = re.findall(r"^sluice_server_contributions_total\{.*\} (\S+)$", read(), re.MULTILINE)
        now = sum(int(float(value)) for value in values)
        if now == last:
            return now
        last = now
        time.sleep(PUBLISHED)
    raise AssertionError("servers were still counting pushes after %d s" % DEADLINE)


class Job:
    """Its processes end with the scenario."""
    transport = "auto"    # run.py sets it

    def __init__(self, pair, servers=1, scheduler_args=()):
        self._pair = pair
        self._scheduler_args = ["--node.servers=%d" % servers, "--node.lease_ms=20000", "--node.state_file=/tmp/state"]
        self._scheduler_args += list(scheduler_args)
        self.scheduler = self.start_scheduler()
        self.servers = [self.start_server(index) for index in range(servers)]
        self.workers = [None] * WORKERS

    @property
    def _address(self):
        return "%s:%d" % (self._pair[1].address(), CONTROL_PORT)

    def start_scheduler(self):
        host = self._pair[1].address()
        self.scheduler = self._pair[1].start(["sluice-scheduler", "--node.listen=" + host,
                                              "--node.port=%d" % CONTROL_PORT] + self._scheduler_args, "scheduler")
        self.scheduler.wait_for(r"listens on", deadline=DEADLINE)
        return self.scheduler

    def start_server(self, index):
        return self._pair[1].start(["sluice-server", "--node.scheduler=" + self._address, "--node.loops=1",
                                    "--node.listen=" + self._pair[1].address(), "--node.id=server-%d" % index,
                                    "--node.metrics_port=0"] + RDMA, "server-%d" % index)

    def start_worker(self, rank, arguments):
        self.workers[rank] = self._pair[2].start(
            ["sluice-worker", "--node.scheduler=" + self._address, "--node.listen=" + self._pair[2].address(),
             "--rank=%d" % rank, "--result=" + self._result(rank), "--data.transport=" + self.transport,
             "--data.snapshot_dir=/tmp/snapshots"] + RDMA + arguments, "worker-%d" % rank)
        return self.workers[rank]

    @staticmethod
    def _result(rank):
        return "/tmp/result-%d.json" % rank

    def step(self):
        """The last one that any worker has said."""
        return max(int(step) for worker in self.workers for step in re.findall(r'"step":(\d+)', worker.output()) or [0])

    def end(self):
        """The workers' results by rank, once they have ended in order."""
        for worker in self.workers:
            worker.wait(deadline=DEADLINE)
        return [json.loads(self._pair[2].fetch(self._result(rank))) for rank in range(WORKERS)]

    def status(self):
        said = self._pair[1].run(["sluicectl", "status", "--json", "--scheduler=" + self._address])
        return json.loads(said)["jobs"][0]

    def applied(self):
        """Pushes that counted at the servers that run now."""
        addresses = [server.wait_for(r"metrics at (http\S+)").group(1) for server in self.servers if server.running()]
        return applied(lambda: self._pair[1].run("wget -q -O - " + " ".join(addresses)))

    def transports(self, results):
        """As the summaries name them, else as the workers' links grew."""
        named = {result["transport"] for result in results if "transport" in result}
        return ", ".join(sorted(named)) or ("rdma" if self.rdma_paths() else "tcp")

    def rdma_paths(self):
        """How often a path over RDMA came up, at the workers."""
        return sum(len(re.findall(PATH_UP, worker.output())) for worker in self.workers)

    def rdma_packets(self):
        """That the workers' machine sent over RDMA, since its devices were made."""
        said = self._pair[2].run("cat /sys/class/infiniband/*/ports/1/hw_counters/sent_pkts")
        return sum(int(count) for count in said.split())


class Reference:
    """The same job on this machine, without faults, over TCP: its bits, rounds and applied pushes."""
    _known = {}

    def __init__(self, settings, epochs):
        with Cluster(servers=0) as cluster:
            server = cluster.start_server(0, ["--node.metrics_port=0"])
            arguments = train_args(cluster, WORKERS, epochs=epochs, **settings, data__transport="tcp")
            results = TestCase().train(cluster, WORKERS, arguments)
            self.bits = results[0]["params_hash"]
            self.accuracy = results[0]["test_accuracy"]
            self.rounds = int(json.loads(cluster.ctl("status", "--json"))["jobs"][0]["round"])
            address = server.wait_for(r"metrics at (http\S+)").group(1)
            self.applied = applied(lambda: self._read(address))

    @staticmethod
    def _read(address):
        with urllib.request.urlopen(address, timeout=10) as answer:
            return answer.read().decode()

    @classmethod
    def of(cls, settings, epochs):
        """Kept, as many scenarios have the same."""
        key = (settings["hidden"], epochs)
        if key not in cls._known:
            cls._known[key] = cls(settings, epochs)
        return cls._known[key]


def worker_arguments(settings, epochs):
    return train_args(None, WORKERS, epochs=epochs, **settings, data=DATA)
