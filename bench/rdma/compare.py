#!/usr/bin/python3 -B
"""The data plane over RDMA beside perftest, between two machines: bandwidth, latency, processor time.

Two machines of a cluster (each runs the same list in the same order, so start them within a minute of each other):
  bazel build //bench/rdma:sluice-rdma-bench
  bench/rdma/compare.py --listen=ADDRESS [--device=mlx5_0]       on one; ADDRESS is of the interface behind its device
  bench/rdma/compare.py --connect=ADDRESS [--device=mlx5_0]      on the other; prints the table

Two emulated machines with Soft-RoCE on this host (no RDMA device is needed; only the ratios mean anything):
  deploy/setup.sh vm
  bazel build //bench/rdma:sluice-rdma-bench
  bench/rdma/compare.py --vm

perftest's ib_write_bw and ib_write_lat set the scale; ib_send_lat -e sleeps between events as the data plane does. All are
run in turns, --repetitions times, and medians compared.
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
OURS = "sluice-rdma-bench"
PORT, OUR_PORT = 18515, 7800


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--listen", metavar="ADDRESS", help="serve; ADDRESS is this machine's")
    where.add_argument("--connect", metavar="ADDRESS", help="measure; ADDRESS is the serving machine's")
    where.add_argument("--vm", action="store_true", help="between two emulated machines on this host")
    parser.add_argument("--device", default="mlx5_0", help="RDMA device, the same name on both (%(default)s; rxe0 with --vm)")
    parser.add_argument("--gid-index", help="perftest's -x; needed on RoCE (show_gids). The data plane chooses by itself")
    parser.add_argument("--queue-pairs", type=int, nargs="*", default=[1, 2], metavar="N")
    parser.add_argument("--bytes", type=int, nargs="*", default=[1 << 20, 4 << 20], metavar="N", help="of large messages")
    parser.add_argument("--small-bytes", type=int, default=4096, metavar="N")
    parser.add_argument("--seconds", type=int, default=5, help="of each measurement of bandwidth (%(default)s)")
    parser.add_argument("--count", type=int, default=1000, help="of small messages (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--binaries", metavar="DIR", help="default: what `bazel info bazel-bin` says")
    options = parser.parse_args()
    if options.vm:
        options.device = "rxe0"
    if options.binaries is None:
        options.binaries = subprocess.run(["bazel", "info", "bazel-bin"], cwd=HERE, stdout=subprocess.PIPE,
                                          stderr=subprocess.DEVNULL, text=True, check=True).stdout.strip()
    program = os.path.join(options.binaries, "bench/rdma", OURS)
    if not os.path.exists(program):
        parser.error("%s is not there: bazel build //bench/rdma:%s" % (program, OURS))
    return options


class Measurement:
    """One program with its arguments for both ends."""

    def __init__(self, label, unit, server, client, read):
        """`read` makes (value, gigabytes or None) of what the client printed."""
        self.label, self.unit, self.server, self.client, self.read = label, unit, server, client, read
        self.values, self.processor = [], []

    def take(self, output, processor_seconds):
        value, gigabytes = self.read(output)
        self.values.append(value)
        if gigabytes:
            self.processor.append(processor_seconds / gigabytes)


def perftest(label, unit, program, options, size, column, more, scale=1.0, queue_pairs=0):
    words = [program, "-F", "-d", options.device, "-s", str(size), "-p", str(PORT)] + more
    if options.vm:
        words += ["-u", "18"]   # 67 ms without an answer are nothing special in an emulator

    def read(output):
        rows = re.findall(r"^ *%d +\d+ .*$" % size, output, re.MULTILINE)
        if not rows:
            raise RuntimeError("%s printed no line for %d bytes:\n%s" % (program, size, output))
        fields = rows[-1].split()
        # Of bandwidths its second column counts the iterations of all queue pairs.
        return float(fields[column]) * scale, queue_pairs and int(fields[1]) * size / 1e9

    def command(side):
        gid = options.gid_index if not options.vm else "{gid_%s}" % side
        return words + (["-x", gid] if gid else [])
    return Measurement(label, unit, command("server"), command("client") + ["{server}"], read)


def ours(label, unit, options, arguments, key):
    common = ["--devices=%s" % options.device] + (["--timeout=18"] if options.vm else [])

    def read(output):
        result = json.loads([line for line in output.split("\n") if line.startswith("{")][-1])
        if result["transport"] != "rdma":
            raise RuntimeError("it did not travel over RDMA:\n%s" % output)
        return result[key], result.get("all_gigabytes")
    both = common + [a for a in arguments if a.startswith(("--queue-pairs", "--spin"))]
    return Measurement(label, unit, [OURS, "--listen={server}:%d" % OUR_PORT] + both,
                       [OURS, "--connect={server}:%d" % OUR_PORT] + common + arguments, read)


def measurements(options):
    """Groups of which the first one is ours and the others the scale."""
    groups = []
    for pairs in options.queue_pairs:
        for size in options.bytes:
            name = "%g MiB, %d queue pair%s" % (size / 2**20, pairs, "s" if pairs > 1 else "")
            # A bounded number of messages in an emulator, as its time is not ours.
            amount = ["-n", str(max(5, 60 * 2**20 // size // pairs))] if options.vm else ["-D", str(options.seconds)]
            groups.append((name, "GB/s", [
                ours("sluice", "GB/s", options, ["--queue-pairs=%d" % pairs, "--paths=%d" % pairs, "--bytes=%d" % size,
                                                 "--seconds=%d" % options.seconds], "gb_per_second"),
                perftest("ib_write_bw", "GB/s", "ib_write_bw", options, size, 3,
                         ["-q", str(pairs), "--report_gbits"] + amount, 1 / 8, pairs)]))
    size = options.small_bytes
    lat = ["-n", str(options.count)]
    for spin, name in ((0, "asleep between events"), (100, "polling for 100 us")):
        groups.append(("%d bytes, %s" % (size, name), "us", [
            ours("sluice", "us", options, ["--test=latency", "--queue-pairs=1", "--paths=1", "--bytes=%d" % size,
                                           "--count=%d" % options.count, "--spin-us=%d" % spin], "median_us"),
            perftest("ib_write_lat (polls)", "us", "ib_write_lat", options, size, 4, lat),
            perftest("ib_send_lat -e", "us", "ib_send_lat", options, size, 4, lat + ["-e"])]))
    return groups


class Cluster:
    """This machine is one of the two."""

    def __init__(self, options):
        self.options = options
        self.names = {"server": options.listen or options.connect}

    def _words(self, words):
        path = os.path.join(os.path.abspath(self.options.binaries), "bench/rdma", OURS)
        return [path if w == OURS else w.format(**self.names) for w in words]

    def measure(self, one):
        if self.options.listen:
            subprocess.run(self._words(one.server), stdout=subprocess.DEVNULL, check=True, timeout=300)
            return
        for _ in range(100):   # until the other machine serves it
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run(self._words(one.client), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  check=False, timeout=300)
            if done.returncode == 0:
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                return one.take(done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            time.sleep(0.3)
        raise RuntimeError("%s failed again and again:\n%s%s" % (" ".join(one.client), done.stdout, done.stderr))


class Emulated:
    def __init__(self, options):
        binaries = os.path.abspath(options.binaries)
        os.environ["SLUICE_E2E_BINARIES"] = binaries
        tests = os.path.join(HERE, "..", "..", "tests")
        sys.path[:0] = [os.path.join(tests, "rdma_vm"), os.path.join(tests, "e2e")]
        import pair
        import perftest as guest
        self.busy_seconds = guest.busy_seconds
        self.pair = pair.Pair([os.path.join(binaries, "bench/rdma", OURS)], rails=1)
        self.names = {"server": self.pair[1].address(0), "gid_server": str(guest.gid_index(self.pair[1])),
                      "gid_client": str(guest.gid_index(self.pair[2]))}

    def measure(self, one):
        words = lambda command: " ".join(w.format(**self.names) for w in command)
        port = OUR_PORT if one.server[0] == OURS else PORT
        serving = self.pair[1].start(words(one.server), one.label)
        self.pair[1].run("until grep -q ':%04X .* 0A ' /proc/net/tcp /proc/net/tcp6; do sleep 0.05; done" % port)
        stat = "head -n 1 /proc/stat"   # the whole machine's: Soft-RoCE works in softirqs
        output = self.pair[2].run("%s; %s; status=$?; %s; exit $status" % (stat, words(one.client), stat), deadline=200)
        serving.wait(deadline=60)
        first, last = re.findall(r"^cpu .*$", output, re.MULTILINE)
        one.take(output, self.busy_seconds(last) - self.busy_seconds(first))

    def close(self):
        self.pair.close()


def row(one, mine, emulated):
    cells = []
    for own, theirs, unit in ((mine.values, one.values, " " + one.unit), (mine.processor, one.processor, "")):
        if not theirs:
            cells += ["-", "-"]
            continue
        # An emulator's numbers mean nothing but beside each other. The median of the ratios within each repetition: what else
        # the machine did hit both alike.
        cells.append("-" if emulated else "%.4g%s" % (statistics.median(theirs), unit))
        cells.append("1" if one is mine else "%.2f" % statistics.median(a / b for a, b in zip(own, theirs)))
    return cells


def main():
    options = parse_arguments()
    machines = Emulated(options) if options.vm else Cluster(options)
    groups = measurements(options)
    try:
        for _ in range(options.repetitions):
            for _, _, members in groups:
                for one in members:
                    machines.measure(one)
    finally:
        if options.vm:
            machines.close()
    if options.listen:
        return 0
    print("| what | program | median | ours / it | CPU s a GB, client | ours / it |\n| --- | --- | --- | --- | --- | --- |")
    for name, unit, members in groups:
        for one in members:
            print("| %s | %s | %s |" % (name, one.label, " | ".join(row(one, members[0], options.vm))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
