"""bench/convergence: what training makes of each codec, with its recommended settings, against the uncompressed run of the
same seed (same initial values, same examples): real scheduler, servers and workers as processes of this machine, over TCP.

For each seed all codecs take their turn, so that what is done when time is short is paired all the same. Only pushes are
compressed; replies are parameters in fp32. Biases and tensors below 1,024 elements go uncompressed, as by default."""

import argparse
import json
import os
import subprocess
import sys
import time

from paired import mean_and_bound, verdict
from processes import BenchError, Cluster, Commanded
from report import table, write_json

FASHION = "/usr/share/datasets/fashion-mnist"
ALLOWED = 0.3   # points of accuracy that a recommended setting may lose
MODELS = {
    "mlp": {"what": "Fashion-MNIST, perceptron 784-128-10", "batch": 32, "steps": 1500, "rate": 0.2},
    "conv": {"what": "Fashion-MNIST, two 5x5 convolutions and a linear layer", "batch": 32, "steps": 1500, "rate": 0.3},
    "text": {"what": "next character of the King James Bible from the last 8", "batch": 64, "steps": 1500, "rate": 1.5},
}
CODECS = ["none", "fp16", "bf16", "int8", "int4", "mxfp8", "onebit", "terngrad", "qsgd:7", "topk:0.01", "topk:0.1",
          "randk:0.1", "threshold:auto:0.01", "topk:0.01+int8", "lowrank:4"]
WARMUP_STEPS = 100


def text_file(folder):
    """The text of bible-kjv, without the places at the begin of its lines."""
    path = os.path.join(folder, "kjv.txt")
    if not os.path.exists(path):
        try:
            told = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], stdin=subprocess.DEVNULL, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise BenchError("no text: %s. Install it: deploy/setup.sh convergence" % error) from error
        with open(path, "wb") as file:
            for line in told.stdout.splitlines():
                file.write(line.partition(b" ")[2] + b"\n")
    return path


class Trainers:
    """The workers of one model: they read their data once and then train job after job."""

    def __init__(self, cluster, model, folder, options):
        self._workers = []
        data = text_file(folder) if model == "text" else FASHION
        for index in range(options.workers):
            command = [os.path.join(options.binaries, "bench", "training", "trainer"), "--model=" + model, "--data=" + data,
                       "--node.scheduler=" + cluster.address, "--job.workers=%d" % options.workers,
                       "--data.transport=tcp", "--node.log_level=warn"]
            self._workers.append(Commanded(command, os.path.join(folder, "%s-trainer%d.log" % (model, index))))

    def __enter__(self):
        try:
            for worker in self._workers:
                worker.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for worker in self._workers:
            worker.close()

    def train(self, job, flags):
        for worker in self._workers:
            worker.tell("train --job.name=%s %s" % (job, " ".join(flags)))
        answers = [json.loads(worker.answer()) for worker in self._workers]
        return next(answer for answer in answers if answer["rank"] == 0)


def flags_of(model, codec, seed, options):
    settings = MODELS[model]
    steps = options.steps or settings["steps"]
    rate = options.rate or settings["rate"]
    # The rate rises first, as residuals do, and falls to a twentieth, so that the end is no draw of the last batches.
    return ["--seed=%d" % seed, "--steps=%d" % steps, "--batch=%d" % settings["batch"], "--curve=10",
            "--job.codec=" + codec, "--job.optimizer.kind=sgd", "--job.optimizer.rate=%g" % rate,
            "--job.optimizer.schedule=cosine", "--job.optimizer.total_rounds=%d" % steps,
            "--job.optimizer.final_rate=%g" % (rate / 20),
            "--job.optimizer.warmup_rounds=%d" % WARMUP_STEPS] + options.job_flags


