"""Two machines joined by one or two network cards each (rails), and what can happen to those links."""

import os
import shutil
import tempfile
import time

import image
from machine import Machine, MachineError

RESTORE_SECONDS = 30


class Pair:
    """Both run at most as long as this process: close() ends them, and so does the end of the thread that made them."""

    def __init__(self, programs=(), files=None, rails=1):
        """`programs` and `files`: see image.build."""
        self._programs, self._files, self.rails = list(programs), files, rails
        self.folder = tempfile.mkdtemp(prefix="sluice-vm-")
        self.machines = []
        self.boot_seconds = 0.0
        try:
            self._archive = os.path.join(self.folder, "initramfs")
            image.build(self._archive, self._programs, self._files)
            self._boot()
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __getitem__(self, number):
        """Machine 1 or 2."""
        return self.machines[number - 1]

    def _boot(self, tries=2):
        sockets = [os.path.join(self.folder, "rail-%d-%d" % (rail, time.monotonic_ns())) for rail in range(self.rails)]
        self.machines = []
        for number, server in ((1, "on"), (2, "off")):
            netdevs = ["stream,server=%s,addr.type=unix,addr.path=%s" % (server, path) for path in sockets]
            self.machines.append(Machine(number, self.folder, self._archive, netdevs))
            end = time.monotonic() + 20
            while not all(os.path.exists(path) for path in sockets):   # the second one connects to them
                if time.monotonic() > end or not self.machines[0].alive():
                    raise MachineError("machine 1: no socket for its network after 20 s; its console said:\n    " +
                                       self.machines[0].console())
                time.sleep(0.01)
        try:
            self.boot_seconds = max(machine.wait_until_ready() for machine in self.machines)
        except MachineError as error:   # an emulator that starts while the host is busy may miss its own timer
            if tries == 1:
                raise
            print("the machines are started again: %s" % error, flush=True)
            self._end()
            self._boot(tries - 1)

    def restore(self):
        """As after the start: nothing runs, links and devices are whole. Boots again what does not answer."""
        try:
            for machine in self.machines:
                machine.end_processes()
            cards = [machine.start("rm -rf /tmp/* && " + " && ".join("nic %d" % r for r in range(self.rails)))
                     for machine in self.machines]
            for card in cards:
                card.wait(deadline=RESTORE_SECONDS)
        except (AssertionError, MachineError) as error:
            print("the machines are started again, as one could not be restored: %s" % error, flush=True)
            self._end()
            self._boot()

    def _end(self):
        for machine in self.machines:
            machine.close()
            os.remove(os.path.join(self.folder, "agent-%d" % machine.number))
        self.machines = []

    def close(self):
        self._end()
        shutil.rmtree(self.folder, ignore_errors=True)


class Link:
    """What a machine's network card on a rail does to all that the machine sends there. Each call replaces the last."""

    def __init__(self, machine, rail=0):
        self._machine, self._card = machine, "eth%d" % rail

    def netem(self, what):
        """For example "loss 1%", "delay 2ms 1ms", "delay 3ms reorder 25% 50%"."""
        self._machine.run("/sbin/tc qdisc replace dev %s root netem limit 10000 %s" % (self._card, what))

    def slow(self, megabits):
        self.netem("rate %dmbit" % megabits)

    def blackhole(self):
        self.netem("loss 100%")

    def lose_rdma(self):
        """Packets of RoCE alone that arrive here vanish (UDP to port 4791): TCP goes on. On their way out they cannot be
        dropped by a filter: Soft-RoCE would see it and try again without end, which locks up the machine."""
        self._machine.run("/sbin/tc qdisc replace dev %s clsact && /sbin/tc filter add dev %s ingress protocol ip u32 "
                          "match ip protocol 17 0xff match ip dport 4791 0xffff action drop" % (self._card, self._card))

    def heal(self):
        """Ends netem, blackhole and lose_rdma."""
        for kind in ("root", "clsact"):
            self._machine.run("/sbin/tc qdisc del dev %s %s" % (self._card, kind), check=False)

    def down(self):
        self._machine.run("/sbin/ip link set %s down" % self._card)

    def up(self):
        self._machine.run("/sbin/ip link set %s up" % self._card)

    def mtu(self, size):
        self._machine.run("/sbin/ip link set %s mtu %d" % (self._card, size))
