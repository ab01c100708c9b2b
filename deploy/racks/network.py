"""Racks of hosts in network namespaces: rate-limited links to a switch a rack, and a narrower one between the racks.

Each host is a namespace. Its eth0 (eth1, ... with more rails) hangs on the switch of its rack; the racks' switches hang on a
core by one link each. Every link is shaped by tbf at both ends, so both directions have its rate. Beside this there is a
network for the scheduler (`control`), which nothing limits. Rails are networks of their own, from the host to the core.

Everything lives in namespaces of the process that called enter(): it needs no root, and goes away with its last process.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys

INSIDE = "RACKS_INSIDE"
CONTROL = "10.78.0.1"   # where the scheduler listens


class NetworkError(Exception):
    """What failed, in words."""


def enter(script, arguments, stay=False):
    """Starts this script again inside namespaces; returns there. stay: it outlives the process that started it."""
    if os.environ.get(INSIDE) == "1":
        return
    command = ["unshare", "--net", "--mount"] + ([] if os.geteuid() == 0 else ["--user", "--map-root-user"])
    if not stay:
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    os.execvpe("unshare", command + [sys.executable, "-B", script] + arguments, dict(os.environ, **{INSIDE: "1"}))


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NetworkError("%s: %s" % (" ".join(command), done.stderr.strip()))
    return done.stdout


def bits(rate):
    """Bits a second of a rate as tc takes it."""
    for unit, factor in (("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3)):
        if rate.endswith(unit):
            return float(rate[:-len(unit)]) * factor
    raise NetworkError("a rate is a number and gbit, mbit or kbit, not \"%s\"" % rate)


def shape(prefix, device, rate, change=False):
    # A burst of 5 ms of the rate and 20 ms of queue: as a switch with a small buffer. At least a packet as large as the stack
    # makes them: one that waits when the rate changes, and is larger than the new burst, would block the link for ever.
    burst = max(80000, int(bits(rate) / 8 * 0.005))
    run(*prefix, "tc", "qdisc", "change" if change else "add", "dev", device, "root", "tbf", "rate", rate, "burst",
        str(burst), "latency", "20ms")


class RackNetwork:
    def __init__(self, racks=2, hosts=2, host_rate="1gbit", core_rate="200mbit", rails=1, congestion="reno"):
        self.racks, self.per_rack, self.rails = racks, hosts, rails
        self.host_rate, self.core_rate = host_rate, core_rate
        self.hosts = ["r%dh%d" % (rack, host) for rack in range(1, racks + 1) for host in range(1, hosts + 1)]
        run("mount", "-t", "tmpfs", "tmpfs", "/run")   # ours alone: the names of namespaces go there
        os.makedirs("/run/netns")
        run("ip", "link", "set", "lo", "up")
        self._bridge("control")
        run("ip", "addr", "add", CONTROL + "/16", "dev", "control")
        for name in self.hosts:
            run("ip", "netns", "add", name)
            self.inside(name, "ip", "link", "set", "lo", "up")
            self._cable("control", name, "ctl0", self.control_address(name))
        for rail in range(rails):
            self._bridge("core%d" % rail)
            for rack in range(1, racks + 1):
                self._bridge("rack%d.%d" % (rack, rail))
                up, down = self.uplink(rack, rail)
                run("ip", "link", "add", up, "type", "veth", "peer", "name", down)
                run("ip", "link", "set", up, "master", "rack%d.%d" % (rack, rail), "up")
                run("ip", "link", "set", down, "master", "core%d" % rail, "up")
                shape((), up, core_rate)
                shape((), down, core_rate)
            for name in self.hosts:
                port = self._cable("rack%s.%d" % (name[1:name.index("h")], rail), name, "eth%d" % rail, self.address(name, rail))
                shape((), port, host_rate)
                shape(self.prefix(name), "eth%d" % rail, host_rate)
        for prefix in [()] + [self.prefix(name) for name in self.hosts]:
            run(*prefix, "sysctl", "-q", "-w", "net.ipv4.tcp_congestion_control=" + congestion)

    @staticmethod
    def _bridge(name):
        run("ip", "link", "add", name, "type", "bridge")
        run("ip", "link", "set", name, "up")

    @staticmethod
    def uplink(rack, rail):
        return "up%d.%d" % (rack, rail), "down%d.%d" % (rack, rail)

    def _cable(self, bridge, host, device, address):
        port = "%s.%s" % (host, device)
        run("ip", "link", "add", port, "type", "veth", "peer", "name", device, "netns", host)
        run("ip", "link", "set", port, "master", bridge, "up")
        self.inside(host, "ip", "addr", "add", address + "/16", "dev", device)
        self.inside(host, "ip", "link", "set", device, "up")
        return port

    def address(self, host, rail=0):
        rack, number = host[1:].split("h")
        return "10.%d.%s.%s" % (80 + rail, rack, number)

    def control_address(self, host):
        rack, number = host[1:].split("h")
        return "10.78.%s.%s" % (rack, number)

    def prefix(self, host):
        return ["ip", "netns", "exec", host]

    def inside(self, host, *command):
        return run(*self.prefix(host), *command)

    def throttle(self, rack, rate, rail=0):
        """Both directions of a rack's link to the core, from now on."""
        for device in self.uplink(rack, rail):
            shape((), device, rate, change=True)

    def cut(self, rack, rail=0, whole=False):
        """A rack's link to the core drops all packets, both ways and without a word to the hosts; whole: as before."""
        run("ip", "link", "set", self.uplink(rack, rail)[0], "up" if whole else "down")

    def counters(self):
        """Bytes that each rack's link has carried so far, {(rack, rail): (up, down)}."""
        result = {}
        for rack in range(1, self.racks + 1):
            for rail in range(self.rails):
                up, down = self.uplink(rack, rail)
                result[rack, rail] = tuple(
                    json.loads(run("ip", "-j", "-s", "link", "show", "dev", device))[0]["stats64"]["tx"]["bytes"]
                    for device in (up, down))
        return result

    def remove(self):
        """So that this process can make another one."""
        for name in self.hosts:
            run("ip", "netns", "del", name)
        for rail in range(self.rails):
            for rack in range(1, self.racks + 1):
                run("ip", "link", "del", self.uplink(rack, rail)[0])
                run("ip", "link", "del", "rack%d.%d" % (rack, rail))
            run("ip", "link", "del", "core%d" % rail)
        run("ip", "link", "del", "control")
        run("umount", "--lazy", "/run")

    def topology(self):
        """What an operator would know of this network, in Sluice's own format (docs/topology.md)."""
        lines = ["sluice-topology 1", "# %d racks of %d hosts: %s to each host, %s between the racks, %d rail(s)" %
                 (self.racks, self.per_rack, self.host_rate, self.core_rate, self.rails)]
        rate = lambda text: "%gMb/s" % (bits(text) / 1e6)
        for rail in range(self.rails):
            suffix = "" if self.rails == 1 else ".%d" % rail
            lines.append("switch core%s" % suffix)
            for rack in range(1, self.racks + 1):
                lines.append("switch rack%d%s" % (rack, suffix))
                lines.append("link rack%d%s core%s %s" % (rack, suffix, suffix, rate(self.core_rate)))
        for name in self.hosts:
            lines.append("host %s" % name)
            for rail in range(self.rails):
                suffix = "" if self.rails == 1 else ".%d" % rail
                lines.append("link %s rack%s%s %s" % (name, name[1:name.index("h")], suffix, rate(self.host_rate)))
        return "\n".join(lines) + "\n"
