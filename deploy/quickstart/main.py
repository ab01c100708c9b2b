"""The part of ./quickstart after the build: trains with a cluster on this machine."""

import argparse
import json
import os
import signal
import sys

import clicks
import images
from cluster import ClusterError

FOLDER = "out/quickstart"
JOBS = {"images": images.main, "clicks": clicks.main}


def arguments():
    def positive(text):
        value = int(text)
        if not 1 <= value <= 64:
            raise argparse.ArgumentTypeError("must lie between 1 and 64")
        return value

    def codec(text):
        if not images.CODEC.fullmatch(text):
            raise argparse.ArgumentTypeError("\"%s\" is no codec; `sluicectl codecs` and docs/codecs.md name them, and auto chooses" % text)
        return text

    parser = argparse.ArgumentParser(prog="./quickstart", add_help=False)
    parser.add_argument("--job", choices=sorted(JOBS), default="images")
    parser.add_argument("--codec", type=codec)
    parser.add_argument("--servers", type=positive, default=2)
    parser.add_argument("--workers", type=positive, default=2)
    parser.add_argument("--epochs", type=positive)
    parser.add_argument("--transport", choices=("auto", "rdma", "tcp", "shm"), default="auto")
    parser.add_argument("--chaos", action="store_true")
    parser.add_argument("--binaries", default="", help=argparse.SUPPRESS)
    parser.add_argument("--check-only", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.codec and options.job != "images":
        parser.error("--codec is for --job=images; rows of tables have a codec of their own (sluice-worker --row_codec)")
    if options.chaos and options.servers < 2:
        parser.error("--chaos kills a server, so it needs --servers=2 or more: a shard's copy lies on another server")
    return options


def main():
    options = arguments()
    if options.check_only:
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.makedirs(FOLDER, exist_ok=True)
    try:
        summary, code = JOBS[options.job](options, FOLDER)
    except ClusterError as error:
        print("\nquickstart: %s" % error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nquickstart: interrupted", file=sys.stderr)
        return 130
    with open(os.path.join(FOLDER, "summary.json"), "w") as file:
        json.dump(summary, file, indent=1)
        file.write("\n")
    print("\nwritten to %s/summary.json; logs of all processes are beside it" % FOLDER)
    return code


if __name__ == "__main__":
    sys.exit(main())
