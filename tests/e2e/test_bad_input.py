"""Bad input gets a clear error, and nobody else suffers from it."""

import gzip
import os
import signal
import socket
import struct

from cluster import Cluster, TestCase, binary, step_pattern, train_args, write_csv


class Configuration(TestCase):

    def refused(self, role, arguments, *texts, code=2, environment=None):
        with Cluster(servers=0) as cluster:
            process = cluster.run(role, [binary(role)] + arguments, environment)
            process.wait(code)
            for text in texts:
                self.assertIn(text, process.output())

    def test_unknown_key_names_the_nearest(self):
        for role in ("scheduler", "server", "worker"):
            self.refused(role, ["--node.lease_mss=5"], "lease_mss", "node.lease_ms")
        self.refused("worker", ["--epoch=5"], "epoch", "--epochs")
        self.refused("server", [], "SLUICE_DATA_POOL_BYTE", "SLUICE_DATA_POOL_BYTES",
                     environment={"SLUICE_DATA_POOL_BYTE": "1"})

    def test_impossible_values(self):
        self.refused("worker", ["--data=x", "--model=transformer"], "--model=transformer", "softmax or mlp")
        self.refused("worker", ["--data=x", "--hidden=0", "--model=mlp"], "--hidden=0")
        self.refused("worker", ["--data=x", "--job.optimizer.kind=none"], "job.optimizer.kind")
        self.refused("worker", [], "--data")
        self.refused("worker", ["--data=x", "--job.mode=bsq"], "job.mode", "bsp")

    def test_scheduler_that_is_not_there(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))   # bound and not listening: connections are refused
            with Cluster(servers=0) as cluster:
                address = "127.0.0.1:%d" % taken.getsockname()[1]
                data = write_csv(cluster.path("data.csv"))
                worker = cluster.run("worker", [binary("worker"), "--data=" + data, "--node.scheduler=" + address,
                                                "--node.connect_timeout_ms=1500"])
                worker.wait(1)
                self.assertIn(address, worker.output())
                self.assertIn("sluice-scheduler", worker.output())

    def test_an_address_of_another_machine_says_what_to_listen_on(self):
        for role in ("scheduler", "server"):   # TEST-NET-1: nobody's
            self.refused(role, ["--node.listen=192.0.2.1", "--node.port=0"], "192.0.2.1", "ip address",
                         "node.advertise", code=1)

    def test_port_in_use(self):
        with Cluster(servers=1) as cluster:
            second = cluster.run("second", [binary("scheduler"), "--node.port=%d" % cluster.port])
            self.assertNotEqual(second.wait(code=None), 0)
            self.assertIn(str(cluster.port), second.output())
            port = cluster.data_port(0)
            server = cluster.run("second server", [binary("server"), "--node.scheduler=" + cluster.address,
                                                   "--node.loops=1", "--node.id=other", "--node.data_port=%d" % port])
            self.assertNotEqual(server.wait(code=None), 0)
            self.assertIn(str(port), server.output())


class Outputs(TestCase):

    def test_files_that_cannot_be_written_are_noticed_at_the_start(self):
        with Cluster(servers=1) as cluster:
            missing = cluster.path("none") + "/file"
            for flag in ("--result", "--progress", "--node.trace"):
                worker = cluster.start_worker(0, train_args(cluster, workers=1) + [flag + "=" + missing])
                worker.wait(1)
                self.assertIn(flag + "=" + missing, worker.output())
                self.assertIn("No such file or directory", worker.output())
                self.assertNotIn("loaded", worker.output())
            for role, flags in (("server", ("--node.trace", "--node.port_file")), ("scheduler", ("--node.port_file",))):
                for flag in flags:
                    process = cluster.run(role, [binary(role), "--node.port=0", flag + "=" + missing])
                    process.wait(1)
                    self.assertIn(flag + "=" + missing, process.output())
            self.assertNotIn("worker_registered", cluster.scheduler.output())

    def test_a_result_that_cannot_be_written_in_the_end_does_not_keep_the_job(self):
        with Cluster(servers=1) as cluster:
            folder = cluster.path("results")
            os.mkdir(folder)
            arguments = train_args(cluster)
            worker = cluster.start_worker(0, arguments + ["--result=" + folder + "/result.json"])
            worker.wait_for("loaded")
            os.rmdir(folder)
            other = cluster.start_worker(1, arguments)
            worker.wait(1)
            other.wait(0)
            self.assertIn(folder + "/result.json", worker.output())
            cluster.scheduler.wait_for("job_finished")


