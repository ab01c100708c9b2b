"""Trains logistic regression, its weights in a table, on a generated click log whose best AUC is known:
./quickstart --job=clicks."""

import hashlib
import json
import os
import re
import subprocess
import time

import chaos
from cluster import ClusterError
from job import train
from render import ClickProgress, table, size

LINES, TEST_LINES, SEED = 1000000, 100000, 1
EPOCHS = 2
WITHIN = 0.005   # of the planted optimum's AUC

# The settings of worker/model/fit_click_log.cc, and the defaults of --row_…. It ends .0026 .0023 .0025 below the optimum
# for seeds 1, 2, 3 of the log. A step has 4096 examples, however many workers share them.
GLOBAL_BATCH = 4096
BIAS = {"kind": "sgd", "rate": "0.5"}


class ClickLog:
    """The log in FOLDER, kept and taken again by the next run if it is what this one would make."""

    def __init__(self, binaries, folder):
        self._generator = os.path.join(binaries, "worker", "data", "make_click_log")
        self.train, self.test = [os.path.join(folder, name) for name in ("clicks.tsv", "clicks-test.tsv")]
        self._note = os.path.join(folder, "clicks.json")

    def _parameters(self):
        with open(self._generator, "rb") as file:
            program = hashlib.sha256(file.read()).hexdigest()   # its defaults are parameters too
        return {"lines": LINES, "test_lines": TEST_LINES, "seed": SEED, "generator": program}

    def _sizes(self):
        return [os.path.getsize(path) if os.path.exists(path) else 0 for path in (self.train, self.test)]

    def prepare(self):
        """The planted optimum {"auc", "logloss"}, after the files are there."""
        parameters = self._parameters()
        try:
            with open(self._note) as file:
                note = json.load(file)
            if note["parameters"] == parameters and note["bytes"] == self._sizes():
                print("takes the click log of before, %s" % self.train)
                return note["optimum"]
        except (OSError, ValueError, KeyError):
            pass
        print("generates a click log of %s lines, %s" % ("{:,}".format(LINES), self.train))
        made = subprocess.run([self._generator, "--lines=%d" % LINES, "--test_lines=%d" % TEST_LINES, "--seed=%d" % SEED,
                               "--out=" + self.train, "--test_out=" + self.test], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        told = re.search(r"auc ([0-9.]+), log loss ([0-9.]+)", made.stdout)
        if made.returncode != 0 or told is None:
            raise ClusterError("no click log: make_click_log ended with %d and said: %s" %
                               (made.returncode, made.stdout.strip()))
        optimum = {"auc": float(told.group(1)), "logloss": float(told.group(2))}
        with open(self._note, "w") as file:
            json.dump({"parameters": parameters, "bytes": self._sizes(), "optimum": optimum}, file, indent=1)
            file.write("\n")
        return optimum


class TableWatch:
    """What the servers say of the table while the job runs (sluicectl tables). Members report it with their heartbeats,
    so the last word may be a second old."""

    def __init__(self, binaries):
        self._sluicectl = os.path.join(binaries, "ctl", "sluicectl")
        self._next = 0.0
        self.rows = self.bytes = None

    def __call__(self, port):
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + 0.5
        asked = subprocess.run([self._sluicectl, "--scheduler=127.0.0.1:" + port, "tables", "--json"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            for one in json.loads(asked.stdout)["tables"] if asked.returncode == 0 else []:
                if one["name"] == "weights" and int(one["counts"].get("rows", 0)) > 0:
                    self.rows, self.bytes = int(one["counts"]["rows"]), int(one["counts"].get("bytes", 0))
        except (ValueError, KeyError, TypeError):
            pass   # too early or too late: there is no such table


def main(options, folder):
    """Prints what happens; returns the content of summary.json and the exit code."""
    epochs = options.epochs or EPOCHS
    log = ClickLog(options.binaries, folder)
    optimum = log.prepare()
    print("logistic regression with 1 scheduler, %d servers and %d workers, %d epochs" %
          (options.servers, options.workers, epochs))
    arguments = ["--model=lr", "--data=" + log.train, "--test_data=" + log.test, "--format=clicks", "--seed=1",
                 "--batch=%d" % max(1, GLOBAL_BATCH // options.workers), "--epochs=%d" % epochs]
    arguments += ["--job.optimizer.%s=%s" % pair for pair in BIAS.items()]
    watch = TableWatch(options.binaries)

    def once(suffix="", kills=None):
        return train(options, folder, "clicks" + suffix, arguments, lambda path: ClickProgress(path, epochs), watch, kills)

    results = once()

    summary = {"job": "clicks", "auc": results[0]["auc"], "planted_auc": optimum["auc"],
               "difference": optimum["auc"] - results[0]["auc"], "within": WITHIN, "logloss": results[0]["logloss"],
               "planted_logloss": optimum["logloss"], "seconds": max(r["seconds"] for r in results),
               "examples_per_s": sum(r["examples_per_s"] for r in results), "steps": results[0]["steps"],
               "rows": watch.rows, "table_bytes": watch.bytes,
               "wire_bytes_push": sum(r["wire_bytes_push"] for r in results),
               "wire_bytes_pull": sum(r["wire_bytes_pull"] for r in results),
               "transport": "+".join(sorted({r["transport"] for r in results}))}
    if options.chaos:
        summary["chaos"] = chaos.compare(options, results, once)
    print("\n" + table([
        ("AUC", "optimum", "difference", "log loss", "seconds", "examples/s", "rows", "all pushed", "all pulled",
         "steps", "transport"),
        ("%.4f" % summary["auc"], "%.4f" % optimum["auc"], "%.4f" % summary["difference"], "%.4f" % summary["logloss"],
         "%.1f" % summary["seconds"], "{:,.0f}".format(summary["examples_per_s"]),
         "-" if watch.rows is None else "{:,}".format(watch.rows), size(summary["wire_bytes_push"]),
         size(summary["wire_bytes_pull"]), str(summary["steps"]), summary["transport"])]))
    close = summary["difference"] <= WITHIN
    print("\nthe AUC is %s %g of the best one possible, that of the probabilities which the log was drawn from" %
          ("within" if close else "NOT within", WITHIN))
    return summary, (0 if close else 1) or chaos.verdict([summary])
