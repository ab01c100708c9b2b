import math
import unittest

from paired import mean_and_bound, verdict


class PairedTest(unittest.TestCase):
    def test_bound_is_that_of_student(self):
        mean, bound = mean_and_bound([1.0, 2.0, 3.0, 4.0, 5.0])   # deviation 1.5811, t of 4 degrees of freedom 2.776
        self.assertAlmostEqual(mean, 3.0)
        self.assertAlmostEqual(bound, 1.963, places=3)

    def test_one_value_bounds_nothing(self):
        self.assertEqual(mean_and_bound([0.5]), (0.5, math.inf))

    def test_many_values_are_normal(self):
        values = [0.0, 1.0] * 50
        self.assertAlmostEqual(mean_and_bound(values)[1], 1.96 * 0.50252 / 10, places=4)

    def test_verdict_needs_the_whole_interval(self):
        self.assertEqual(verdict(0.1, 0.3, 0.3), "yes")
        self.assertEqual(verdict(-0.2, 0.3, 0.3), "open")
        self.assertEqual(verdict(-0.9, 0.3, 0.3), "no")
        self.assertEqual(verdict(5.0, math.inf, 0.3), "open")


if __name__ == "__main__":
    unittest.main()