class Results:
    """convergence.json: {model: {codec: {seed: result}}}, written after every seed, so that a run that was ended early can
    be continued, or be given more seeds and codecs."""

    def __init__(self, path, options):
        self._path = path
        self._settings = {model: flags_of(model, "CODEC", 0, options) + ["%d workers" % options.workers]
                          for model in options.models}
        self._kept = {}
        if options.add and os.path.exists(path):
            with open(path) as file:
                self._kept = json.load(file)
        for model in options.models:
            before = self._kept.get("settings", {}).get(model, self._settings[model])
            if before != self._settings[model]:
                raise BenchError("%s is of other settings for %s (%s): give another --out, or no --add" %
                                 (path, model, " ".join(before)))
        self.runs = {model: {codec: {int(seed): result for seed, result in by_seed.items()}
                             for codec, by_seed in by_codec.items()}
                     for model, by_codec in self._kept.get("runs", {}).items()}

    def write(self):
        write_json(self._path, {"settings": dict(self._kept.get("settings", {}), **self._settings), "runs": self.runs,
                                "summary": {model: summary(by_codec) for model, by_codec in self.runs.items()}})


def train_all(model, options, folder, results):
    """All codecs and seeds of one model, but for what is there and for seeds that do not fit its share of the time."""
    runs = results.runs.setdefault(model, {})
    for codec in options.codecs:
        runs.setdefault(codec, {})
    begun, done = time.monotonic(), 0
    with Cluster(options.binaries, folder, model) as cluster, Trainers(cluster, model, folder, options) as trainers:
        for seed in options.seeds:
            spent = time.monotonic() - begun
            if options.minutes and done >= 2 and spent * (done + 1) / done > 60 * options.minutes / len(options.models):
                break
            missing = [codec for codec in options.codecs if seed not in runs[codec]]
            for index, codec in enumerate(missing):
                result = trainers.train("%s-%d-%d" % (model, index, seed), flags_of(model, codec, seed, options))
                runs[codec][seed] = result
                print("%4d s  %s seed %d of %d, %s: accuracy %.4f, loss %.4f, %.1f s" % (
                    time.monotonic() - begun, model, seed, len(options.seeds), codec, result["accuracy"], result["loss"],
                    result["seconds"]), file=sys.stderr, flush=True)
            done += bool(missing)
            results.write()


def steps_to(curve, target):
    """The first point of the curve at or beyond the target; None if there is none."""
    return next((step for step, _, accuracy, _ in curve if accuracy >= target), None)


def summary(by_codec):
    """Of one model: {codec: figures}. The target of the steps to it is a point below the end of the uncompressed curve."""
    base = by_codec["none"]
    figures = {}
    for codec, by_seed in by_codec.items():
        seeds = sorted(set(by_seed) & set(base))
        if not seeds:
            continue
        points = [100 * (by_seed[s]["accuracy"] - base[s]["accuracy"]) for s in seeds]
        losses = [by_seed[s]["loss"] - base[s]["loss"] for s in seeds]
        difference, bound = mean_and_bound(points)
        loss_difference, loss_bound = mean_and_bound(losses)
        reached = [steps_to(by_seed[s]["curve"], base[s]["curve"][-1][2] - 0.01) for s in seeds]
        per_step = [by_seed[s]["push_bytes"] / by_seed[s]["steps"] for s in seeds]
        base_step = [base[s]["push_bytes"] / base[s]["steps"] for s in seeds]
        figures[codec] = {
            "seeds": len(seeds), "accuracy": mean_and_bound([by_seed[s]["accuracy"] for s in seeds])[0],
            "loss": mean_and_bound([by_seed[s]["loss"] for s in seeds])[0],
            "points": difference, "points_bound": bound, "loss_difference": loss_difference, "loss_bound": loss_bound,
            "within": verdict(difference, bound, ALLOWED), "push_bytes_per_step": mean_and_bound(per_step)[0],
            "ratio": sum(per_step) / sum(base_step),
            "steps_to_target": None if None in reached else sum(reached) / len(reached),
        }
    return figures


