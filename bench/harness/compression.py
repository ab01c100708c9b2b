"""bench/compression: bench/codecs and torch in turns, one core each: 64 MiB of fp32 in partitions of 4 MiB.

torch.topk picks 1 % by magnitude (of |p|), and .half() rounds to fp16; neither adds a residual, nor writes one, nor packs
anything. Ours do (encode+residual) or do not (encode). GB/s are fp32 bytes that go in a second of CPU time.
"""

import argparse
import json
import os
import subprocess
import sys
import time

from processes import need_torch
from report import median, table, write_json

PARTITIONS, ELEMENTS = 16, 1 << 20


def torch_speeds(repetitions):
    import torch
    torch.set_num_threads(1)
    torch.manual_seed(1)
    parts = [torch.randn(ELEMENTS) for _ in range(PARTITIONS)]
    work = {"torch.topk 1 %": lambda p: torch.topk(p.abs(), ELEMENTS // 100, sorted=False),
            "torch .half()": lambda p: p.half()}
    speeds = {}
    for name, one in work.items():
        taken = []
        for _ in range(repetitions):
            begin = time.thread_time()
            for part in parts:
                one(part)
            taken.append(time.thread_time() - begin)
        speeds[name] = PARTITIONS * ELEMENTS * 4 / median(taken) / 1e9
    return speeds


def ours(binaries, folder, only, repetitions):
    path = os.path.join(folder, "codecs-%s.json" % only.replace(":", "-"))
    subprocess.run([os.path.join(binaries, "bench", "codecs", "codecs"), "--only", only, "--repetitions", str(repetitions),
                    "--json", path], check=True, stdout=subprocess.DEVNULL)
    with open(path) as file:
        found = json.load(file)
    return found["memcpy_gb_s"], {row["codec"]: row for row in found["codecs"]}


def main():
    parser = argparse.ArgumentParser(prog="bench/compression", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--out", default="out/bench", help="folder for compression.json (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=3, help="of each half of a turn (%(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="(%(default)s)")
    options = parser.parse_args()
    need_torch()
    folder = os.path.abspath(options.out)
    os.makedirs(folder, exist_ok=True)
    samples, copies = {}, []
    for _ in range(options.turns):
        for name, speed in torch_speeds(options.repetitions).items():
            samples.setdefault((name, "encode"), []).append(speed)
        for only in ("topk:0.01", "fp16"):
            copy, rows = ours(options.binaries, folder, only, options.repetitions)
            copies.append(copy)
            for way in ("encode", "encode+residual"):
                samples.setdefault((only, way), []).append(rows[only][way]["gb_s"])
    memcpy = median(copies)
    against = {"topk:0.01": "torch.topk 1 %", "fp16": "torch .half()"}
    rows, found = [], {}
    for (name, way), speeds in samples.items():
        speed = median(speeds)
        other = median(samples[(against[name], "encode")]) if name in against else None
        found["%s %s" % (name, way)] = speed
        rows.append([name + ("" if other is None else ", " + way), "%.2f" % speed, "%.2f" % (speed / memcpy),
                     "" if other is None else "%.1f" % (speed / other)])
    print(table(["what", "GB/s", "of memcpy", "times torch"], rows))
    print("memcpy: %.1f GB/s. Goals: topk:0.01 with residual 20 times torch.topk and 3 GB/s; fp16 0.8 of memcpy." % memcpy)
    path = os.path.join(options.out, "compression.json")
    write_json(path, {"memcpy_gb_s": memcpy, "gb_s": found})
    print("written to " + path)


if __name__ == "__main__":
    sys.exit(main())