class Data(TestCase):

    def refused(self, write, *texts, **more):
        with Cluster(servers=0) as cluster:
            path = cluster.path("given" + more.pop("suffix", ".csv"))
            if write is not None:
                write(path)
            worker = cluster.start_worker(0, train_args(cluster, workers=1, data=path, **more))
            worker.wait(1)
            self.assertIn(path, worker.output())
            for text in texts:
                self.assertIn(text, worker.output())
            self.assertNotIn("worker_registered", cluster.scheduler.output())

    def test_missing_file_before_anything_connects(self):
        for data_format in ("auto", "idx", "csv", "libsvm"):
            self.refused(None, "there is no such file", "check the name", format=data_format)

    def test_missing_test_data_before_anything_is_read(self):
        with Cluster(servers=0) as cluster:
            missing = cluster.path("none.svm")
            worker = cluster.start_worker(0, train_args(cluster, workers=1, test_data=missing, format="csv"))
            worker.wait(1)
            self.assertIn("--test_data: " + missing + ": there is no such file", worker.output())
            self.assertNotIn("worker_registered", cluster.scheduler.output())

    def test_bad_line_of_csv(self):
        def write(path):
            write_csv(path, rows=20)
            with open(path, "a") as file:
                file.write("1,2,three\n")
        self.refused(write, "21")

    def test_truncated_idx(self):
        def write(path):
            with open(path, "wb") as file:
                file.write(struct.pack(">IIII", 0x803, 10, 4, 4) + bytes(100))   # 160 bytes of pixels are announced
            with open(path.replace("images-idx3", "labels-idx1"), "wb") as file:
                file.write(struct.pack(">II", 0x801, 10) + bytes(10))
        self.refused(write, "116", suffix="-images-idx3-ubyte")

    def test_truncated_gzip(self):
        def write(path):
            with open(path, "wb") as file:
                file.write(gzip.compress(b"0,1.5,2.5\n" * 5000)[:60])
        self.refused(write, suffix=".csv.gz")

    def test_too_little_data(self):
        with Cluster(servers=1) as cluster:
            path = write_csv(cluster.path("small.csv"), rows=20)
            worker = cluster.start_worker(0, train_args(cluster, workers=1, data=path, batch=64))
            worker.wait(1)
            self.assertIn("batch", worker.output())


class Peers(TestCase):

    def test_two_workers_with_one_rank(self):
        with Cluster(servers=1) as cluster:
            arguments = train_args(cluster, epochs=6)
            first = cluster.start_worker(0, arguments)
            cluster.scheduler.wait_for("rank 0")
            second = cluster.start_worker(0, arguments)
            second.wait(1)
            self.assertIn("rank 0", second.output())
            other = cluster.start_worker(1, arguments)   # the job is none the worse for it
            first.wait()
            other.wait()

    def test_rank_that_cannot_be(self):
        with Cluster(servers=1) as cluster:
            worker = cluster.start_worker(7, train_args(cluster, workers=2))
            worker.wait(2)   # a wrong setting: refused before anything is loaded or connected
            self.assertIn("rank 7 does not fit job.workers 2", worker.output())

    def test_tensor_registered_differently(self):
        with Cluster(servers=1) as cluster:
            arguments = [train_args(cluster, hidden=32 + rank) for rank in (0, 1)]
            workers = [cluster.start_worker(rank, arguments[rank]) for rank in (0, 1)]
            # Whoever comes second is told which tensor, and both shapes.
            second = next(rank for rank in (0, 1) if workers[rank].ends_before(workers[1 - rank]))
            workers[second].wait(1)
            said = workers[second].output()
            self.assertIn("layer0.weight", said)
            self.assertIn("this job has 12x%d" % (32 + 1 - second), said)
            self.assertIn("this process (rank %d) has 12x%d" % (second, 32 + second), said)
            # The first one waits for it to come back as it should have been.
            again = cluster.start_worker(second, arguments[1 - second])
            for worker in (workers[1 - second], again):
                worker.wait()

    def test_a_mistyped_flag_at_a_restart_ends_that_process_alone(self):
        with Cluster(servers=1) as cluster:
            arguments = train_args(cluster, epochs=20, data__snapshot_dir=cluster.path("snapshots"))
            workers = [cluster.start_worker(rank, arguments) for rank in (0, 1)]
            workers[1].wait_for(step_pattern(30))
            workers[1].kill()
            for mistyped, text in (("--hidden=16", "this job has 12x32"), ("--batch=100000", "batch"),
                                   ("--data=" + cluster.path("dota.csv"), "no such file")):
                again = cluster.start_worker(1, arguments + [mistyped])
                again.wait(1)
                self.assertIn(text, again.output())
                self.assertTrue(workers[0].running(), mistyped)
            workers[1] = cluster.start_worker(1, arguments)
            for worker in workers:
                worker.wait()
            self.assertEqual(cluster.result(0)["params_hash"], cluster.result(1)["params_hash"])

    def test_job_configured_differently(self):
        with Cluster(servers=1) as cluster:
            first = cluster.start_worker(0, train_args(cluster))
            cluster.scheduler.wait_for("worker_registered")
            second = cluster.start_worker(1, train_args(cluster, job__optimizer__rate=0.03))
            second.wait(1)
            self.assertIn("job.optimizer.rate", second.output())
            self.assertTrue(first.running())

    def test_nonfinite_is_refused_by_name(self):
        with Cluster(servers=1) as cluster:
            arguments = train_args(cluster, job__optimizer__rate=1e6)
            workers = [cluster.start_worker(rank, arguments) for rank in (0, 1)]
            for worker in workers:
                worker.wait(1)
            said = workers[0].output() + workers[1].output()
            self.assertRegex(said, r"tensor layer\d\.(weight|bias): element \d+ is -?(nan|inf)")

    def test_nonfinite_is_skipped(self):
        with Cluster(servers=2) as cluster:
            arguments = train_args(cluster, job__optimizer__rate=1e6, job__on_nonfinite="skip")
            results = self.train(cluster, arguments=arguments)
            self.assertGreater(results[0]["skipped_steps"], 0)
            self.assertEqual(results[0]["skipped_steps"], results[1]["skipped_steps"])
            self.assertEqual(results[0]["params_hash"], results[1]["params_hash"])


