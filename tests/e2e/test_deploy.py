"""The examples of deploy/, as far as they can be tried without the systems that they are for: what they hand to
Sluice's programs is what these take, and the Slurm script trains, with an srun that starts its tasks on this host."""

import collections
import json
import os
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

import yaml

from cluster import DEADLINE, Process, TestCase, binary, clean_environment

HERE = os.path.dirname(os.path.abspath(__file__))
DEPLOY = os.path.join(HERE, "..", "..", "deploy")
ROLES = ("scheduler", "server", "worker")


def example(*parts):
    return os.path.join(DEPLOY, *parts)


class Example(TestCase):

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="sluice-deploy-", dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def settings(self, command, environment=None):
        """What a program makes of a command line: {key: value}. Fails if it refuses it."""
        role = os.path.basename(command[0])[len("sluice-"):]
        self.assertIn(role, ROLES, command)
        done = subprocess.run([binary(role)] + command[1:] + ["--print-config"], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=DEADLINE,
                              env=dict(clean_environment(), **(environment or {})))
        self.assertEqual(done.returncode, 0, done.stderr)
        return dict(re.match(r"([\w.]+) += (.*?) +\(", line).groups() for line in done.stdout.splitlines())


class Kubernetes(Example):

    def setUp(self):
        super().setUp()
        with open(example("kubernetes", "sluice.yaml")) as file:
            documents = list(yaml.safe_load_all(file))
        self.objects = collections.defaultdict(dict)
        for document in documents:
            self.assertEqual({"apiVersion", "kind", "metadata", "spec"}, set(document))
            self.assertNotIn(document["metadata"]["name"], self.objects[document["kind"]])
            self.objects[document["kind"]][document["metadata"]["name"]] = document

    def workloads(self):
        return [o for kind in ("Deployment", "StatefulSet", "Job") for o in self.objects[kind].values()]

    def container(self, workload):
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        return container

    def test_every_object_has_what_its_kind_needs(self):
        self.assertEqual({kind: sorted(named) for kind, named in self.objects.items() if named},
                         {"Service": ["sluice-scheduler", "sluice-server"], "Deployment": ["sluice-scheduler"],
                          "StatefulSet": ["sluice-server"], "Job": ["sluice-worker"]})
        versions = {"Service": "v1", "Deployment": "apps/v1", "StatefulSet": "apps/v1", "Job": "batch/v1"}
        for kind, named in self.objects.items():
            for each in named.values():
                self.assertEqual(each["apiVersion"], versions[kind])
        for workload in self.workloads():
            spec, pod = workload["spec"], workload["spec"]["template"]["spec"]
            labels = spec["template"]["metadata"]["labels"]
            if workload["kind"] == "Job":
                self.assertIn(pod["restartPolicy"], ("Never", "OnFailure"))
                self.assertEqual((spec["completionMode"], spec["completions"]), ("Indexed", spec["parallelism"]))
            else:
                self.assertLessEqual(spec["selector"]["matchLabels"].items(), labels.items())
            # Injected SLUICE_SCHEDULER_… variables would be refused as settings that do not exist.
            self.assertIs(pod["enableServiceLinks"], False)
            container = self.container(workload)
            self.assertTrue(container["name"] and container["image"])
            volumes = {volume["name"] for volume in pod.get("volumes", [])}
            self.assertLessEqual({mount["name"] for mount in container.get("volumeMounts", [])}, volumes)
        for service in self.objects["Service"].values():
            selected = [w for w in self.workloads()
                        if service["spec"]["selector"].items() <= w["spec"]["template"]["metadata"]["labels"].items()]
            self.assertEqual(len(selected), 1, service["metadata"]["name"])

    def test_the_programs_take_their_commands_and_the_numbers_fit(self):
        by_role = {}
        for workload in self.workloads():
            container = self.container(workload)
            # Fields of the pod become any text that fits.
            given = {v["name"]: v.get("value", "1") for v in container.get("env", [])}
            for variable in container.get("env", []):
                self.assertTrue("value" in variable or variable["valueFrom"]["fieldRef"]["fieldPath"])
            settings = self.settings(container["command"], given)
            by_role[os.path.basename(container["command"][0])] = settings
            notes = workload["spec"]["template"]["metadata"].get("annotations", {})
            if "prometheus.io/port" in notes:
                self.assertEqual(notes["prometheus.io/port"], settings["node.metrics_port"])
            if "readinessProbe" in container:
                self.assertEqual(str(container["readinessProbe"]["grpc"]["port"]), settings["node.port"])
        scheduler, server, worker = (by_role["sluice-" + role] for role in ROLES)
        servers = self.objects["StatefulSet"]["sluice-server"]["spec"]
        self.assertEqual(scheduler["node.servers"], str(servers["replicas"]))
        self.assertEqual(servers["serviceName"], "sluice-server")
        self.assertEqual(worker["job.workers"], str(self.objects["Job"]["sluice-worker"]["spec"]["completions"]))
        for service, settings in (("sluice-scheduler", scheduler), ("sluice-server", server)):
            ports = [port["port"] for port in self.objects["Service"][service]["spec"]["ports"]]
            self.assertEqual(ports, [int(settings["node.port"])])
        for settings in (server, worker):
            self.assertEqual(settings["node.scheduler"], "sluice-scheduler:" + scheduler["node.port"])


