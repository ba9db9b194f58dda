"""The report that a learner hands in: any runs and evaluations as one HTML page and its Markdown twin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from helpers.course import report_closing, report_results, report_runs, report_samples
from helpers.course.report_blocks import Block, Document, Section, Text, markdown_of
from helpers.course.report_page import page_of
from helpers.course.report_sources import Source, all_runs, read_sources
from helpers.errors import CourseError
from helpers.files import write_text

PAGE, TWIN = "report.html", "report.md"


def write_handout(
    paths: Sequence[str | Path], output_dir: str | Path, title: str = ""
) -> tuple[Path, Path, list[str]]:
    """Write report.html and report.md; return both, and one line for each directory that was left out.

    Raises:
        CourseError: if none of `paths` can be reported on.
    """
    sources, left_out = read_sources(paths)
    if not sources:
        raise CourseError("; ".join(left_out) or "report needs a run: python -m helpers report runs/my_dpo")
    document = document_of(sources, left_out, title)
    place = Path(output_dir)
    if place.exists() and not place.is_dir():
        raise CourseError(f"--output_dir {place} is a file, not a directory")
    write_text(place / PAGE, page_of(document))
    write_text(place / TWIN, markdown_of(document))
    return place / PAGE, place / TWIN, left_out


def document_of(sources: Sequence[Source], left_out: Sequence[str] = (), title: str = "") -> Document:
    """The whole report."""
    runs = all_runs(sources)
    parts: list[tuple[str, str, Callable[[], list[Block]]]] = [
        ("questions", "Questions", lambda: report_results.questions(sources, runs)),
        ("methods", "Methods", lambda: report_runs.methods(runs)),
        ("budgets", "Budgets", lambda: report_runs.budgets(runs)),
        ("results", "Results", lambda: report_results.results(sources)),
        ("rewards", "Reward distributions", lambda: report_runs.rewards(runs)),
        ("curves", "Curves", lambda: report_runs.curves(runs)),
        ("hacking", "Reward hacking", lambda: report_runs.hacking(runs)),
        ("samples", "Samples, good and bad", lambda: report_samples.samples(sources, runs)),
        ("data", "Data", lambda: report_runs.data_reports(runs)),
        ("environment", "Environment", lambda: report_closing.surroundings(sources, runs)),
        ("hashes", "Hashes", lambda: report_closing.hashes(sources, runs)),
        ("reproduce", "How to reproduce", lambda: report_closing.reproduction(sources, runs)),
    ]
    sections = [Section(anchor, name, blocks) for anchor, name, make in parts if (blocks := made(make))]
    if left_out:
        sections.append(Section("left-out", "Left out", [Text(line) for line in left_out]))
    return Document(title or heading(sources), summary(sources), report_results.tiles(sources), sections)


def made(make: Callable[[], list[Block]]) -> list[Block]:
    """A section's blocks. Files that hold what they should not cost their section, and not the report."""
    try:
        return make()
    except CourseError as problem:
        return [Text(f"This part is left out: {' '.join(str(problem).split())}", soft=True)]
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as problem:
        return [Text(f"This part is left out: a file holds what it should not ({problem}).", soft=True)]


def heading(sources: Sequence[Source]) -> str:
    """A title from the directories' names."""
    names = [source.path.resolve().name for source in sources]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"Report: {shown}"


def summary(sources: Sequence[Source]) -> str:
    """What there is, in one sentence."""
    runs = len(all_runs(sources))
    counts = [
        (sum(source.kind == "course" for source in sources), "course run"),
        (runs, "training run"),
        (sum(source.kind == "evaluation" for source in sources), "evaluation"),
    ]
    parts = [f"{count} {what}{'s' if count > 1 else ''}" for count, what in counts if count]
    return (
        f"About {', '.join(parts)}. Every figure is read from the files of these runs; nothing was run again."
    )
