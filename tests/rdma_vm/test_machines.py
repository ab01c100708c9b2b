"""The machines are what the other scenarios take them for: devices, numbers of perftest, faults of links."""

import re

import perftest
from scenario import Scenario


class Machines(Scenario):

    def test_each_rail_has_an_active_device_with_the_largest_mtu(self):
        for number in (1, 2):
            for rail in range(self.pair.rails):
                said = self.pair[number].run(["ibv_devinfo", "-d", perftest.device(rail)])
                self.assertRegex(said, r"state:\s+PORT_ACTIVE")
                self.assertRegex(said, r"active_mtu:\s+4096")
                self.assertGreaterEqual(perftest.gid_index(self.pair[number], rail), 0)

    def test_each_address_answers_over_its_own_rail(self):
        for rail in range(self.pair.rails):
            counter = "/sys/class/net/eth%d/statistics/rx_packets" % rail
            before = int(self.pair[1].run(["cat", counter]))
            self.pair[2].run("ping -q -c 3 -i 0.1 -W 5 " + self.pair[1].address(rail))
            self.assertGreaterEqual(int(self.pair[1].run(["cat", counter])), before + 3)

    def test_many_commands_run_at_a_time_and_can_be_killed(self):
        machine = self.pair[1]
        sleeping = [machine.start("echo $$; sleep 1000; echo unreachable") for _ in range(8)]
        for process in sleeping:
            process.wait_for(r"^\d+$")
            self.assertTrue(process.running())
        self.assertEqual(machine.run("exit 7", check=False), (7, ""))
        for process in sleeping:
            process.kill()
            self.assertNotIn("unreachable", process.output())
        self.assertNotIn("sleep 1000", machine.run("ps"))
        data = bytes(range(256)) * 40
        machine.put("/tmp/a file", data)
        self.assertEqual(machine.fetch("/tmp/a file"), data)


class Perftest(Scenario):

    def test_write_bandwidth(self):
        for rail in range(self.pair.rails):
            for queue_pairs in (1, 4):
                got = perftest.write_bandwidth(self.pair, iterations=64, queue_pairs=queue_pairs, rail=rail)
                self.tell("ib_write_bw, rail %d, %d QPs, 1 MiB: %.3f GB/s, %.1f s of the client's machine a GB" %
                          (rail, queue_pairs, got.value, got.seconds_a_gigabyte))
                self.assertGreater(got.value, 0)
                self.assertGreater(got.machine_seconds, 0)

    def test_latency(self):
        for name, measure in (("ib_write_lat, polling", perftest.write_latency),
                              ("ib_send_lat, events", perftest.send_latency)):
            got = measure(self.pair, iterations=300)
            self.tell("%s, 4 KiB: %.0f us" % (name, got.value))
            self.assertGreater(got.value, 0)


class Faults(Scenario):
    """Each fault does what it says, and is gone when it is healed."""

    def ping(self, count):
        """(share lost in percent, average time in ms) from machine 2 to 1."""
        _, said = self.pair[2].run("ping -q -c %d -i 0.05 -W 1 %s" % (count, self.pair[1].address()), check=False)
        if "Network is unreachable" in said:
            return 100, None
        times = re.search(r"= [\d.]+/([\d.]+)/", said)
        return int(re.search(r"(\d+)% packet loss", said).group(1)), float(times.group(1)) if times else None

    def test_loss_blackhole_and_delay(self):
        link = self.link(2)
        link.netem("loss 50%")
        self.assertTrue(5 <= self.ping(40)[0] <= 95)
        link.blackhole()
        self.assertEqual(self.ping(3)[0], 100)
        link.netem("delay 200ms")
        self.assertGreaterEqual(self.ping(3)[1], 200)
        link.heal()
        self.assertEqual(self.ping(5)[0], 0)

    def test_a_lossy_link_still_carries_writes(self):
        self.link(2).netem("loss 1%")
        self.assertGreater(perftest.write_bandwidth(self.pair, iterations=8).value, 0)

    def test_a_link_that_is_down_comes_back_with_its_device(self):
        link = self.link(2)
        link.down()
        self.assertIn("PORT_DOWN", self.pair[2].run(["ibv_devinfo", "-d", "rxe0"]))
        self.assertEqual(self.ping(2)[0], 100)
        link.up()
        self.assertIn("PORT_ACTIVE", self.pair[2].run(["ibv_devinfo", "-d", "rxe0"]))
        self.assertGreater(perftest.write_bandwidth(self.pair, iterations=8).value, 0)

    def test_a_smaller_mtu_is_the_devices_too(self):
        self.link(2).mtu(1500)
        self.assertRegex(self.pair[2].run(["ibv_devinfo", "-d", "rxe0"]), r"active_mtu:\s+1024")
        self.link(2).mtu(4200)
        self.assertRegex(self.pair[2].run(["ibv_devinfo", "-d", "rxe0"]), r"active_mtu:\s+4096")
