"""Two exercises; the second calls the first, and only a region of it is blank."""

import math
from collections.abc import Sequence

UNIT = 2.0


def doubled_sum(values: Sequence[float], unit: float = UNIT) -> float:
    """Add up, then double.

    Args:
        values: any numbers; `total = sum(of them)`.
    """
    # exact, whatever the order
    total = math.fsum(values)
    return unit * total  # the unit is 2


def centred(values: Sequence[float]) -> list[float]:
    """Subtract the mean from every number."""
    numbers = [float(value) for value in values]
    # blank: subtract the mean of `numbers` from each of them
    mean_of_all = doubled_sum(numbers) / (UNIT * len(numbers))
    moved = [number - mean_of_all for number in numbers]
    # end blank
    return [round(number, 9) for number in moved]
