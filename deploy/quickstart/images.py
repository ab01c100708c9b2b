"""Trains Fashion-MNIST, once for each codec: what ./quickstart does without --job."""

import re

import chaos
from image_model import BATCH, DATA, MODEL, OPTIMIZER
from job import train
from render import ImageProgress, table, size

CODECS = ("none", "int8", "topk:0.01")
CODEC = re.compile(r"[a-z0-9]+(:[a-z0-9.:-]+)?(\+[a-z0-9]+(:[a-z0-9.:-]+)?)?")   # of the form of one; the worker knows which there are
EPOCHS = 12

def run(options, folder, codec, epochs):
    """One training; returns its line of the summary."""
    steps = epochs * (60000 // (BATCH * options.workers))
    arguments = ["--job.codec=" + codec, "--job.optimizer.total_rounds=%d" % steps]
    arguments += ["--job.optimizer.%s=%s" % pair for pair in OPTIMIZER.items()]
    arguments += MODEL + ["--data=" + DATA, "--epochs=%d" % epochs]

    def once(suffix="", kills=None):
        return train(options, folder, codec.replace(":", "-") + suffix, arguments,
                     lambda path: ImageProgress(path, codec, epochs), chaos=kills)

    results = once()
    line = {"codec": codec, "test_accuracy": results[0]["test_accuracy"], "seconds": max(r["seconds"] for r in results),
            "wire_bytes_push": sum(r["wire_bytes_push"] for r in results),
            "wire_bytes_pull": sum(r["wire_bytes_pull"] for r in results), "steps": results[0]["steps"],
            "transport": "+".join(sorted({r["transport"] for r in results}))}
    if options.chaos:
        line["chaos"] = chaos.compare(options, results, once)
    return line


def summary_table(runs):
    """Ratios are against the first run if that is the uncompressed one."""
    base = runs[0]["wire_bytes_push"] if runs[0]["codec"] == "none" else None
    rows = [("codec", "test accuracy", "seconds", "all pushed", "of fp32", "all pulled", "steps", "transport")]
    for one in runs:
        share = "%.2f %%" % (100.0 * one["wire_bytes_push"] / base) if base else "-"
        rows.append((one["codec"], "%.4f" % one["test_accuracy"], "%.1f" % one["seconds"],
                     size(one["wire_bytes_push"]), share, size(one["wire_bytes_pull"]), str(one["steps"]),
                     one["transport"]))
    return table(rows)


def main(options, folder):
    """Prints what happens; returns the content of summary.json and the exit code."""
    epochs = options.epochs or EPOCHS
    print("Fashion-MNIST with 1 scheduler, %d servers and %d workers, %d epochs" %
          (options.servers, options.workers, epochs))
    runs = [run(options, folder, codec, epochs) for codec in ([options.codec] if options.codec else CODECS)]
    print("\n" + summary_table(runs))
    return {"runs": runs}, chaos.verdict(runs)