def print_table(model, figures):
    rows = []
    for codec, f in figures.items():
        paired = codec != "none"
        rows.append([codec, f["seeds"], "%.2f" % (100 * f["accuracy"]), "%+.2f ± %.2f" % (f["points"], f["points_bound"]) if paired else "",
                     f["within"] if paired else "", "%.4f" % f["loss"],
                     "%+.4f ± %.4f" % (f["loss_difference"], f["loss_bound"]) if paired else "",
                     "%.0f" % f["push_bytes_per_step"], "%.1f %%" % (100 * f["ratio"]),
                     "-" if f["steps_to_target"] is None else "%.0f" % f["steps_to_target"]])
    print("%s: %s" % (model, MODELS[model]["what"]))
    print(table(["codec", "seeds", "accuracy %", "points to none, 95 %", "loses <= %g" % ALLOWED, "loss", "to none, 95 %",
                 "bytes/step", "of none", "steps to none - 1"], rows) + "\n", flush=True)


def plot(results, path):
    """Accuracy against bytes pushed, mean of the seeds. False where matplotlib is not there."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(1, len(results), figsize=(7 * len(results), 5), squeeze=False)
    for axis, (model, by_codec) in zip(axes[0], results.items()):
        for index, (codec, by_seed) in enumerate((c, r) for c, r in by_codec.items() if r):
            curves = [result["curve"] for result in by_seed.values()]
            points = [[sum(curve[i][c] for curve in curves) / len(curves) for c in (1, 2)] for i in range(len(curves[0]))]
            axis.plot([p[0] / 1e6 for p in points], [100 * p[1] for p in points], marker=".", label=codec,
                      linestyle="-" if index < 10 else "--")
        axis.set(xscale="log", title=MODELS[model]["what"], xlabel="MB pushed by a worker", ylabel="accuracy, %")
        top = axis.get_ylim()[1]
        axis.set_ylim(max(axis.get_ylim()[0], top - 25), top)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    return True


def numbers(text):
    """"5" is seeds 1 to 5; "3,7" is these two."""
    values = [int(part) for part in text.split(",")]
    return values if len(values) > 1 else list(range(1, values[0] + 1))


def parse_arguments():
    names = lambda text: text.split(",")
    parser = argparse.ArgumentParser(prog="bench/convergence", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--out", default="out/bench", help="folder for convergence.json, .png and logs (%(default)s)")
    parser.add_argument("--models", type=names, default=list(MODELS), help="of %s; all" % ", ".join(MODELS))
    parser.add_argument("--codecs", type=names, default=CODECS, help="default: %s" % ",".join(CODECS))
    parser.add_argument("--seeds", type=numbers, default=numbers("10"), help="how many, or which with commas between; 10")
    parser.add_argument("--steps", type=int, default=0, help="of each training; 0 = as the model's own")
    parser.add_argument("--rate", type=float, default=0, help="learning rate; 0 = the model's own")
    parser.add_argument("--add", action="store_true", help="keep the runs in OUT/convergence.json and add what is missing")
    parser.add_argument("--minutes", type=float, default=0, help="leave out seeds that would not end in time; 0 = none")
    parser.add_argument("--workers", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--job_flags", type=str.split, default=[], help="settings of every job, with blanks between, such as "
                        "\"--job.no_error_feedback --job.allow_biased\"")
    options = parser.parse_args()
    unknown = set(options.models) - set(MODELS)
    if unknown:
        parser.error("no model %s: %s" % (", ".join(sorted(unknown)), ", ".join(MODELS)))
    if "none" not in options.codecs:
        options.codecs.insert(0, "none")   # what all are compared with
    return options


def main():
    options = parse_arguments()
    folder = os.path.abspath(os.path.join(options.out, "convergence-logs"))
    os.makedirs(folder, exist_ok=True)
    begun, load = time.monotonic(), os.getloadavg()[0]
    path = os.path.join(options.out, "convergence.json")
    try:
        results = Results(path, options)
        for model in options.models:
            train_all(model, options, folder, results)
            print_table(model, summary(results.runs[model]))
    except BenchError as error:
        sys.exit("bench/convergence: %s\nLogs are in %s" % (error, folder))
    drawn = plot(results.runs, os.path.join(options.out, "convergence.png"))
    print("%d minutes; the load average was %.1f before and is %.1f now" %
          ((time.monotonic() - begun) / 60, load, os.getloadavg()[0]))
    print("written to %s%s" % (path, " and .png" if drawn else "; no plot, as python3-matplotlib is missing"))


if __name__ == "__main__":
    main()
