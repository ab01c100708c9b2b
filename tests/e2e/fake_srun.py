"""Plays Slurm's srun on one host: starts --ntasks copies of a command, each with its SLURM_… variables, and waits.

Takes the options that deploy/slurm uses and refuses any other. Ends with the largest code of its tasks, and passes SIGTERM
on to them. It does not outlive its parent, nor its tasks it.
"""

import argparse
import ctypes
import os
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent():
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main():
    die_with_parent()
    parser = argparse.ArgumentParser(prog="srun", allow_abbrev=False)
    parser.add_argument("--overlap", action="store_true", required=True)   # or the second step would wait for the first
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--ntasks", type=int, required=True)
    parser.add_argument("--ntasks-per-node", type=int)
    parser.add_argument("--nodelist")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    nodes = os.environ["SLURM_JOB_NODELIST"].split(",")
    if given.nodes > len(nodes) or (given.nodelist and given.nodelist not in nodes):
        parser.error("the job has the nodes %s" % ",".join(nodes))
    if given.ntasks > given.nodes * (given.ntasks_per_node or given.ntasks):
        parser.error("more tasks than places")

    tasks = []
    for rank in range(given.ntasks):
        step = {"SLURM_PROCID": rank, "SLURM_LOCALID": 0, "SLURM_NODEID": rank % given.nodes,
                "SLURM_NTASKS": given.ntasks, "SLURM_STEP_NUM_NODES": given.nodes}
        tasks.append(subprocess.Popen(given.command, preexec_fn=die_with_parent,
                                      env=dict(os.environ, **{key: str(value) for key, value in step.items()})))
    signal.signal(signal.SIGTERM, lambda *_: [task.terminate() for task in tasks])
    codes = [task.wait() for task in tasks]
    program = next(os.path.basename(word) for word in given.command if "sluice-" in word)
    print("srun: %s ended with %s" % (program, codes), flush=True)
    sys.exit(max(abs(code) for code in codes))


if __name__ == "__main__":
    main()
