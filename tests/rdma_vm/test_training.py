"""A training job across the two machines ends with the bits of one that ran undisturbed on this machine, and with as many
applied pushes as were issued, whatever happens to links and processes meanwhile.

Over TCP, and over RDMA where both ends have it: each scenario prints what carried its pushes.
"""

import time

from job import DEADLINE, LARGE, LARGE_BYTES, PATH_UP, SMALL, WORKERS, Job, Reference, worker_arguments
from scenario import Scenario

EPOCHS = {SMALL["hidden"]: 3, LARGE["hidden"]: 2}   # of 36 steps: some seconds without faults
BEGUN = 20        # steps after which something happens
CUT_SECONDS = 6   # longer than queue pairs retry; shorter than the lease of members


class Training(Scenario):
    epochs = None     # EPOCHS
    settings = SMALL

    def begin(self, servers=1, **more):
        """A job whose workers are under way."""
        self.epochs = self.epochs or EPOCHS[self.settings["hidden"]]
        self.job = Job(self.pair, servers, **more)
        for rank in range(WORKERS):
            self.start_worker(rank)
        self.reaches(BEGUN)
        return self.job

    def start_worker(self, rank):
        return self.job.start_worker(rank, worker_arguments(self.settings, self.epochs))

    def reaches(self, step):
        """Waits until some worker has said that it is there."""
        end = time.monotonic() + DEADLINE
        while self.job.step() < step:
            for worker in self.job.workers:
                if not worker.running():
                    worker.wait()
                    worker.fail("it ended before step %d" % step)
            if time.monotonic() > end:
                self.job.workers[0].fail("step %d was not reached within %d s" % (step, DEADLINE))
            time.sleep(0.02)

    def goes_on(self, steps=10):
        """Waits for steps all of which were made from now on."""
        self.reaches(self.job.step() + steps)

    def ends_as_if_nothing_had_happened(self, all_servers_lived=True):
        """With `all_servers_lived` their counts of pushes are whole."""
        results = self.job.end()
        reference = Reference.of(self.settings, self.epochs)
        for result in results:
            self.assertEqual(result["params_hash"], reference.bits)
            self.assertEqual(result["skipped_steps"], 0)
        self.assertEqual(int(self.job.status()["round"]), reference.rounds)
        if all_servers_lived:
            self.assertEqual(self.job.applied(), reference.applied)
        if Job.transport != "tcp":
            self.assertIn("rdma", self.job.transports(results))
            self.assertGreater(self.job.rdma_packets(), 0)
        self.tell("over %s: the same bits, rounds%s; %.1f s of training" %
                  (self.job.transports(results), " and applied pushes" if all_servers_lived else "",
                   max(result["seconds"] for result in results)))


class Undisturbed(Training):

    def test_a_job_across_machines_ends_with_the_bits_of_one_here(self):
        self.settings = LARGE
        job = self.begin()
        self.ends_as_if_nothing_had_happened()
        reference = Reference.of(self.settings, self.epochs)
        self.assertGreater(reference.accuracy, 0.8)
        if Job.transport != "tcp":
            # But for the first steps, while links grow.
            least = reference.rounds * WORKERS * LARGE_BYTES // 4096 // 2
            self.assertGreater(job.rdma_packets(), least, "large pushes did not go over RDMA")

    def test_a_job_of_small_compressed_payloads_too(self):
        self.begin()
        self.ends_as_if_nothing_had_happened()


class Links(Training):
    """Both directions suffer alike, on all rails."""

    def both(self):
        return [self.link(number, rail) for number in (1, 2) for rail in range(self.pair.rails)]

    def netem(self, what):
        for link in self.both():
            link.netem(what)
        self.begin()
        self.ends_as_if_nothing_had_happened()

    def test_one_in_a_hundred_packets_is_lost(self):
        self.netem("loss 1%")

    def test_packets_are_delayed_by_times_that_vary(self):
        self.netem("delay 5ms 3ms")

    def test_packets_overtake_each_other(self):
        self.netem("delay 10ms reorder 25% 50%")

    def cut(self, cut, mend):
        """Nobody is cut off for longer than CUT_SECONDS and what the commands take."""
        self.settings = LARGE
        self.begin()
        links = self.both()
        for link in links:
            cut(link)
        time.sleep(1)            # what was on its way has arrived
        before = self.job.step()
        time.sleep(CUT_SECONDS)  # the fault itself
        self.assertEqual(self.job.step(), before, "the job went on, so nothing was cut")
        for link in links:
            mend(link)
        self.goes_on()
        self.ends_as_if_nothing_had_happened()

    def test_everything_vanishes_for_longer_than_is_retried(self):
        self.cut(lambda link: link.blackhole(), lambda link: link.heal())

    def test_links_go_down_and_come_up(self):
        self.cut(lambda link: link.down(), lambda link: link.up())

    def test_one_rail_vanishes(self):
        self.begin()
        links = [self.link(number, 1) for number in (1, 2)]   # rail 0 carries control
        for link in links:
            link.blackhole()
        self.goes_on()
        for link in links:
            link.heal()
        self.ends_as_if_nothing_had_happened()

    def test_one_rail_is_slow(self):
        for number in (1, 2):
            self.link(number, 1).slow(20)
        self.settings = LARGE
        self.begin()
        self.ends_as_if_nothing_had_happened()

    def test_rdma_vanishes_and_comes_back(self):
        self.epochs = 8   # so that it comes back before the job ends
        if Job.transport == "tcp":
            self.skipTest("--transport=tcp")
        job = self.begin()
        for worker in job.workers:
            worker.wait_for(PATH_UP, deadline=DEADLINE)
        for link in self.both():
            link.lose_rdma()
        time.sleep(1)            # what was on its way has arrived
        packets = job.rdma_packets()
        self.goes_on(20)         # over TCP
        self.tell("20 steps beside a dead RDMA network, which was tried with %d packets" % (job.rdma_packets() - packets))
        said = [len(worker.output().split("\n")) for worker in job.workers]
        for link in self.both():
            link.heal()
        for worker, start in zip(job.workers, said):
            worker.wait_for(PATH_UP, deadline=DEADLINE, start=start)
        self.ends_as_if_nothing_had_happened()

    def test_machines_have_different_mtus(self):
        for rail in range(self.pair.rails):
            self.link(2, rail).mtu(1500)
        self.settings, self.epochs = LARGE, 1
        self.begin()
        self.ends_as_if_nothing_had_happened()


class Kills(Training):

    def test_a_worker_is_killed_and_comes_back(self):
        job = self.begin()
        for step in (BEGUN, 90):
            self.reaches(step)
            job.workers[1].kill()
            self.start_worker(1).wait_for("continues from its snapshot at step", deadline=DEADLINE)
        self.ends_as_if_nothing_had_happened()

    def test_a_server_is_killed_and_comes_back(self):
        job = self.begin(servers=2)
        end = time.monotonic() + DEADLINE
        while not job.status()["is_protected"]:
            self.assertLess(time.monotonic(), end, "the job has no copies in sync: %s" % job.status()["protection"])
        job.servers[1].kill()
        self.goes_on()      # its shards' copies are owners now
        job.servers[1] = job.start_server(1)
        self.ends_as_if_nothing_had_happened(all_servers_lived=False)
