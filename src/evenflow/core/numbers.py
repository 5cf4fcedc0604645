"""What counts as a number in an option. True and False do not: whoever gives them means something else."""

from __future__ import annotations

from math import inf


def is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < inf
