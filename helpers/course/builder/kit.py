"""Where the lessons are, and what their sources hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from helpers.course.builder.answers import Answer, read_answers
from helpers.errors import CourseError
from helpers.files import read_text

LESSON = re.compile(r"\d\d_\w+")
TAGS = ("setup", "exercise", "student-only", "solution-only")
MISSING = (
    "building lessons needs the packages of the extra `notebook`: make build, or pip install -e .[notebook]"
)


@dataclass(frozen=True)
class Cell:
    """One cell of a lesson's source. The tag is one of TAGS, or None."""

    kind: str  # "code" or "markdown"
    source: str
    tag: str | None = None


@dataclass(frozen=True)
class Kit:
    """A checkout with its instructor part.

    Args:
        root: the checkout.
        package: dotted name of the package of answers; its parent folder holds the lessons' sources.
    """

    root: Path
    package: str

    @property
    def sources(self) -> Path:
        """The instructor's folder."""
        return self.root / self.package.split(".")[0]

    def source(self, lesson: str) -> Path:
        """The text from which a lesson is built."""
        return self.sources / f"{lesson}.py"

    def instructor(self, lesson: str) -> Path:
        """The instructor's notebook."""
        return self.sources / f"{lesson}.ipynb"

    def student(self, lesson: str) -> Path:
        """The student's notebook."""
        return self.root / "notebooks" / f"{lesson}.ipynb"

    def shown(self, path: Path) -> str:
        """A path as messages give it."""
        return path.relative_to(self.root).as_posix()

    def lessons(self, numbers: Sequence[str] = ()) -> list[str]:
        """Names of all lessons, or of those that `numbers` (such as "03" or "03_dpo") ask for."""
        names = sorted(path.stem for path in self.sources.glob("*.py") if LESSON.fullmatch(path.stem))
        if not names:
            raise CourseError(
                f"{self.sources} holds no lessons (NN_title.py): build from the instructor's tree"
            )
        chosen = []
        for number in numbers:
            wanted = Path(number).stem
            found = [name for name in names if wanted in (name, name[:2], str(int(name[:2])))]
            if not found:
                raise CourseError(f"there is no lesson {number}; there are {', '.join(names)}")
            chosen += found
        return sorted(set(chosen)) if numbers else names

    @cached_property
    def answers(self) -> dict[str, Answer]:
        """The reference answers by name."""
        return read_answers(self.root, self.package)

    @cached_property
    def setup_cell(self) -> str:
        """The set-up cell, without the docstring that tells an instructor about it."""
        text = read_text(self.sources / "setup_cell.py")
        return re.sub(r'\A""".*?"""\s*', "", text, flags=re.DOTALL).strip()

    def cells(self, lesson: str) -> list[Cell]:
        """The cells of a lesson's source; empty ones are left out, but for the set-up cell's place."""
        jupytext = import_jupytext()
        path = self.source(lesson)
        try:
            notebook = jupytext.reads(read_text(path), fmt="py:percent")
        except CourseError:
            raise
        except Exception as problem:  # of jupytext and nbformat, of many kinds: tags that are no list
            words = str(problem).strip().split("\n")[0]
            raise CourseError(f"{self.shown(path)} is not a lesson in percent format: {words}") from None
        cells = [self._cell(lesson, number, raw) for number, raw in enumerate(notebook.cells, start=1)]
        return [cell for cell in cells if cell.source.strip() or cell.tag == "setup"]

    def _cell(self, lesson: str, number: int, raw: Any) -> Cell:
        where = f"{self.shown(self.source(lesson))}, cell {number}"
        tags = list(raw.metadata.get("tags", []))
        if raw.cell_type not in ("code", "markdown"):
            raise CourseError(f"{where}: a cell is code or markdown, not {raw.cell_type}")
        if len(tags) > 1 or set(tags) - set(TAGS):
            raise CourseError(f"{where}: tags {tags}; a cell has at most one of {', '.join(TAGS)}")
        if extra := sorted(set(raw.metadata) - {"tags", "lines_to_next_cell"}):
            raise CourseError(f"{where}: metadata {', '.join(extra)} have no meaning here; remove them")
        return Cell(raw.cell_type, raw.source.rstrip(), tags[0] if tags else None)


def import_jupytext() -> Any:
    """jupytext, which only those need who build lessons."""
    try:
        import jupytext
    except ImportError:
        raise CourseError(MISSING) from None
    return jupytext
