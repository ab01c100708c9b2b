"""Means of paired runs with their 95 % bounds."""

import math
import statistics

# Student's t, two-sided 95 %, by degrees of freedom from 1 on.
_T = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110,
      2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042]


def mean_and_bound(values):
    """The mean, and how far the true one may be from it (95 %; infinite for a single value)."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.inf
    t = _T[len(values) - 2] if len(values) - 2 < len(_T) else 1.96
    return mean, t * statistics.stdev(values) / math.sqrt(len(values))


def verdict(mean, bound, allowed):
    """What a paired difference (positive is better) says about losing at most `allowed`: the interval mean ± bound."""
    if mean - bound >= -allowed:
        return "yes"
    return "no" if mean + bound < -allowed else "open"
