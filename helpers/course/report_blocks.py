"""What a report is made of, and its Markdown: the same document that `report_page` writes as HTML.

Text in a block is plain text, whoever wrote it; each renderer escapes it in its own way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure

from helpers.course import plots
from helpers.course.plots import Skipped


@dataclass(frozen=True)
class Text:
    """A paragraph; `soft` ones are notes. Lines that belong together stand in one list."""

    text: str
    soft: bool = False


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    text: str


@dataclass(frozen=True)
class Table:
    """A table; `words` ones hold sentences, the others figures under each other."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: bool = False


@dataclass(frozen=True)
class Picture:
    """A figure as base64 PNG, with the title that says what to see in it."""

    png: str
    title: str
    tall: bool = False  # takes the room of two, one above the other


@dataclass(frozen=True)
class Pre:
    """Text kept as it is, behind a title that opens it."""

    title: str
    text: str


@dataclass(frozen=True)
class Answer:
    """One answer to a prompt; `score` is a number from 0 to 1 for its colour, where there is one."""

    name: str
    text: str
    label: str = ""
    score: float | None = None


@dataclass(frozen=True)
class Card:
    """A prompt and its answers; `tag` says how it was picked."""

    tag: str
    prompt: str
    answers: Sequence[Answer]


Block = Text | Heading | Table | Picture | Pre | Card


@dataclass(frozen=True)
class Section:
    """A part of the report."""

    anchor: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Tile:
    """One figure at the head of the page; `state` is passed, missed or a dash."""

    name: str
    value: str
    note: str
    state: str = ""


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    summary: str
    tiles: Sequence[Tile] = ()
    sections: Sequence[Section] = field(default_factory=tuple)


def picture(figure: Figure | Skipped) -> Block:
    """A figure as a block; one that was left out as the sentence that says why."""
    if isinstance(figure, Skipped):
        return Text(figure.reason, soft=True)
    title = figure.axes[0].get_title(loc="left").replace("\n", " ").replace(r"\$", "$")
    width, height = figure.get_size_inches()
    return Picture(plots.figure_to_png_base64(figure), title, tall=bool(height > 0.85 * width))


def clean_text(text: object) -> str:
    """Return text that any UTF-8 file takes: control characters and lone surrogates become "\ufffd"."""
    text = re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]", "\ufffd", str(text))
    return re.sub(r"[\ud800-\udfff]", "\ufffd", text)


# ---------------------------------------------------------------------- Markdown
def markdown_of(document: Document) -> str:
    """The report as Markdown. Figures are named; they are in the HTML beside it."""
    lines = [f"# {escaped(document.title)}", "", escaped(document.summary), ""]
    if document.tiles:
        rows = [[tile.name, tile.value, tile.note] for tile in document.tiles]
        lines += [*table_lines(["", "value", "of what"], rows), ""]
    for section in document.sections:
        lines += [f"## {escaped(section.title)}", ""]
        for block in section.blocks:
            lines += [*block_lines(block), ""]
    return clean_text("\n".join(lines).rstrip() + "\n")


def block_lines(block: Block) -> list[str]:
    """The lines of one block."""
    if isinstance(block, Text):
        return [escaped(block.text)]
    if isinstance(block, Heading):
        return [f"### {escaped(block.text)}"]
    if isinstance(block, Table):
        return table_lines(block.header, block.rows)
    if isinstance(block, Picture):
        return [f"*Figure, in report.html: {escaped(block.title)}*"]
    if isinstance(block, Pre):
        return [f"{escaped(block.title)}:", "", *fenced(block.text)]
    lines = [f"**{escaped(block.tag)}**", "", *fenced(block.prompt)]
    for answer in block.answers:
        label = f" ({escaped(answer.label)})" if answer.label else ""
        lines += ["", f"{escaped(answer.name)}{label}:", "", *fenced(answer.text)]
    return lines


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table; the first column to the left, the others as they come."""
    marks = ["---"] * len(header)
    return ["| " + " | ".join(map(escaped, row)) + " |" for row in (header,)] + [
        "| " + " | ".join(row) + " |" for row in (marks, *([escaped(c) for c in row] for row in rows))
    ]


def escaped(text: object) -> str:
    """Text on one line, in which nothing means anything to Markdown or HTML."""
    line = re.sub(r"\s+", " ", str(text)).replace("&", "&amp;").replace("<", "&lt;")
    line = re.sub(r"([\\`*_\[\]|~$])", r"\\\1", line)
    line = re.sub(r"(?i)\b(https?|ftp|www)([:.])", r"\1\\\2", line)  # no link that nobody wrote
    line = re.sub(r"^(\d+)([.)] )", r"\1\\\2", line)
    return re.sub(r"^(#|>|[-+] )", r"\\\1", line)


def fenced(text: str) -> list[str]:
    """Text as it is, inside a fence longer than any in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", *text.split("\n"), fence]
