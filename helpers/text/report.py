"""What loading kept, dropped and cut: nothing disappears without a line here."""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

EXAMPLES_SHOWN = 3  # places named for each reason


@dataclass(frozen=True)
class Lengths:
    """Spread of some lengths, in characters after loading and in tokens after encoding."""

    count: int
    shortest: int
    median: int
    p95: int
    longest: int
    mean: float

    @classmethod
    def of(cls, values: Sequence[int]) -> Lengths:
        """Summarise at least one length."""
        ordered = sorted(values)
        last = len(ordered) - 1
        median, p95 = ordered[last // 2], ordered[round(0.95 * last)]
        return cls(len(ordered), ordered[0], median, p95, ordered[-1], fmean(ordered))


@dataclass
class LoadReport:
    """Counts of one loading, in rows of the source; `encode_groups` adds what the budgets did."""

    source: str
    format: str
    kind: str
    split: str | None = None
    read: int = 0  # rows of the source, blank lines aside
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)  # reason: rows
    examples_of_dropped: dict[str, list[str]] = field(default_factory=dict)  # reason: "file:line", detail
    duplicates: dict[str, int] = field(default_factory=dict)
    not_taken: int = 0  # usable, but beyond the limit asked for
    truncated_prompts: int = 0
    truncated_responses: int = 0
    unit: str = "characters"
    lengths: dict[str, Lengths] = field(default_factory=dict)
    chosen_longer_share: float | None = None  # of pairs
    notes: list[str] = field(default_factory=list)

    def drop(self, reason: str, where: str, detail: str = "") -> None:
        """Count one dropped row, and remember where the first few were."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        places = self.examples_of_dropped.setdefault(reason, [])
        if len(places) < EXAMPLES_SHOWN:
            places.append(f"{where}: {detail}" if detail else where)

    def copy(self) -> LoadReport:
        """A report that can be added to without changing this one."""
        return copy.deepcopy(self)

    def measure(self, lengths: dict[str, list[int]], unit: str) -> None:
        """Set length statistics, and the share of pairs whose chosen response is the longer."""
        self.unit = unit
        self.lengths = {name: Lengths.of(values) for name, values in lengths.items() if values}
        if lengths.get("chosen"):
            pairs = zip(lengths["chosen"], lengths["rejected"], strict=True)
            self.chosen_longer_share = fmean(chosen > rejected for chosen, rejected in pairs)

    def render(self) -> str:
        """The report as plain text."""
        split = f", split {self.split}" if self.split else ""
        lines = [
            f"{self.source}{split}",
            f"  format {self.format}, read as {self.kind}",
            f"  {'rows read':<34}{self.read:>8,}",
            f"  {'kept':<34}{self.kept:>8,}{_share(self.kept, self.read)}",
            *self._dropped_lines(),
        ]
        if self.not_taken:
            lines.append(f"  {'usable, beyond the limit':<34}{self.not_taken:>8,}")
        lines += [f"  {name:<34}{count:>8,}" for name, count in self.duplicates.items() if count]
        if self.unit == "tokens":
            lines.append(f"  {'prompts truncated':<34}{self.truncated_prompts:>8,}")
            lines.append(f"  {'responses truncated':<34}{self.truncated_responses:>8,}")
        lines += self._length_lines()
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _dropped_lines(self) -> list[str]:
        lines = [f"  {'dropped':<34}{sum(self.dropped.values()):>8,}"]
        for reason, count in sorted(self.dropped.items(), key=lambda item: -item[1]):
            lines.append(f"    {reason:<32}{count:>8,}")
            for place in self.examples_of_dropped[reason]:
                lines.append("      " + textwrap.shorten(place, 98, placeholder=" …"))
        return lines

    def _length_lines(self) -> list[str]:
        if not self.lengths:
            return []
        head = "".join(f"{title:>9}" for title in ("shortest", "median", "95 %", "longest", "mean"))
        lines = [f"  {'length in ' + self.unit:<24}{head}"]
        for name, spread in self.lengths.items():
            numbers = (spread.shortest, spread.median, spread.p95, spread.longest, round(spread.mean))
            lines.append(f"    {name:<22}" + "".join(f"{number:>9,}" for number in numbers))
        if self.chosen_longer_share is not None:
            lines.append(f"  chosen is longer than rejected in {self.chosen_longer_share:.1%} of pairs")
        return lines


def _share(part: int, whole: int) -> str:
    return f"  ({part / whole:.1%})" if whole else ""
