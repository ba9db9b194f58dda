"""The command `report`: runs and evaluations as a page to hand in."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from helpers.apps.flags import parse, text
from helpers.errors import CourseError


@dataclass
class ReportConfig:
    """report RUN…: one self-contained HTML page and its Markdown twin, from course runs (course.json),
    training runs (config.json) and evaluations (evaluation.json). Exit status 1 if a RUN was left out."""

    output_dir: str = text("directory of report.html and report.md", "report")
    title: str = text("title of the page; default: the runs' names", "")


def report(words: list[str]) -> int:
    """Read the runs, write both files."""
    from helpers.course.handout import write_handout

    runs = []
    while words and not words[0].startswith("-"):
        runs.append(words[0])
        words = words[1:]
    config = parse(ReportConfig, words, "report")
    if not runs:
        raise CourseError("report needs a run: python -m helpers report runs/my_dpo [runs/my_evaluation …]")
    page, twin, left_out = write_handout(runs, config.output_dir, config.title)
    for line in left_out:
        print(f"left out: {line}", file=sys.stderr)
    print(f"report: {page}\nMarkdown: {twin}")
    return 1 if left_out else 0