def frame(version=1, kind=1, payload=b"", magic=b"SLC1"):
    """A frame whose header's check is wrong (XXH3 is not in Python), as a stranger might send it."""
    header = bytearray(128)
    header[0:4] = magic
    header[4] = version
    header[5] = kind
    struct.pack_into("<Q", header, 48, len(payload))
    struct.pack_into("<I", header, 64, len(payload))
    return bytes(header) + payload


class Strangers(TestCase):

    def talk(self, port, data):
        """Sends, and gives what came back until the other side hung up."""
        received = b""
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                while True:
                    got = connection.recv(4096)
                    if not got:
                        break
                    received += got
            except ConnectionError:
                pass   # hung up on us
        return received

    def test_random_bytes_at_every_port_change_no_bit(self):
        with Cluster(servers=1) as cluster:
            expected = self.train(cluster)[0]["params_hash"]
        with Cluster(servers=1) as cluster:
            arguments = train_args(cluster, data__transport="tcp")
            workers = [cluster.start_worker(rank, arguments) for rank in (0, 1)]
            ports = [cluster.port, cluster.data_port(0)]
            workers[0].wait_for(step_pattern(10))
            for port in ports:
                for data in (os.urandom(5000), b"GET / HTTP/1.1\r\n\r\n", b"\0" * 1000, frame(), frame()[:50], b"",
                             frame(kind=5, payload=b"x" * 100), struct.pack("<4sBB", b"SLC1", 1, 1) + b"\xff" * 122):
                    self.talk(port, data)
            for worker in workers:
                worker.wait()
            self.assertEqual(cluster.result(0)["params_hash"], expected)
            self.assertTrue(cluster.scheduler.running() and cluster.servers[0].running())

    def test_another_version_is_told_both_versions(self):
        with Cluster(servers=1) as cluster:
            answer = self.talk(cluster.data_port(0), frame(version=9))
            said = answer.decode(errors="replace") + cluster.servers[0].output()
            self.assertRegex(said, r"version 9")
            self.assertTrue(cluster.servers[0].running())


class Endings(TestCase):

    def test_sigterm_ends_everybody_in_order(self):
        with Cluster(servers=2) as cluster:
            workers = [cluster.start_worker(rank, train_args(cluster, epochs=500)) for rank in (0, 1)]
            for worker in workers:
                worker.wait_for(step_pattern(10))
            for worker in workers:
                worker.signal(signal.SIGTERM)
            for worker in workers:
                worker.wait(code=143)
            for process in cluster.servers + [cluster.scheduler]:
                process.signal(signal.SIGTERM)
                process.wait(code=0)

    def test_sigterm_while_waiting_for_the_job(self):
        with Cluster(servers=1) as cluster:
            worker = cluster.start_worker(0, train_args(cluster))   # the other one never comes
            cluster.scheduler.wait_for("worker_registered")
            worker.signal(signal.SIGTERM)
            worker.wait(code=143)

    def test_daemons_end_by_themselves_with_the_job(self):
        end = ["--node.exit_when_done"]
        with Cluster(servers=1, scheduler_args=end, server_args=end) as cluster:
            self.train(cluster)
            cluster.scheduler.wait()
            cluster.servers[0].wait()


