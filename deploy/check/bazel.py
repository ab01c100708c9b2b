"""Runs Bazel and reads what became of each target from its build events."""

import json
import os
import signal
import subprocess
import sys
import time

# A configuration with other compiler flags keeps its outputs apart, so that one does not rebuild the other's.
CONFIGS = {
    "tsan": ["--config=tsan", "--platform_suffix=-tsan"],
    "asan": ["--config=asan", "--platform_suffix=-asan"],
    "fuzz": ["--config=fuzz", "--platform_suffix=-fuzz", "--repo_env=CC=clang-16"],
}


_running = set()


def end_children(*_):
    """For SIGTERM: ends what run() has started, in any thread, and then this process."""
    for child in list(_running):
        os.killpg(child.pid, signal.SIGTERM)
    sys.exit(143)


class Run:
    """What a command did: its exit code (None: ended for taking too long) and where its output lies."""

    def __init__(self, code, seconds, log):
        self.code, self.seconds, self.log = code, seconds, log

    def tail(self, lines=40):
        with open(self.log, errors="replace") as file:
            return "".join(file.readlines()[-lines:]).rstrip()


def run(command, log, timeout=None, env=None):
    """Runs a command with its output in the file `log`; its whole process group is ended after `timeout` seconds."""
    start = time.monotonic()
    with open(log, "w") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                 start_new_session=True, env=dict(os.environ, **(env or {})))
        _running.add(child)
        try:
            code = child.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGTERM)
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            code = None
        except BaseException:
            os.killpg(child.pid, signal.SIGTERM)
            child.wait()
            raise
        finally:
            _running.discard(child)
    return Run(code, time.monotonic() - start, log)


def bazel(verb, arguments, log, timeout=None):
    """Returns the Run and {label: (status, path of its log or None)}; status is PASSED, FAILED, TIMEOUT, NO BUILD…"""
    events = log + ".events.json"
    result = run(["bazel", verb, "--build_event_json_file=" + events] + arguments, log, timeout)
    return result, _read_events(events)


def _read_events(path):
    targets = {}
    if not os.path.exists(path):
        return targets
    with open(path, errors="replace") as file:
        for line in file:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # the last line of a run that was cut short
            if "testSummary" in event:
                summary = event["testSummary"]
                logs = [f["uri"][len("file://"):] for f in summary.get("failed", []) + summary.get("passed", [])
                        if f.get("uri", "").startswith("file://")]
                targets[event["id"]["testSummary"]["label"]] = (summary["overallStatus"], logs[0] if logs else None)
            elif "targetCompleted" in event.get("id", {}):
                label = event["id"]["targetCompleted"]["label"]
                if not event.get("completed", {}).get("success"):
                    targets.setdefault(label, ("NO BUILD", None))
    os.remove(path)
    return targets


def query(expression, *options):
    """Labels of a query, sorted; [] if the query has no answer."""
    found = subprocess.run(["bazel", "query", "--keep_going"] + list(options) + [expression], capture_output=True,
                           text=True, stdin=subprocess.DEVNULL)
    return sorted(line for line in found.stdout.split() if line.startswith("//"))


def info(key, options=()):
    return subprocess.run(["bazel", "info"] + list(options) + [key], capture_output=True, text=True, check=True,
                          stdin=subprocess.DEVNULL).stdout.strip()
