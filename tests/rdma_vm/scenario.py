"""The base of all scenarios: one pair of machines for all of them, restored before each."""

import time
import unittest

from pair import Link


class Scenario(unittest.TestCase):
    pair = None    # run.py sets it

    def setUp(self):
        self.pair.restore()
        self._begun = time.monotonic()

    def tearDown(self):
        self.tell("it took %.1f s" % (time.monotonic() - self._begun))

    def link(self, number, rail=0):
        return Link(self.pair[number], rail)

    @staticmethod
    def tell(text):
        """Figures for who reads along."""
        print("    " + text, flush=True)
