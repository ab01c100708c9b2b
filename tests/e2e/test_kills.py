"""kill -9 in the middle of a run, a new start, and the same bits at the end."""

import glob
import json
import signal

from cluster import Cluster, TestCase, step_pattern, train_args


class Kills(TestCase):
    SETTINGS = {"job__codec": "int8", "epochs": 6}

    def arguments(self, cluster, **more):
        return train_args(cluster, data__snapshot_dir=cluster.path("snapshots"), **dict(self.SETTINGS, **more))

    def reference(self, **more):
        with Cluster(servers=2) as cluster:
            return self.train(cluster, arguments=self.arguments(cluster, **more))[0]["params_hash"]

    def test_worker(self):
        for more in ({}, {"job__reply": "change", "data__transport": "tcp"}, {"job__codec": "topk:0.1"}):
            with self.subTest(**more):
                expected = self.reference(**more)
                with Cluster(servers=2) as cluster:
                    arguments = self.arguments(cluster, **more)
                    other, victim = [cluster.start_worker(rank, arguments) for rank in (0, 1)]
                    for step in (20, 90):
                        victim.wait_for(step_pattern(step))
                        victim.kill()
                        victim = cluster.start_worker(1, arguments)
                        victim.wait_for("continues from its snapshot at step")
                    victim.wait()
                    other.wait()
                    self.assertEqual([cluster.result(rank)["params_hash"] for rank in (0, 1)], [expected] * 2)

    def test_all_workers_at_once(self):
        expected = self.reference()
        with Cluster(servers=2) as cluster:
            arguments = self.arguments(cluster)
            workers = [cluster.start_worker(rank, arguments) for rank in (0, 1)]
            workers[0].wait_for(step_pattern(40))
            for worker in workers:
                worker.kill()
            self.train(cluster, arguments=arguments)
            self.assertEqual([cluster.result(rank)["params_hash"] for rank in (0, 1)], [expected] * 2)

    def test_scheduler(self):
        expected = self.reference()
        with Cluster(servers=2) as cluster:
            arguments = self.arguments(cluster)
            workers = [cluster.start_worker(rank, arguments) for rank in (0, 1)]
            workers[0].wait_for(step_pattern(30))
            cluster.scheduler.kill()
            workers[0].wait_for(step_pattern(60))   # the data plane goes on without it
            cluster.start_scheduler()
            for worker in workers:
                worker.wait()
            self.assertEqual([cluster.result(rank)["params_hash"] for rank in (0, 1)], [expected] * 2)

    def test_scheduler_and_then_a_worker(self):
        expected = self.reference()
        with Cluster(servers=2) as cluster:
            arguments = self.arguments(cluster)
            workers = [cluster.start_worker(rank, arguments) for rank in (0, 1)]
            workers[1].wait_for(step_pattern(30))
            cluster.scheduler.kill()
            workers[1].kill()
            cluster.start_scheduler()
            workers[1] = cluster.start_worker(1, arguments)
            for worker in workers:
                worker.wait()
            self.assertEqual([cluster.result(rank)["params_hash"] for rank in (0, 1)], [expected] * 2)

    def test_scheduler_without_a_state_file_ends_its_jobs_in_words(self):
        with Cluster(servers=2, scheduler_args=["--node.state_file="]) as cluster:
            workers = [cluster.start_worker(rank, self.arguments(cluster, epochs=100)) for rank in (0, 1)]
            workers[0].wait_for(step_pattern(30))
            cluster.scheduler.kill()
            cluster.start_scheduler()
            for worker in workers:
                worker.wait(1)
                self.assertIn("it was started without its state (node.state_file); start the job again", worker.output())

    def test_worker_that_is_told_to_end_comes_back(self):
        expected = self.reference()
        with Cluster(servers=2) as cluster:
            arguments = self.arguments(cluster)
            workers = [cluster.start_worker(rank, arguments) for rank in (0, 1)]
            workers[1].wait_for(step_pattern(30))
            workers[1].signal(signal.SIGTERM)
            workers[1].wait(code=143)
            workers[1] = cluster.start_worker(1, arguments)
            for worker in workers:
                worker.wait()
            self.assertEqual([cluster.result(rank)["params_hash"] for rank in (0, 1)], [expected] * 2)

    def test_worker_without_snapshots_joins_again(self):
        with Cluster(servers=2) as cluster:
            arguments = train_args(cluster, **self.SETTINGS)
            workers = [cluster.start_worker(rank, arguments) for rank in (0, 1)]
            workers[1].wait_for(step_pattern(30))
            workers[1].kill()
            workers[1] = cluster.start_worker(1, arguments)
            said = workers[1].wait_for(" W .*joins the job at step").string
            self.assertIn("will not be the bits of an uninterrupted run: data.snapshot_dir is not set", said)
            for worker in workers:
                worker.wait()
            self.assertEqual(cluster.result(0)["params_hash"], cluster.result(1)["params_hash"])

    def test_a_worker_whose_snapshots_are_damaged_warns_that_the_bits_are_others(self):
        with Cluster(servers=1) as cluster:
            arguments = self.arguments(cluster, epochs=20)
            workers = [cluster.start_worker(rank, arguments) for rank in (0, 1)]
            workers[1].wait_for(step_pattern(30))
            workers[1].kill()
            files = glob.glob(cluster.path("snapshots") + "/*-rank1.snapshot.*")
            self.assertEqual(len(files), 2)
            for path in files:
                with open(path, "r+b") as file:
                    file.write(b"damaged!")
            workers[1] = cluster.start_worker(1, arguments)
            said = workers[1].wait_for(" W .*joins the job at step").string
            self.assertIn("will not be the bits of an uninterrupted run", said)
            self.assertIn("both files of the snapshot are damaged", said)
            for worker in workers:
                worker.wait()

    def test_a_snapshot_of_other_settings_is_refused_with_both_values(self):
        with Cluster(servers=1) as cluster:
            arguments = self.arguments(cluster, epochs=20)
            workers = [cluster.start_worker(rank, arguments) for rank in (0, 1)]
            workers[1].wait_for(step_pattern(30))
            workers[1].kill()
            for flag, before, now in (("--batch", 8, 16), ("--epochs", 20, 5), ("--steps", 0, 70), ("--seed", 1, 2)):
                again = cluster.start_worker(1, arguments + ["%s=%d" % (flag, now)])
                again.wait(1)
                self.assertIn("taken with %s=%d, this process has %s=%d" % (flag, before, flag, now), again.output())
                self.assertIn("-rank1.snapshot.0", again.output())
                self.assertTrue(workers[0].running())
            workers[1] = cluster.start_worker(1, arguments)
            workers[1].wait_for("continues from its snapshot")
            for worker in workers:
                worker.wait()

    def test_lost_server_fails_the_job_in_words(self):
        with Cluster(servers=2, scheduler_args=["--node.lease_ms=1000"]) as cluster:
            arguments = self.arguments(cluster, epochs=100, job__replicas=0)
            workers = [cluster.start_worker(rank, arguments) for rank in (0, 1)]
            workers[0].wait_for(step_pattern(30))
            cluster.servers[1].kill()
            for worker in workers:
                self.assertNotEqual(worker.wait(code=None), 0)
                self.assertIn("server-1", worker.output())

    def test_an_orphaned_job_is_ended_by_an_operator(self):
        with Cluster(servers=1, scheduler_args=["--node.lease_ms=1000"]) as cluster:
            arguments = self.arguments(cluster, epochs=100)
            workers = [cluster.start_worker(rank, arguments) for rank in (0, 1)]
            workers[0].wait_for(step_pattern(30))
            workers[1].kill()
            cluster.scheduler.wait_for("worker_lost")   # and rule "wait" waits for it
            self.assertIn("known: test", cluster.ctl("abort", "tset", code=1))
            aborted = json.loads(cluster.ctl("abort", "test", "--reason=node 7 is gone", "--json"))
            self.assertEqual((aborted["state"], aborted["workers_alive"]), ("JOB_FAILED", 1))
            workers[0].wait(1)
            self.assertIn("aborted by an operator: node 7 is gone", workers[0].output())
            self.assertIn("failed already", cluster.ctl("abort", "test", code=1))
            cluster.scheduler.kill()
            cluster.start_scheduler()
            self.assertIn("node 7 is gone", cluster.ctl("status"))
            cluster.ctl("abort", "1", code=1)
            self.train(cluster, arguments=train_args(cluster, epochs=1))   # the name and the server are free again
