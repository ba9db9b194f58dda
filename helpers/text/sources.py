"""Find where a data set is: a file, a directory of splits, or the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from helpers.errors import CourseError
from helpers.text.rows import SUFFIXES, SourceRow, read_rows

HUB_ID = re.compile(r"(?P<name>[\w.-]+(/[\w.-]+)?)(:(?P<config>[\w.-]+))?")


def read_source(source: str | Path, split: str | None) -> Iterator[SourceRow]:
    """Yield the rows of `source`; one that is nowhere raises CourseError saying where it was looked for."""
    path = Path(source).expanduser()
    if path.is_dir():
        yield from read_rows(_split_file(path, split))
    elif path.exists():
        if not path.name.endswith(SUFFIXES):
            raise CourseError(f"{path} is none of {', '.join(SUFFIXES)}; convert it, one JSON object a line")
        yield from read_rows(path)
    elif _looks_like_hub(str(source)):
        yield from _hub_rows(str(source), split)
    else:
        raise CourseError(f"{source} does not exist")


def find_source(source: str | Path, split: str | None) -> str:
    """What messages call a source: the file, where there is one."""
    path = Path(source).expanduser()
    return str(_split_file(path, split)) if path.is_dir() else str(source)


def splits_of(source: str | Path) -> list[str]:
    """Names of the splits in a directory; none for anything else."""
    path = Path(source).expanduser()
    return list(_split_files(path)) if path.is_dir() else []


def _split_files(directory: Path) -> dict[str, Path]:
    files = {}
    for path in sorted(directory.iterdir()):
        suffix = next(
            (suffix for suffix in sorted(SUFFIXES, key=len, reverse=True) if path.name.endswith(suffix)), ""
        )
        if suffix and path.is_file():
            files[path.name.removesuffix(suffix)] = path
    return files


def _split_file(directory: Path, split: str | None) -> Path:
    """The file of a split; the only file if none is named."""
    files = _split_files(directory)
    if not files:
        raise CourseError(f"{directory} holds no file ending in {', '.join(SUFFIXES)}")
    if split is None and len(files) == 1:
        return next(iter(files.values()))
    if split is None:
        raise CourseError(f"{directory} has several splits, name one: {', '.join(files)}")
    if split not in files:
        raise CourseError(f"{directory} has no split {split!r}; it has: {', '.join(files)}")
    return files[split]


def _looks_like_hub(source: str) -> bool:
    return bool(HUB_ID.fullmatch(source)) and not source.endswith(SUFFIXES) and not source.startswith(".")


def _hub_rows(source: str, split: str | None) -> Iterator[SourceRow]:
    """Rows of a hub data set; unreachable, unknown or ambiguous raises CourseError."""
    match = HUB_ID.fullmatch(source)
    assert match is not None
    data = _load_hub(match["name"], match["config"], split)
    if hasattr(data, "keys"):  # a dictionary of splits
        names = list(data.keys())
        if len(names) > 1:
            raise CourseError(f"{source} has several splits, name one: {', '.join(names)}")
        data = data[names[0]]
    for number, row in enumerate(data):
        yield SourceRow(f"{source}[{number}]", dict(row))


def _load_hub(name: str, config: str | None, split: str | None) -> Any:
    import datasets  # takes a second, and local files do without

    try:
        return datasets.load_dataset(name, config, split=split)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as problem:
        reason = str(problem).strip().split("\n")[0][:300]
        raise CourseError(
            f"{name} is no file or directory here, and the hub did not give it: {reason}. Check the name "
            "(a configuration goes behind a colon), the split and the connection, or give a local path"
        ) from None
