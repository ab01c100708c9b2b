"""usage: deploy/namespaces COMMAND

A cluster of racks on this machine: hosts are network namespaces, links have the rates that you give (tc tbf). Nothing is
left behind by `down`, and no root is needed where unprivileged namespaces are allowed.

  up [OPTION…]       makes the network; starts a scheduler and a server on each host
    --racks=N --hosts=N        racks, and hosts of each (2, 2)
    --host-rate=R              of a host's link (1gbit)
    --core-rate=R              between a rack and the core (200mbit)
    --rails=N                  networks side by side, each with these rates (1)
    --servers=HOST,…           only on these hosts; "none" starts none
    --flags="FLAG …"           more flags of the scheduler, such as --topology.trees=off
  job [FLAG…]        trains the quickstart's job, a worker on each host; flags go to the workers (--job.codec=int8)
      --epochs=N     passes over the data (1)
  ctl ARGUMENT…      sluicectl of this cluster: deploy/namespaces ctl plan --explain
  exec HOST COMMAND… runs a command on a host
  throttle RACK RATE [RAIL]   gives a rack's link to the core another rate, from now on
  status             what runs; bytes that each rack's link has carried
  down               ends all of it
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "quickstart"))
import network as racks
from daemons import Daemons
from network import NetworkError

FOLDER = os.path.abspath("out/namespaces")
STATE = os.path.join(FOLDER, "state.json")
BINARIES = "RACKS_BINARIES"   # of the environment; not SLUICE_…, which would be a setting


def started_at(pid):
    with open("/proc/%d/stat" % pid) as file:
        return file.read().rsplit(")", 1)[1].split()[19]


def runs(found):
    """Whether the process that holds the cluster is there, and is not another one of that number."""
    try:
        return started_at(found["pid"]) == found["started_at"]
    except OSError:
        return False


def state():
    """Of the cluster that is up; None if none is."""
    try:
        with open(STATE) as file:
            found = json.load(file)
        return found if runs(found) else None
    except (OSError, ValueError, KeyError):
        return None


def need_state():
    found = state()
    if found is None:
        raise NetworkError("no cluster is up; `deploy/namespaces up` starts one")
    return found


def entered(found):
    """The prefix of a command that runs inside of the cluster's namespaces."""
    user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
    return ["nsenter", "--target", str(found["pid"]), "--net", "--mount"] + user + ["--"]


def binaries():
    path = os.environ.get(BINARIES) or (state() or {}).get("binaries", "")
    if not path:
        raise NetworkError("where are the binaries? Start it as deploy/namespaces")
    return path


# ---- the process that holds the namespaces

