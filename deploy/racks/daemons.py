"""The daemons of a cluster on a RackNetwork, as children of this process."""

import ctypes
import os
import signal
import subprocess
import time

from network import CONTROL, NetworkError


def die_with_parent():
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM)


def clean_environment():
    """Settings of the surrounding shell are for other clusters than this one."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "DMLC_", "SLURM_"))
            and k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}


class Daemons:
    """Use as a context: whatever it started is ended at the end, and nothing else is touched."""

    def __init__(self, network, binaries, folder):
        self.network, self._binaries, self._folder = network, binaries, folder
        self._children = []
        self.address = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for _, child in reversed(self._children):
            if child.poll() is None:
                child.terminate()
        for _, child in self._children:
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def path(self, name):
        return os.path.join(self._folder, name)

    def start(self, name, role, arguments, host=None):
        prefix = self.network.prefix(host) if host else []
        command = prefix + [os.path.join(self._binaries, role, "sluice-" + role)] + arguments
        with open(self.path(name + ".log"), "w") as out:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                     env=clean_environment(), preexec_fn=die_with_parent)
        self._children.append((name, child))
        return child

    def of_host(self, host):
        """Flags of a server or worker on this host."""
        rails = ",".join(self.network.address(host, rail) for rail in range(1, self.network.rails))
        return ["--node.scheduler=" + self.address, "--node.host=" + host, "--node.listen=0.0.0.0",
                "--node.advertise=" + self.network.address(host)] + (["--node.rails=" + rails] if rails else [])

    def start_scheduler(self, servers, flags=()):
        topology, port_file = self.path("topology.txt"), self.path("port")
        with open(topology, "w") as file:
            file.write(self.network.topology())
        if os.path.exists(port_file):
            os.unlink(port_file)
        scheduler = self.start("scheduler", "scheduler", ["--node.listen=" + CONTROL, "--node.port=0", "--node.port_file=" + port_file,
                                                          "--node.servers=%d" % servers, "--topology.files=" + topology] + list(flags))
        deadline = time.monotonic() + 30
        while self.address is None:
            if scheduler.poll() is not None or time.monotonic() > deadline:
                raise NetworkError("the scheduler did not start; see %s" % self.path("scheduler.log"))
            if os.path.exists(port_file):
                self.address = "%s:%s" % (CONTROL, open(port_file).read().split()[0])
            time.sleep(0.02)

    def start_server(self, host, flags=()):
        self.start("server-" + host, "server", self.of_host(host) + ["--node.id=" + host, "--node.loops=1", "--node.drain_ms=0"] +
                   list(flags), host)

    def check(self):
        for name, child in self._children:
            if child.poll() not in (None, 0):
                raise NetworkError("%s ended with code %d; see %s" % (name, child.poll(), self.path(name + ".log")))
