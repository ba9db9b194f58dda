"""A learner's file or notebook as the source of the trainers' functions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from helpers.course.answers import functions_of, load_answers
from helpers.errors import CourseError

REFERENCE = "solutions.answers"
SOLUTIONS = Path(__file__).resolve().parents[2] / "solutions"
LOSS = "import torch\ndef dpo_loss(pc, pr, rc, rr, beta):\n    return (pr - pc).mean() * SCALE\n"
ARGS = [torch.zeros(2, requires_grad=True), torch.ones(2), torch.zeros(2), torch.zeros(2), 0.1]


def save(tmp_path, text, name="mine.py"):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def notebook(tmp_path, *cells):
    code = [{"cell_type": "code", "source": cell} for cell in cells]
    return save(
        tmp_path, json.dumps({"cells": [{"cell_type": "markdown", "source": "# 3"}, *code]}), "n.ipynb"
    )


# ------------------------------------------------------------------ files
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def dpo_loss(:\n", "line 1: invalid syntax"),
        ("x = 1\nraise ValueError('no')\n", "line 2: ValueError: no"),
        ("import nowhere\n", "line 1: ModuleNotFoundError"),
        ("import sys\nsys.exit(3)\n", "line 2: SystemExit"),
        ("x = 1 / 0\n", "line 1: ZeroDivisionError"),
        ("def f(): pass\0", "null bytes"),
        (b"\xff\xfe", "cannot be read"),
        ("", "none of the exercises' functions; they are aot_loss"),
        ("def dpo_los(): pass\n", "is dpo_los meant to be dpo_loss"),
        ("dpo_loss = 3\n", r"dpo_loss is an int \(3\), not a function"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path, text, said):
    with pytest.raises(CourseError, match=f"mine.py.*{said}"):
        load_answers(save(tmp_path, text), REFERENCE)


def test_a_python_file_is_run_whole_as_an_import_would(tmp_path, capsys):
    text = "SCALE = sum([float('2')])\nfor _ in range(2):\n    SCALE += 1\n" + LOSS
    text += "if __name__ == '__main__':\n    raise SystemExit('not as a script')\n"
    path = save(tmp_path, text)
    assert load_answers(path, REFERENCE).dpo_loss(*ARGS).item() == 4.0
    assert f"{path} gives dpo_loss; the others are those of {REFERENCE}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "form",
    [
        "from functools import partial\ndef f(k, pc, *rest): return pc.sum() * k\ndpo_loss = partial(f, 2)\n",
        "class Loss:\n    def __call__(self, pc, *rest): return pc.sum()\ndpo_loss = Loss()\n",
        "if True:\n    def dpo_loss(pc, *rest): return pc.sum()\n",
        "try:\n    import nowhere\nexcept ImportError:\n    dpo_loss = lambda pc, *rest: pc.sum()\n",
    ],
)
def test_the_reference_never_stands_in_for_a_function_of_unusual_form(tmp_path, form):
    assert load_answers(save(tmp_path, form), REFERENCE).dpo_loss(*ARGS).item() == 0.0


# ------------------------------------------------------------------ notebooks
@pytest.mark.parametrize(
    "cells",
    [
        ["%matplotlib inline\n!pip install x\nSCALE = 1.0", LOSS],
        ["%%bash\nls *", "SCALE = float('1')", LOSS],
        ["%%time\nSCALE = torch.tensor(1.0)\n" + LOSS.replace("import torch\n", ""), "torch.manual_seed(0)"],
        ["SCALE = 1\nfiles = !ls\nspent = %timeit 1\ntorch?", LOSS],
        ["if True:\n    %matplotlib inline\nSCALE = 1", LOSS],
        ["SCALE = 1", LOSS, "train_preference(config)\nwhile True:\n    pass", "result = train()\n1 / 0"],
    ],
)
def test_of_a_notebook_definitions_are_run_and_nothing_else(tmp_path, cells):
    cells = ["import torch", *cells]
    assert load_answers(notebook(tmp_path, *cells), REFERENCE).dpo_loss(*ARGS).item() == 1.0


def test_a_file_of_cells_is_a_notebook(tmp_path):
    text = f"# %% [markdown]\n# Train\n# %%\nSCALE = 1\n{LOSS}\n# %%\ntrain()\n"
    assert load_answers(save(tmp_path, text), REFERENCE).dpo_loss(*ARGS).item() == 1.0


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"cells": 5}', '{"cells": [5]}'])
def test_what_is_no_notebook_is_named(tmp_path, text):
    with pytest.raises(CourseError, match="n.ipynb is not a notebook"):
        load_answers(save(tmp_path, text, "n.ipynb"))


def test_a_broken_cell_is_named_by_its_number(tmp_path):
    with pytest.raises(CourseError, match="code cell 2 line 1: invalid syntax"):
        load_answers(notebook(tmp_path, "x = 1", "def f(:"))


# ------------------------------------------------------------------ which functions trained a run
def marks(tmp_path, text):
    return load_answers(save(tmp_path, text), REFERENCE).fingerprints("dpo_loss")


def test_a_fingerprint_sees_what_a_function_does_and_not_how_it_is_explained(tmp_path):
    text = "SCALE = 2\ndef half(x):\n    return x / 2\ndef dpo_loss(a, b):\n    return half(a) * SCALE\n"
    first = marks(tmp_path, text)
    for same in (
        "# mine\n" + text,
        text.replace("return half", '"""Why."""\n    return half'),
        text + "def grpo_loss(): pass\n",
    ):
        assert marks(tmp_path, same) == first
    for other in (("* SCALE", "+ SCALE"), ("SCALE = 2", "SCALE = 3"), ("x / 2", "x / 3")):
        assert marks(tmp_path, text.replace(*other)) != first


# ---------------------------------------------------------------------- without the reference answers
def test_in_the_student_kit_measures_have_stand_ins_and_losses_have_none():
    answers = load_answers("no_such_answers", fallback="no_such_answers")
    assert answers.win_rate(["win", "tie"]) == 0.75
    with pytest.raises(CourseError, match="dpo_loss"):
        answers.dpo_loss()


def test_in_the_student_kit_a_learners_file_is_completed_by_stand_ins(tmp_path):
    (tmp_path / "mine.py").write_text("def win_rate(verdicts):\n    return 1.0\n")
    answers = load_answers(str(tmp_path / "mine.py"), fallback="no_such_answers")
    assert answers.win_rate(["loss"]) == 1.0, "the learner's own goes first"
    assert answers.combine_orders(["A"], ["B"]) == ["win"]


# ---------------------------------------------------------------------- notebooks of the course
def test_an_assignment_that_needs_a_training_cells_result_is_left_out(tmp_path):
    (tmp_path / "mine.py").write_text(
        "# %%\nrun = train()\n# %%\nlast = run[-1]\nBETA = 0.5\n# %%\ndef pick(x):\n    return BETA * x\n"
    )
    answers = load_answers(str(tmp_path / "mine.py"))
    assert answers.pick(2.0) == 1.0


WITHOUT_EXERCISES = ("13", "15", "16")  # nothing in them is to be written


def test_a_definition_that_needs_a_training_cells_result_is_left_out_and_a_slip_is_not(tmp_path):
    path = tmp_path / "mine.py"
    head = "# %%\nsteps = count(data)\n# %%\n"
    path.write_text(head + "def fit(n=steps): pass\ndef loss(x): return x\n")
    found = functions_of(path)
    assert "fit" not in found and found["loss"](3) == 3
    path.write_text(head + "def fit(n=stepz): pass\n")
    with pytest.raises(CourseError, match="stepz"):
        functions_of(path)


@pytest.mark.parametrize("lesson", sorted(SOLUTIONS.glob("[0-9]*.ipynb")), ids=lambda p: p.stem)
def test_the_functions_of_every_instructor_notebook_are_found(lesson):
    wanted = re.findall(r'check\(\\"(\w+)\\"', lesson.read_text(encoding="utf-8"))
    found = functions_of(lesson)
    assert wanted or lesson.stem[:2] in WITHOUT_EXERCISES
    assert all(callable(found[name]) for name in wanted)
