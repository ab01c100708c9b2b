"""The stages of ./check: each counts what passed and failed, says what it skipped and why, and how long it took."""

import argparse
import os
import signal
import sys
import time

import bazel
import stages


def parse_arguments():
    parser = argparse.ArgumentParser(prog="./check", description="Runs every test that this machine can run.")
    parser.add_argument("--budgets", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--stage", action="append", metavar="NAME",
                        help="run only this stage (may be repeated): " + ", ".join(stages.STAGES))
    parser.add_argument("--quick", action="store_true", help="fewer seeds, shorter fuzzing, no sanitizers")
    parser.add_argument("--nightly", action="store_true",
                        help="a million seeds of the simulator and ten minutes for each fuzz target; takes hours")
    options = parser.parse_args()
    if options.quick and options.nightly:
        parser.error("--quick and --nightly exclude each other")
    budgets = {name: 60.0 * float(minutes) for name, minutes in (b.split("=") for b in options.budgets.split())}
    for name in options.stage or []:
        if name not in stages.STAGES:
            parser.error("there is no stage \"%s\": %s" % (name, ", ".join(stages.STAGES)))
    return options, budgets


def main():
    options, budgets = parse_arguments()
    signal.signal(signal.SIGTERM, bazel.end_children)
    os.makedirs("out/check", exist_ok=True)
    results = []
    for name, function in stages.STAGES.items():
        if options.stage and name not in options.stage:
            continue
        print("== %s" % name, flush=True)
        result = stages.Result(name, budgets[name], options.quick, options.nightly)
        start = time.monotonic()
        function(result)
        result.seconds = time.monotonic() - start
        results.append(result)
        over = "" if result.seconds <= result.budget else "  (over its budget of %d min)" % (result.budget / 60)
        print("   %d passed, %d failed in %.0f s%s" % (result.passed, result.failed, result.seconds, over), flush=True)
        if name == "build" and result.failed:
            break  # nothing after it would say more

    print()
    for result in results:
        for what, why in result.skipped:
            print("skipped: %s: %s (%s)" % (result.name, what, why))
    for result in results:
        print("%-11s %4d passed %3d failed %7.0f s of %4d s" %
              (result.name, result.passed, result.failed, result.seconds, result.budget))
    failures = [f for result in results for f in result.failures]
    for failure in failures:
        print("failed: %s" % failure)
    failed = sum(r.failed for r in results)
    print("%d passed, %d failed" % (sum(r.passed for r in results), failed), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
