"""./quickstart --chaos: one process of each role is killed while a run goes on, and the run must end with the bits of one
that nothing happened to.

A kill's life: due (so much of the run is done, and the one before is made good) -> killed and started again at once ->
pushes are applied again -> made good: the job is protected again (a server), or the scheduler answers.
"""

import json
import os
import subprocess
import time

from cluster import ClusterError

ASK_EVERY = 0.2   # seconds


class Kill:
    def __init__(self, role, name, share):
        self.role, self.name, self.share = role, name, share
        self.step = self.steps = 0
        self.pause = self.good_after = None   # seconds since the kill

    def text(self):
        good = {"server": "the job was protected again", "scheduler": "it answered"}.get(self.role)
        return "  killed %-9s after step %d of %d and started it again: next push applied after %.2f s%s" % (
            self.name, self.step, self.steps, self.pause, "; %s after %.2f s" % (good, self.good_after) if good else "")


class Kills:
    """update() is called often while the run goes on."""

    def __init__(self, options):
        self._sluicectl = os.path.join(options.binaries, "ctl", "sluicectl")
        self._due = [Kill("server", "server-0", 0.1), Kill("worker", "worker-%d" % (options.workers - 1), 0.4),
                     Kill("scheduler", "scheduler", 0.7)]
        self._now = None      # the kill that is not made good yet
        self._killed_at = self._next_ask = 0.0
        self.done = []

    def update(self, cluster, port, shown):
        if self._now is None:
            if self._due and shown.steps > 0 and shown.step >= self._due[0].share * shown.steps:
                self._kill(cluster, port, shown)
            return
        kill, since = self._now, time.monotonic() - self._killed_at
        # The first step that ends after the kill may have been applied before it; the second was not even sent then.
        if kill.pause is None and shown.step >= kill.step + 2:
            kill.pause = since
        if kill.good_after is None and self._is_good(kill, port):
            kill.good_after = time.monotonic() - self._killed_at
        if kill.pause is not None and kill.good_after is not None:
            shown.say(kill.text())
            self.done.append(kill)
            self._now = None

    def _kill(self, cluster, port, shown):
        kill = self._now = self._due.pop(0)
        self._killed_at = time.monotonic()
        cluster.kill(kill.name)
        shown.update()
        kill.step, kill.steps = shown.step, shown.steps
        cluster.start_again(kill.name, *(["--node.port=" + port] if kill.role == "scheduler" else []))

    def _is_good(self, kill, port):
        if kill.role == "worker":
            return kill.pause is not None   # no step ends without it
        if time.monotonic() < self._next_ask:
            return False
        self._next_ask = time.monotonic() + ASK_EVERY
        asked = subprocess.run([self._sluicectl, "--scheduler=127.0.0.1:" + port, "status", "--json"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if asked.returncode != 0:
            return False
        # Until the scheduler has missed the server the job counts as protected: pushes come first.
        return kill.role == "scheduler" or kill.pause is not None and json.loads(asked.stdout)["jobs"][0]["is_protected"]

    def check_all_done(self):
        missing = [kill.name for kill in self._due] + ([self._now.name] if self._now else [])
        if missing:
            raise ClusterError("the run ended before %s could be killed and made good: give it more --epochs" %
                               " and ".join(missing))


def compare(options, undisturbed, again):
    """Trains once more, with kills: again(suffix of the label, kills) gives the results. Its part of summary.json."""
    print("  the same again, with one process of each role killed")
    kills = Kills(options)
    disturbed = again("-chaos", kills)
    kills.check_all_done()
    expected = undisturbed[0]["params_hash"]
    found = sorted({result["params_hash"] for result in undisturbed + disturbed})
    if found == [expected]:
        print("  the bits agree: all parameters hash to %s, with and without kills" % expected)
    else:
        print("  THE BITS DIFFER: the parameters hash to %s without kills, to %s with them" %
              (expected, ", ".join(result["params_hash"] for result in disturbed)))
    return {"bits_agree": found == [expected], "params_hash": expected,
            "seconds": max(result["seconds"] for result in disturbed),
            "kills": [{"role": kill.role, "name": kill.name, "step": kill.step, "steps": kill.steps,
                       "next_push_s": kill.pause, "made_good_s": kill.good_after} for kill in kills.done]}


def verdict(lines):
    """The exit code for lines of the summary: 1 if the bits of any differ."""
    return 1 if any(not line["chaos"]["bits_agree"] for line in lines if "chaos" in line) else 0