def hold(arguments):
    parser = argparse.ArgumentParser(prog="deploy/namespaces up")
    parser.add_argument("--racks", type=int, default=2)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--host-rate", default="1gbit")
    parser.add_argument("--core-rate", default="200mbit")
    parser.add_argument("--rails", type=int, default=1)
    parser.add_argument("--servers", default="")
    parser.add_argument("--flags", default="")
    parser.add_argument("--check-only", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not (1 <= options.racks <= 16 and 1 <= options.hosts <= 16 and 1 <= options.rails <= 8):
        parser.error("1 to 16 racks, 1 to 16 hosts each, 1 to 8 rails")
    for rate in (options.host_rate, options.core_rate):
        racks.bits(rate)
    if options.check_only:
        return 0
    # Not a subdirectory of /run: enter() hides that.
    racks.enter(os.path.abspath(__file__), ["hold"] + arguments, stay=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    net = racks.RackNetwork(options.racks, options.hosts, options.host_rate, options.core_rate, options.rails)
    where = net.hosts if not options.servers else [] if options.servers == "none" else options.servers.split(",")
    for host in where:
        if host not in net.hosts:
            raise NetworkError("there is no host %s; hosts are %s" % (host, ", ".join(net.hosts)))
    try:
        with Daemons(net, binaries(), FOLDER) as daemons:
            daemons.start_scheduler(max(1, len(where)), options.flags.split())
            for host in where:
                daemons.start_server(host)
            found = {"pid": os.getpid(), "started_at": started_at(os.getpid()), "racks": options.racks, "hosts": net.hosts,
                     "rails": options.rails, "per_rack": options.hosts, "host_rate": options.host_rate,
                     "core_rate": options.core_rate, "scheduler": daemons.address, "servers": where, "binaries": binaries()}
            with open(STATE + ".new", "w") as file:
                json.dump(found, file, indent=1)
            os.rename(STATE + ".new", STATE)
            while True:
                daemons.check()
                time.sleep(0.5)
    finally:   # when all have ended
        if os.path.exists(STATE):
            os.unlink(STATE)


# ---- commands

def up(arguments):
    if "--help" in arguments:
        print(__doc__)
        return 0
    if state() is not None:
        raise NetworkError("a cluster is up already; `deploy/namespaces down` ends it")
    hold(arguments + ["--check-only"])
    os.makedirs(FOLDER, exist_ok=True)
    with open(os.path.join(FOLDER, "hold.log"), "w") as log:
        holder = subprocess.Popen([sys.executable, "-B", os.path.abspath(__file__), "hold"] + arguments, stdin=subprocess.DEVNULL,
                                  stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    deadline = time.monotonic() + 60
    while state() is None:
        if holder.poll() is not None or time.monotonic() > deadline:
            with open(os.path.join(FOLDER, "hold.log")) as log:
                raise NetworkError("the cluster did not come up:\n" + log.read()[-2000:])
        time.sleep(0.05)
    found = state()
    print("up: %d racks of %d hosts (%s to each host, %s between racks), a server on %s" %
          (found["racks"], found["per_rack"], found["host_rate"], found["core_rate"], ", ".join(found["servers"]) or "none"))
    print("next: deploy/namespaces job, deploy/namespaces ctl plan --explain, deploy/namespaces down; logs are in out/namespaces")
    return 0


def down():
    found = need_state()
    os.kill(found["pid"], signal.SIGTERM)
    deadline = time.monotonic() + 30
    while runs(found):
        if time.monotonic() > deadline:
            raise NetworkError("process %d, which holds the cluster, has not ended within 30 s" % found["pid"])
        time.sleep(0.05)
    print("down")
    return 0


def inside(found, *command):
    return subprocess.run(entered(found) + list(command), capture_output=True, text=True, check=False)


def status():
    found = need_state()
    print("racks of %d hosts: %s; scheduler %s; %s to each host, %s between racks, %d rail(s)" %
          (found["per_rack"], ", ".join(found["hosts"]), found["scheduler"], found["host_rate"], found["core_rate"], found["rails"]))
    for rack in range(1, found["racks"] + 1):
        for rail in range(found["rails"]):
            told = json.loads(inside(found, "ip", "-j", "-s", "link", "show", "dev", "up%d.%d" % (rack, rail)).stdout)[0]["stats64"]
            print("rack %d rail %d: %.1f MiB sent to the core, %.1f MiB received" %
                  (rack, rail, told["tx"]["bytes"] / 2**20, told["rx"]["bytes"] / 2**20))
    return 0


def ctl(arguments):
    found = need_state()
    program = os.path.join(binaries(), "ctl", "sluicectl")
    return subprocess.run(entered(found) + [program, "--scheduler=" + found["scheduler"]] + arguments, check=False).returncode


def throttle(arguments):
    found = need_state()
    if len(arguments) not in (2, 3) or not all(a.isdigit() for a in arguments[:1] + arguments[2:]):
        raise NetworkError("throttle takes the number of a rack, a rate such as 20mbit, and perhaps a rail")
    racks.bits(arguments[1])
    rack, rail = int(arguments[0]), int(arguments[2]) if len(arguments) == 3 else 0
    if not (1 <= rack <= found["racks"] and rail < found["rails"]):
        raise NetworkError("there is no rack %d with a rail %d: racks are 1 to %d, rails 0 to %d" %
                           (rack, rail, found["racks"], found["rails"] - 1))
    for device in racks.RackNetwork.uplink(rack, rail):
        racks.shape(entered(found), device, arguments[1], change=True)
    return 0


def execute(arguments):
    found = need_state()
    if len(arguments) < 2 or arguments[0] not in found["hosts"]:
        raise NetworkError("exec takes a host (%s) and a command" % ", ".join(found["hosts"]))
    return subprocess.run(entered(found) + ["ip", "netns", "exec"] + arguments, check=False).returncode


def end_all(children):
    """Those that run still, in order; whoever takes more than 5 s by force."""
    deadline = time.monotonic() + 5
    for child in children:
        if child.poll() is None:
            child.terminate()
    for child in children:
        try:
            child.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def job(arguments):
    """A worker on each host, ranks as the scheduler gives them."""
    from image_model import BATCH, DATA, MODEL, OPTIMIZER
    found = need_state()
    epochs = [a for a in arguments if a.startswith("--epochs=")]
    flags = [a for a in arguments if not a.startswith("--epochs=")]
    epochs = int(epochs[-1].split("=")[1]) if epochs else 1
    steps = epochs * (60000 // (BATCH * len(found["hosts"])))
    common = ["--job.name=racks", "--job.workers=%d" % len(found["hosts"]), "--data=" + DATA, "--epochs=%d" % epochs,
              "--job.optimizer.total_rounds=%d" % steps] + ["--job.optimizer.%s=%s" % pair for pair in OPTIMIZER.items()] + MODEL
    children = []
    address = lambda host: "10.80.%s.%s" % tuple(host[1:].split("h"))
    try:
        for host in found["hosts"]:
            log, result = os.path.join(FOLDER, "worker-%s.log" % host), os.path.join(FOLDER, "worker-%s.json" % host)
            if os.path.exists(result):
                os.unlink(result)
            command = entered(found) + ["ip", "netns", "exec", host, os.path.join(binaries(), "worker", "sluice-worker"),
                                        "--node.scheduler=" + found["scheduler"], "--node.host=" + host, "--node.listen=0.0.0.0",
                                        "--node.advertise=" + address(host), "--result=" + result] + common + flags
            with open(log, "w") as out:
                children.append((host, result, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)))
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))   # so that what follows is done then, too
        while any(child.poll() is None for _, _, child in children):
            if not runs(found):
                raise NetworkError("the cluster was taken down while the job ran; its workers are ended")
            time.sleep(0.1)
        failed = [host for host, _, child in children if child.returncode != 0]
    except KeyboardInterrupt:
        raise NetworkError("interrupted; the workers are ended") from None
    finally:
        end_all([child for _, _, child in children])
    if failed:
        raise NetworkError("the workers of %s failed; see out/namespaces/worker-%s.log" % (", ".join(failed), failed[0]))
    results = [json.load(open(result)) for _, result, _ in children]
    seconds = max(r["seconds"] for r in results)
    print("%d steps in %.1f s (%.1f ms each), test accuracy %.4f, transport %s" %
          (results[0]["steps"], seconds, 1e3 * seconds / max(1, results[0]["steps"]), results[0]["test_accuracy"],
           "+".join(sorted({r["transport"] for r in results}))))
    print("what was planned: deploy/namespaces ctl plan --explain")
    return 0


def main(arguments):
    command, rest = (arguments[0] if arguments else "--help"), arguments[1:]
    commands = {"up": lambda: up(rest), "hold": lambda: hold(rest), "down": down, "status": status, "ctl": lambda: ctl(rest),
                "throttle": lambda: throttle(rest), "exec": lambda: execute(rest), "job": lambda: job(rest)}
    if command not in commands:
        print(__doc__)
        return 0 if command in ("--help", "-h", "help") else 2
    try:
        return commands[command]() or 0
    except NetworkError as error:
        print("deploy/namespaces: %s" % error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
