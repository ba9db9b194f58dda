"""The exported Space: started from its folder in a fresh virtual environment, and asked over HTTP.

That environment finds the installed packages through PYTHONPATH. Unlike site-packages of its own, a directory
named there has its .pth files ignored, and it is a .pth file by which an editable install makes this checkout
importable. So `helpers` can only be the folder's own; the first test asks.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.apps.serving import free_port, served

pytest.importorskip("gradio", reason="the demo needs gradio")

PACKAGES = os.pathsep.join(dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib")))


@pytest.fixture(scope="module")
def space(tmp_path_factory) -> SimpleNamespace:
    """An export of the bundled demo, a fresh virtual environment, and its variables."""
    from helpers.apps.cli import main

    home = tmp_path_factory.mktemp("clean")
    folder = home / "space"
    with contextlib.chdir(home):  # where no course has been run: its adapters would come along
        assert main(["demo", "--profile", "tiny", "--export_space", str(folder)]) == 0
    venv.create(home / "venv", with_pip=False)
    python = home / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": PACKAGES,
        "OMP_NUM_THREADS": "1",
    }
    return SimpleNamespace(folder=folder, home=home, python=str(python), variables=variables)


def in_clean(space: SimpleNamespace, code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = [space.python, "-c", code]
    return subprocess.run(words, cwd=folder, env=space.variables, capture_output=True, text=True)


def test_only_the_folder_has_the_code(space):
    elsewhere = in_clean(space, "import torch, gradio, helpers", space.home)
    assert "No module named 'helpers'" in elsewhere.stderr
    inside = in_clean(space, "import helpers; print(helpers.__file__)", space.folder)
    assert Path(inside.stdout.strip()) == space.folder / "helpers" / "__init__.py"


@pytest.fixture(scope="module")
def url(space) -> Iterator[str]:
    """`python app.py` in the folder, as a Space runs it."""
    port = free_port()
    variables = {**space.variables, "GRADIO_SERVER_PORT": str(port), "GRADIO_SERVER_NAME": "127.0.0.1"}
    with served([space.python, "app.py"], space.folder, variables):
        yield f"http://127.0.0.1:{port}"


def test_it_answers_streams_and_records_votes_over_http(space, url):
    from gradio_client import Client

    client = Client(url, verbose=False, analytics_enabled=False)
    job = client.submit("Where is Toronto?", ["base", "sft"], 0.0, 1.0, 24, 0, True, api_name="/ask")
    final = job.result(timeout=60)
    assert len(job.outputs()) > 5, "answers stream"
    texts = sorted(part for part in map(text_in, final) if part.endswith("."))
    assert len(texts) == 2 and texts[0] != texts[1]
    assert not any(name in str(job.outputs()) for name in ("'sft'", ">sft<", ">base<")), "blind on the wire"
    assert any(">sft<" in str(part) for part in client.predict(api_name="/vote_a"))
    pair = json.loads((space.folder / "votes/train_prefs.jsonl").read_text())
    assert sorted([pair["chosen_text"], pair["rejected_text"]]) == texts


@pytest.mark.parametrize("file", ["votes/train_prefs.jsonl", "demo.json", "app.py"])
def test_its_files_are_not_for_visitors(space, url, file):
    path = (space.folder / file).as_posix()
    for address in (f"{url}/gradio_api/file={path}", f"{url}/gradio_api/file={file}", f"{url}/{file}"):
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(address)
        assert refusal.value.code in (403, 404)


def text_in(value: Any) -> str:
    """The text of an output, which may come as an update."""
    value = value.get("value") if isinstance(value, dict) else value
    return value if isinstance(value, str) and "<" not in value else ""


def test_the_card_is_one_that_a_space_takes(space):
    text = (space.folder / "README.md").read_text()
    _, header, _ = text.split("---\n", 2)
    card = yaml.safe_load(header)
    colours = {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}
    assert card["sdk"] == "gradio" and re.fullmatch(r"\d+\.\d+\.\d+", card["sdk_version"])
    assert {card["colorFrom"], card["colorTo"]} <= colours
    assert (space.folder / card["app_file"]).is_file()
    assert card["python_version"] == f"{sys.version_info.major}.{sys.version_info.minor}"


def test_requirements_name_every_package_that_the_code_imports(space):
    lines = (space.folder / "requirements.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9a-z.]*", line) for line in lines)
    named = {line.split("==")[0].lower().replace("_", "-") for line in lines}
    owners = packages_distributions()
    for source in (space.folder / "helpers").rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in {full.split(".")[0] for full in names} - {"helpers", *sys.stdlib_module_names}:
                package = owners.get(name, [name])[0].lower().replace("_", "-")
                assert package in named or name not in owners, f"{source.name} imports {name}"


def test_it_is_small_holds_no_answers_and_no_path_of_this_machine(space):
    files = [path for path in space.folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 8 * 2**20
    assert not any("solutions" in path.parts for path in files)
    texts = [
        path for path in files if path.suffix in (".py", ".json", ".md", ".txt") and "votes" not in path.parts
    ]
    root = str(Path(__file__).resolve().parents[2])
    assert not any(root in path.read_text(encoding="utf-8") for path in texts)


def test_an_export_replaces_an_earlier_one_and_nothing_else(space, tmp_path, capsys):
    from helpers.apps.cli import main

    words = ["demo", "--profile", "tiny", "--export_space"]
    assert main([*words, str(tmp_path / "once")]) == 0
    (tmp_path / "once" / "old.txt").touch()
    assert main([*words, str(tmp_path / "once")]) == 0
    assert not (tmp_path / "once" / "old.txt").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    assert main([*words, str(tmp_path / "mine")]) == 2
    assert "no earlier export" in capsys.readouterr().err and (tmp_path / "mine" / "thesis.txt").exists()


@pytest.mark.parametrize("port", ["0", "-1", "65536", "99999999"])
def test_a_port_that_is_none_is_named_before_anything_is_loaded(port, capsys):
    from helpers.apps.cli import main

    assert main(["demo", "--profile", "tiny", f"--port={port}"]) == 2
    assert "--port must be from 1 to 65535" in capsys.readouterr().err
