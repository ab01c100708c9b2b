"""Tests of the repository that need a real device, run in one machine: both ends on one port."""

import re

from scenario import Scenario

DEADLINE = 120


class Devices(Scenario):

    def test_queue_pairs(self):
        said = self.pair[1].run(["hardware_test"], deadline=DEADLINE)
        self.tell(re.search(r"^\[  PASSED  \].*$", said, re.MULTILINE).group(0))