class Systemd(Example):

    UNITS = {"sluice-scheduler.service": "sluice-scheduler.service",
             "sluice-server@.service": "sluice-server@0.service"}

    def units(self):
        """(name of an instance, its text) of each example."""
        there = [f for f in os.listdir(example("systemd")) if f.endswith(".service")]
        self.assertEqual(sorted(there), sorted(self.UNITS))
        for file, instance in self.UNITS.items():
            with open(example("systemd", file)) as unit:
                yield instance, unit.read()

    def test_the_programs_take_the_units_commands(self):
        for instance, text in self.units():
            command = re.search(r"^ExecStart=(.*)$", text, re.MULTILINE).group(1)
            command = command.replace("%i", "0").replace("%H", "host")
            self.assertIn("--config=/etc/sluice/sluice.txt", command)
            words = shlex.split(command.replace("/etc/sluice/sluice.txt", example("systemd", "sluice.txt")))
            self.assertEqual(self.settings(words)["node.listen"], "0.0.0.0", instance)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "there is no systemd-analyze")
    def test_systemd_verifies_the_units(self):
        for instance, text in self.units():
            path = os.path.join(self.folder, instance)
            with open(path, "w") as unit:   # the programs are not installed here
                unit.write(re.sub(r"(?m)^ExecStart=/usr/local/bin/sluice-\w+", "ExecStart=/bin/true", text))
            done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True,
                                  timeout=DEADLINE, stdin=subprocess.DEVNULL)
            if "Failed to initialize manager" in done.stderr:
                self.skipTest("systemd-analyze cannot run here: " + done.stderr.strip())
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn(instance, done.stderr)   # warnings


class Slurm(Example):

    SCRIPT = example("slurm", "sluice.sbatch")

    def test_bash_reads_the_script(self):
        done = subprocess.run(["bash", "-n", self.SCRIPT], capture_output=True, text=True, timeout=DEADLINE)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        with open(self.SCRIPT) as script:
            lines = script.read().split("\n")
        self.assertEqual(lines[0], "#!/bin/bash")
        options = [line for line in lines if line.startswith("#SBATCH")]
        self.assertTrue(options and all(re.fullmatch(r"#SBATCH --[a-z-]+=\S+", option) for option in options), options)
        # Slurm reads no option behind the first command.
        self.assertLess(lines.index(options[-1]), lines.index("set -euo pipefail"))

    def write_tools(self):
        """srun and scontrol, as the script's node would have them."""
        tools = {"srun": 'exec "%s" -B "%s" "$@"' % (sys.executable, os.path.join(HERE, "fake_srun.py")),
                 "scontrol": '[[ "$1 $2" == "show hostnames" ]] || exit 2\ntr , "\\n" <<< "$3"'}
        os.mkdir(os.path.join(self.folder, "tools"))
        for name, text in tools.items():
            path = os.path.join(self.folder, "tools", name)
            with open(path, "w") as file:
                file.write("#!/bin/bash\n%s\n" % text)
            os.chmod(path, 0o755)

    def write_home(self):
        """An installation under ~/sluice, and images of four by four pixels, of which one is bright: the label."""
        os.makedirs(os.path.join(self.folder, "sluice", "bin"))
        for role in ROLES:
            os.symlink(binary(role), os.path.join(self.folder, "sluice", "bin", "sluice-" + role))
        data = os.path.join(self.folder, "data", "fashion-mnist")
        os.makedirs(data)
        rows = 640
        labels = bytes(i * 7 % 10 for i in range(rows))
        with open(os.path.join(data, "train-images-idx3-ubyte"), "wb") as file:
            file.write(struct.pack(">IIII", 0x803, rows, 4, 4))
            file.write(b"".join(bytes(200 if pixel == label else (i + pixel) % 50 for pixel in range(16))
                                for i, label in enumerate(labels)))
        with open(os.path.join(data, "train-labels-idx1-ubyte"), "wb") as file:
            file.write(struct.pack(">II", 0x801, rows) + labels)

    def free_job_number(self):
        """A job whose scheduler's port nobody has."""
        for job in range(os.getpid() % 10000, os.getpid() % 10000 + 100):
            with socket.socket() as probe:
                try:
                    probe.bind(("", 20000 + job % 10000))
                    return job
                except OSError:
                    continue
        self.fail("no port is free")

    def test_the_script_trains_and_everybody_ends(self):
        try:
            socket.gethostbyname(socket.gethostname())
        except OSError:
            self.skipTest("this host's own name has no address, which a server that listens everywhere tells others")
        self.write_tools()
        self.write_home()
        job = self.free_job_number()
        variables = {"HOME": self.folder, "PATH": os.path.join(self.folder, "tools") + ":" + os.environ["PATH"],
                     "SLURM_JOB_ID": str(job), "SLURM_JOB_NODELIST": "localhost,127.0.0.1", "SLURM_JOB_NUM_NODES": "2",
                     "SLURM_PROCID": "0", "SLURM_NTASKS": "6"}
        batch = Process("sbatch", ["env", "-C", self.folder, "bash", self.SCRIPT], variables)
        self.addCleanup(batch.close)
        batch.wait(0, deadline=2 * DEADLINE)
        for program, tasks in (("scheduler", 1), ("server", 2), ("worker", 2)):
            self.assertIn("srun: sluice-%s ended with %s" % (program, [0] * tasks), batch.output())
        results = []
        for rank in range(2):
            with open(os.path.join(self.folder, "result-%d.json" % rank)) as file:
                results.append(json.load(file))
        self.assertEqual([result["rank"] for result in results], [0, 1])
        self.assertEqual(results[0]["params_hash"], results[1]["params_hash"])
        self.assertGreater(results[0]["test_accuracy"], 0.9)
        self.assertTrue(os.path.exists(os.path.join(self.folder, "sluice-%d.db" % job)))
