"""Two answers, for the builder's tests."""

from solutions.answers.sums import centred, doubled_sum

__all__ = ["centred", "doubled_sum"]
