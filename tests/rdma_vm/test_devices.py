"""Tests of the repository that need a real device, run in one machine: both ends on one port."""

import re

from scenario import Scenario

DEADLINE = 120


class Devices(Scenario):

    def passes(self, program):
        said = self.pair[1].run([program], deadline=DEADLINE)
        self.assertNotIn("SKIPPED", said)
        self.tell(re.search(r"^\[  PASSED  \].*$", said, re.MULTILINE).group(0))

    def test_queue_pairs(self):
        self.passes("hardware_test")

    def test_endpoints_keep_the_contract_of_transports(self):
        self.passes("device_test")
