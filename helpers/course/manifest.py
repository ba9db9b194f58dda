"""The manifest of a part-2 file: which policies wrote the candidates, how many, and what chose among them.

It is what lets a reader tell a better policy from a better choice. It is bound to its file by the hash of
the file's bytes, so it cannot be taken over by another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from helpers.course.layout import KINDS, best_file
from helpers.course.submission_files import quoted
from helpers.course.submission_reader import MAX_NEW_TOKENS, MAX_PROMPT_TOKENS, MAX_ROWS, Faults, decoded
from helpers.errors import CourseError

SELECTORS = ("reward_model", "longest", "first")
FORMAT = 1
MAX_N = 1024
MOST = {"temperature": 10, "top_p": 1}
NEEDED = {
    "format": int,
    "kind": str,
    "rows": int,
    "sha256": str,
    "base_model": str,
    "family": list,
    "n": int,
    "sampling": dict,
    "selector": dict,
    "seed": int,
    "budget": dict,
    "chosen": dict,
}


def digest(data: bytes) -> str:
    """SHA-256 of a file's bytes."""
    return hashlib.sha256(data).hexdigest()


def read_manifest(data: bytes, kind: str, answers: bytes, rows: int) -> dict[str, Any]:
    """Read the manifest of `best_file(kind)`, whose bytes are `answers`.

    Raises:
        CourseError: with one line a fault: a field that is missing, of the wrong kind, or at odds with the
            answers, the benchmark's budgets or itself.
    """
    faults = Faults()
    manifest = _parsed(data, faults)
    if manifest is not None:
        _check_fields(manifest, faults)
    if manifest is not None and not faults:
        _check_claims(manifest, kind, answers, rows, faults)
        _check_family(manifest, faults)
    if faults or manifest is None:
        raise CourseError("; ".join(faults.lines()))
    return manifest


def _parsed(data: bytes, faults: Faults) -> dict[str, Any] | None:
    text = decoded(data, faults)
    if faults:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        faults.add("it is not a JSON object")
        return None
    return value


def _check_fields(manifest: Mapping[str, Any], faults: Faults) -> None:
    missing = [name for name in NEEDED if name not in manifest]
    wrong = [
        name
        for name, kind in NEEDED.items()
        if name not in missing and (not isinstance(manifest[name], kind) or isinstance(manifest[name], bool))
    ]
    if missing:
        faults.add(f"{', '.join(missing)} missing")
    if wrong:
        faults.add(f"{', '.join(wrong)} of the wrong kind")
    if not missing and not wrong and manifest["format"] != FORMAT:
        faults.add(f"format {quoted(manifest['format'])} is unknown here")


def _check_claims(manifest: Mapping[str, Any], kind: str, answers: bytes, rows: int, faults: Faults) -> None:
    if manifest["kind"] != kind:
        faults.add(f"kind is {quoted(manifest['kind'])}, and the file is {best_file(kind)}")
    if manifest["sha256"] != digest(answers):
        faults.add(f"sha256 is not that of {best_file(kind)}: the answers were changed after it was written")
    if manifest["rows"] != rows:
        faults.add(f"rows is {quoted(manifest['rows'])}, and {rows} prompts are asked for")
    if not 1 <= manifest["n"] <= MAX_N:
        faults.add(f"n is {quoted(manifest['n'])}, outside 1 to {MAX_N}")
    for name, limit in (("max_prompt_tokens", MAX_PROMPT_TOKENS), ("max_new_tokens", MAX_NEW_TOKENS)):
        value = manifest["budget"].get(name)
        if not _whole(value) or not 1 <= value <= limit:
            faults.add(f"budget.{name} is {quoted(value)}, outside 1 to {limit}")
    for name in ("temperature", "top_p"):
        value = manifest["sampling"].get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST[name]:
            faults.add(f"sampling.{name} is {quoted(value)}, not above 0 and at most {MOST[name]}")
    selector = manifest["selector"]
    if selector.get("name") not in SELECTORS:
        faults.add(f"selector.name is {quoted(selector.get('name'))}, not one of {', '.join(SELECTORS)}")
    elif selector["name"] == "reward_model" and not _named(selector.get("fingerprint")):
        faults.add("selector.fingerprint is missing: it says which reward model chose")


def _check_family(manifest: Mapping[str, Any], faults: Faults) -> None:
    family = manifest["family"]
    sound = [entry for entry in family if isinstance(entry, dict) and _named(entry.get("name"))]
    names = [entry["name"] for entry in sound]
    if not family or len(sound) < len(family) or len(set(names)) < len(names):
        faults.add("family is no list of policies with a name each, all different")
        return
    for entry in sound:
        if not _named(entry.get("fingerprint")):
            faults.add(f"policy {quoted(entry['name'])} has no fingerprint")
        foreign = foreign_method(manifest["kind"], entry.get("method"))
        if foreign:
            faults.add(f"policy {quoted(entry['name'])}: {foreign}")
    chosen = manifest["chosen"]
    if set(chosen) != set(names):
        faults.add("chosen does not count the policies of the family, and those alone")
    elif not all(_whole(count) and 0 <= count <= MAX_ROWS for count in chosen.values()):
        faults.add("chosen holds something other than counts")
    elif sum(chosen.values()) != manifest["rows"]:
        faults.add(f"chosen adds up to {quoted(sum(chosen.values()))}, not to the {manifest['rows']} rows")


def foreign_method(kind: str, method: Any) -> str | None:
    """Why a policy of `method` has no place in a file of `kind`; None if it has, or is of no known method."""
    if method is None or kind not in KINDS or method in KINDS[kind]:
        return None
    known = sorted({name for methods in KINDS.values() for name in methods})
    if not isinstance(method, str) or method not in known:
        return f"method {quoted(method)} is not one of {', '.join(known)}"
    return f"{method} is no {kind} method ({', '.join(KINDS[kind])} are)"


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _named(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and len(value) < 200


def describe(manifest: Mapping[str, Any]) -> str:
    """One line: what the answers were chosen from, and by what."""
    family: Sequence[Mapping[str, Any]] = manifest["family"]
    names = ", ".join(
        f"{quoted(entry['name'])[1:-1]} ({manifest['chosen'][entry['name']]})" for entry in family
    )
    return (
        f"chosen by {manifest['selector']['name']} from {manifest['n']} candidates each of {names}, drawn at "
        f"temperature {manifest['sampling']['temperature']:g}"
    )
