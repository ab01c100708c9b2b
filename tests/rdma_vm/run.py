"""Scenarios in two emulated machines of their own kernel, joined by network cards with Soft-RoCE.

  deploy/setup.sh vm
  bazel build $(tests/rdma_vm/run.sh --targets)
  tests/rdma_vm/run.sh --binaries="$(bazel info bazel-bin)"
  tests/rdma_vm/run.sh --binaries="$(bazel info bazel-bin)" test_machines.Faults      only these

1. An archive is made of a shell, RDMA tools and the programs under test (image.py).
2. Two machines boot it once for all scenarios (pair.py, machine.py). A machine runs what an agent in it is told.
3. Before each scenario what runs in them is killed and their links are made whole. One that does not answer any more
   takes both machines with it, and the next scenario has new ones.
4. All ends with this process; it opens no port of this machine.

Emulated processors are slow, so only ratios within one run mean anything.
"""

import argparse
import glob
import os
import signal
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = ("ctl/sluicectl", "rdma/hardware_test", "scheduler/sluice-scheduler", "server/sluice-server",
            "transport/conformance/device_test", "worker/sluice-worker")


def parse_arguments():
    parser = argparse.ArgumentParser(prog="tests/rdma_vm/run.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", default=os.path.join(HERE, "..", "..", "bazel-bin"), metavar="DIR",
                        help="where %s and so on lie (bazel-bin)" % PROGRAMS[0])
    parser.add_argument("--targets", action="store_true", help="only say what Bazel must build")
    parser.add_argument("--transport", default="auto", help="data.transport of the jobs (%(default)s)")
    parser.add_argument("-v", "--verbose", action="store_true", help="name each scenario before it runs")
    parser.add_argument("-f", "--failfast", action="store_true", help="stop at the first failure")
    parser.add_argument("names", nargs="*", metavar="test_FILE[.Class[.test]]", help="scenarios (all)")
    return parser.parse_args()


def ended(*_):
    """What unittest takes for a scenario's error it would go on after; this it does not."""
    raise KeyboardInterrupt


def main():
    options = parse_arguments()
    if options.targets:
        print(" ".join("//" + ":".join(program.rsplit("/", 1)) for program in PROGRAMS))
        return 0
    signal.signal(signal.SIGTERM, ended)   # so that what was begun is cleaned up
    os.environ["SLUICE_E2E_BINARIES"] = os.path.abspath(options.binaries)
    sys.path[:0] = [HERE, os.path.join(HERE, "..", "e2e")]
    programs = [os.path.join(os.path.abspath(options.binaries), name) for name in PROGRAMS]
    missing = [path for path in programs if not os.path.exists(path)]
    if missing:
        sys.exit("%s: not there; --help says what to build" % ", ".join(missing))
    names = options.names or sorted(os.path.basename(path)[:-3] for path in glob.glob(os.path.join(HERE, "test_*.py")))
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)

    from cluster import write_csv      # only now are their folders known
    from image import ImageError
    from job import DATA, Job
    from test_quickstart import write_images
    from machine import MachineError
    from pair import Pair
    from scenario import Scenario
    Job.transport = options.transport
    begin = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="sluice-vm-") as folder, \
                Pair(programs, {DATA: write_csv(os.path.join(folder, "data.csv")), **write_images(os.path.join(folder, "images"))}, rails=2) as pair:
            print("two machines are up after %.1f s" % (time.monotonic() - begin), flush=True)
            Scenario.pair = pair
            runner = unittest.TextTestRunner(verbosity=2 if options.verbose else 1, failfast=options.failfast)
            result = runner.run(suite)
    except KeyboardInterrupt:
        return 143
    except (ImageError, MachineError) as error:
        sys.exit("tests/rdma_vm: %s" % error)
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
