"""Network namespaces of their own, joined by a switch over links of a fixed rate. Nothing outlives the process.

enter() moves this process into new user, mount and network namespaces, so no root is needed and whatever is made goes away
with the last process. Each node is a namespace with one interface, eth0; both ends of its link are shaped by tbf, so both
directions have the rate.
"""

import ctypes
import os
import subprocess
import sys

from processes import BenchError

SWITCH = "10.77.0.1"


def enter(script, arguments):
    """Starts this script again inside namespaces; returns there."""
    if os.environ.get("SLUICE_BENCH_INSIDE") == "1":
        return
    command = ["unshare", "--net", "--mount"] + ([] if os.geteuid() == 0 else ["--user", "--map-root-user"])
    environment = dict(os.environ, SLUICE_BENCH_INSIDE="1")
    ctypes.CDLL(None).prctl(1, 15)
    os.execvpe("unshare", command + [sys.executable, "-B", script] + arguments, environment)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError("%s: %s" % (" ".join(command), done.stderr.strip()))
    return done.stdout


class ShapedNetwork:
    def __init__(self, nodes, rate, congestion, mtu):
        """nodes: {name: address}; rate as tc takes it, e.g. "1gbit"."""
        run("mount", "-t", "tmpfs", "tmpfs", "/run")  # ours alone: the names of namespaces go there
        os.makedirs("/run/netns")
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "switch", "type", "bridge")
        run("ip", "addr", "add", SWITCH + "/24", "dev", "switch")
        run("ip", "link", "set", "switch", "mtu", str(mtu), "up")
        self.nodes = nodes
        self._congestion = congestion
        self._pin("sysctl")
        for name, address in nodes.items():
            run("ip", "netns", "add", name)
            run("ip", "link", "add", "to-" + name, "mtu", str(mtu), "type", "veth", "peer", "name", "eth0", "mtu", str(mtu),
                "netns", name)
            run("ip", "link", "set", "to-" + name, "master", "switch", "up")
            self.inside(name, "ip", "link", "set", "lo", "up")
            self.inside(name, "ip", "addr", "add", address + "/24", "dev", "eth0")
            self.inside(name, "ip", "link", "set", "eth0", "up")
            shape = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "10ms"]
            run("tc", "qdisc", "add", "dev", "to-" + name, *shape)
            self.inside(name, "tc", "qdisc", "add", "dev", "eth0", *shape)
            self._pin("ip", "netns", "exec", name, "sysctl")

    def _pin(self, *sysctl):
        run(*sysctl, "-q", "-w", "net.ipv4.tcp_congestion_control=" + self._congestion)

    def prefix(self, name):
        return ["ip", "netns", "exec", name]

    def inside(self, name, *command):
        return run(*self.prefix(name), *command)

    def counters(self):
        """Bytes so far, {(node, "out" or "in"): bytes}, as the node's interface counts them."""
        result = {}
        for name in self.nodes:
            for direction, file in (("out", "tx_bytes"), ("in", "rx_bytes")):
                result[name, direction] = int(self.inside(name, "cat", "/sys/class/net/eth0/statistics/" + file))
        return result
