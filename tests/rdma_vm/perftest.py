"""What perftest's programs measure between two machines. Emulated as they are, only ratios within one run mean anything.

  result = write_bandwidth(pair, size=1 << 20, queue_pairs=4)      result.value is in GB/s (10^9)
  result = write_latency(pair, size=4096)                          result.value is in microseconds, one way
"""

import dataclasses
import re

PORT = 18515           # perftest's default, 0x4853
DEADLINE = 120         # seconds for one measurement
TIMEOUT = 18           # exponent of a packet's time until it is sent again: 1 s. The default, 67 ms, is too short here
TICK = 0.01            # seconds of a jiffy in /proc/stat


@dataclasses.dataclass
class Measured:
    value: float            # GB/s, or microseconds
    client_seconds: float   # of processor time that the client process had (Soft-RoCE works in softirqs, too)
    machine_seconds: float  # that the client's machine was busy meanwhile, all processors together
    gigabytes: float        # that the client moved

    @property
    def seconds_a_gigabyte(self):
        return self.machine_seconds / self.gigabytes


def device(rail=0):
    return "rxe%d" % rail


def gid_index(machine, rail=0):
    """Of the RoCEv2 GID that is made of the card's IPv4 address; it can change when the link does."""
    folder = "/sys/class/infiniband/%s/ports/1" % device(rail)
    mapped = ("".join("%02x" % int(part) for part in machine.address(rail).split(".")))
    wanted = "0000:0000:0000:0000:0000:ffff:%s:%s" % (mapped[:4], mapped[4:])
    # Types of entries that are empty cannot be read.
    said = machine.run("cd %s; for i in 0 1 2 3 4 5 6 7; do read -r gid < gids/$i; "
                       "[ $gid = %s ] && echo $i $(cat gid_attrs/types/$i); done; true" % (folder, wanted))
    for line in said.split("\n"):
        if line.endswith("RoCE v2"):
            return int(line.split()[0])
    raise AssertionError("%s has no RoCEv2 GID for %s" % (machine.name, machine.address(rail)))


def busy_seconds(line):
    """Of a machine, from the first line of /proc/stat: all but idle and iowait."""
    fields = [int(field) for field in line.split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) * TICK


def perftest(pair, program, column, size, iterations, rail=0, queue_pairs=None, more=()):
    """The number in a column of the last line; machine 1 serves, machine 2 is the client."""
    server, client = pair[1], pair[2]

    def command(machine):
        words = [program, "-F", "-d", device(rail), "-x", str(gid_index(machine, rail)), "-s", str(size), "-n",
                 str(iterations), "-p", str(PORT), "-u", str(TIMEOUT)]
        return words + (["-q", str(queue_pairs)] if queue_pairs else []) + list(more)

    serving = server.start(command(server), "%s as server" % program)
    server.run("until grep -q ':%04X .* 0A ' /proc/net/tcp /proc/net/tcp6; do sleep 0.05; done" % PORT)
    said = client.run("head -n 1 /proc/stat; time -f '%%U %%S seconds of the client' %s; status=$?; head -n 1 /proc/stat; "
                      "exit $status" % " ".join(command(client) + [server.address(rail)]), deadline=DEADLINE)
    serving.wait(deadline=DEADLINE)
    rows = re.findall(r"^ %d +%s.*$" % (size, r"\d+"), said, re.MULTILINE)
    if not rows:
        raise AssertionError("%s printed no line for %d bytes:\n%s" % (program, size, said))
    user, system = re.search(r"^([\d.]+) ([\d.]+) seconds of the client$", said, re.MULTILINE).groups()
    first, last = re.findall(r"^cpu .*$", said, re.MULTILINE)
    return Measured(float(rows[-1].split()[column]), float(user) + float(system), busy_seconds(last) - busy_seconds(first),
                    size * iterations * (queue_pairs or 1) / 1e9)


def write_bandwidth(pair, size=1 << 20, iterations=200, queue_pairs=1, rail=0):
    """ib_write_bw's average. `iterations` are of each queue pair."""
    result = perftest(pair, "ib_write_bw", 3, size, iterations, rail, queue_pairs, ["--report_gbits"])
    return dataclasses.replace(result, value=result.value / 8)


def write_latency(pair, size=4096, iterations=1000, rail=0):
    """ib_write_lat's average; it polls memory and cannot sleep on events."""
    return perftest(pair, "ib_write_lat", 5, size, iterations, rail)


def send_latency(pair, size=4096, iterations=1000, rail=0, events=True):
    """ib_send_lat's average, asleep between completion events (or polling)."""
    return perftest(pair, "ib_send_lat", 5, size, iterations, rail, more=["-e"] if events else [])
