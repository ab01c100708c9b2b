"""A Sluice cluster as child processes of this one."""

import collections
import ctypes
import os
import signal
import subprocess
import time

_PR_SET_PDEATHSIG = 1


class ClusterError(Exception):
    """What failed, in words, with the end of the log that tells why."""


def _die_with_parent():
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def tail(path, lines=15):
    try:
        with open(path, errors="replace") as file:
            return "".join("    " + line for line in collections.deque(file, lines)).rstrip()
    except OSError as error:
        return "    (%s)" % error


class Cluster:
    """Use as a context: whatever it started is ended at the end, and nothing else is touched."""

    def __init__(self, binaries, folder, label):
        self._binaries, self._folder, self._label = binaries, folder, label
        self._children = []  # (name, log, Popen), in order of start, without those that were killed on purpose
        self._commands = {}  # name: (role, arguments)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for _, _, child in reversed(self._children):
            if child.poll() is None:
                child.terminate()
        deadline = time.monotonic() + 10
        for _, _, child in self._children:
            try:
                child.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def log_of(self, name):
        return os.path.join(self._folder, "%s-%s.log" % (self._label, name))

    def start(self, name, role, arguments, mode="w"):
        """Starts sluice-ROLE; its output goes to out/quickstart/LABEL-NAME.log."""
        log = self.log_of(name)
        self._commands[name] = (role, arguments)
        command = [os.path.join(self._binaries, role, "sluice-" + role)] + arguments
        # Settings of the surrounding shell are for other clusters than this one.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "DMLC_", "SLURM_"))
                       and k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
        with open(log, mode) as out:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                     env=environment, preexec_fn=_die_with_parent)
        self._children.append((name, log, child))

    def kill(self, name):
        """As kill -9, and waits for the end."""
        for i, (each, _, child) in enumerate(self._children):
            if each == name:
                child.kill()
                child.wait()
                del self._children[i]
                return

    def start_again(self, name, *more):
        """With the arguments of before and these; its log goes on."""
        role, arguments = self._commands[name]
        self.start(name, role, arguments + list(more), mode="a")

    def any_runs(self, role):
        return any(child.poll() is None for name, _, child in self._children if self._commands[name][0] == role)

    def check(self):
        """Raises if a child has failed."""
        for name, log, child in self._children:
            code = child.poll()
            if code not in (None, 0):
                how = "was ended by signal %d" % -code if code < 0 else "ended with code %d" % code
                raise ClusterError("%s of run \"%s\" %s. The end of %s:\n%s" %
                                   (name, self._label, how, os.path.relpath(log), tail(log)))

    def wait_for_file(self, path, name, seconds=60):
        """The text of a file that a child writes when it is ready."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.check()
            try:
                with open(path) as file:
                    text = file.read()
                if text.endswith("\n") or text.strip():
                    return text.strip()
            except FileNotFoundError:
                pass
            time.sleep(0.02)
        raise ClusterError("%s of run \"%s\" was not ready after %d s. The end of %s:\n%s" %
                           (name, self._label, seconds, os.path.relpath(self.log_of(name)), tail(self.log_of(name))))
