"""The lesson builder, on a sample lesson of two exercises."""

from __future__ import annotations

import ast
import contextlib
import json
import shutil
from pathlib import Path

import psutil
import pytest

from helpers.course.builder import execute as executing
from helpers.course.builder.answers import signature
from helpers.course.builder.kit import Kit
from helpers.course.builder.leaks import shipped, telling_lines
from helpers.course.builder.make import build_lessons
from helpers.course.builder.notebooks import code_of, load, make_notebook
from helpers.course.builder.outputs import clean
from helpers.course.builder.review import review
from helpers.errors import CourseError

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = Path(__file__).with_name("sample")
LESSON = "00_sample"


def sample_kit(place: Path) -> Kit:
    """A copy of the sample with the real set-up cell and the one module of helpers that it needs."""
    shutil.copytree(SAMPLE, place, dirs_exist_ok=True)
    shutil.copy(ROOT / "solutions/setup_cell.py", place / "solutions")
    (place / "helpers").mkdir()
    for name in ("__init__.py", "errors.py"):
        shutil.copy(ROOT / "helpers" / name, place / "helpers")
    return Kit(place, "solutions.answers")


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Kit:
    """The sample, built once; tests that change something take a copy."""
    kit = sample_kit(tmp_path_factory.mktemp("sample"))
    build_lessons(kit, say=lambda line: None)
    return kit


@pytest.fixture
def kit(built, tmp_path) -> Kit:
    shutil.copytree(built.root, tmp_path / "copy")
    return Kit(tmp_path / "copy", built.package)


@pytest.fixture
def bare(tmp_path) -> Kit:
    """The sample before anything was built."""
    return sample_kit(tmp_path)


def cells(kit, student=True):
    return load(kit.student(LESSON) if student else kit.instructor(LESSON))["cells"]


def change(path, old, new, count=1):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, count))


def outputs(cell):
    return [output.get("text") or output["data"] for output in cell["outputs"]]


# ------------------------------------------------------------------ what the notebooks hold
def test_the_student_gets_signature_docstring_and_a_place_to_write(built):
    (source,) = [code for code in code_of(load(built.student(LESSON))) if "def doubled_sum" in code]
    assert source == (
        "from collections.abc import Sequence\n\n"
        "UNIT = 2.0\n\n\n"
        "def doubled_sum(values: Sequence[float], unit: float = UNIT) -> float:\n"
        '    """Add up, then double.\n\n'
        "    Args:\n"
        "        values: any numbers; `total = sum(of them)`.\n"
        '    """\n'
        "    # your code\n"
        '    raise NotImplementedError("doubled_sum is not written yet")'
    )


def test_of_an_answer_with_blanks_only_these_are_left_to_the_learner(built):
    (source,) = [code for code in code_of(load(built.student(LESSON))) if "def centred" in code]
    assert source.split('"""\n')[1] == (
        "    numbers = [float(value) for value in values]\n"
        "    # your code: subtract the mean of `numbers` from each of them\n"
        '    raise NotImplementedError("centred is not written yet")\n'
        "    return [round(number, 9) for number in moved]"
    )


def test_the_instructor_gets_the_answer_whole_and_no_marker(built):
    source = "\n".join(code_of(load(built.instructor(LESSON))))
    assert "    total = math.fsum(values)\n    return unit * total  # the unit is 2\n" in source
    assert "moved = [number - mean_of_all for number in numbers]\n    return [round(" in source
    assert "blank" not in source


def test_what_an_answer_needs_stands_above_it_once(built):
    for student in (True, False):
        source = "\n".join(code_of(make_notebook(built, LESSON, student=student)))
        for line in ("import math\n", "from collections.abc import Sequence\n", "UNIT = 2.0\n"):
            assert ("\n" + source).count("\n" + line) == 1


def test_cells_for_one_side_are_in_its_notebook_alone(built):
    student, instructor = built.student(LESSON).read_text(), built.instructor(LESSON).read_text()
    assert "for students" in student and "for students" not in instructor
    assert "For instructors." in instructor and "For instructors." not in student


def test_the_set_up_cell_stands_where_the_source_says(built):
    assert cells(built)[1]["source"] == built.setup_cell
    assert built.setup_cell.startswith("# Finds the course")


def test_nothing_depends_on_cell_metadata_and_ids_derive_from_the_place(built):
    for student in (True, False):
        for number, cell in enumerate(cells(built, student), start=1):
            assert cell["metadata"] == {}
            assert cell["id"] == f"00-sample-{number:03d}"


def test_notebooks_are_valid_and_survive_jupyter_byte_for_byte(built):
    import nbformat

    for path in (built.student(LESSON), built.instructor(LESSON)):
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert nbformat.writes(notebook) + "\n" == path.read_text()


# ------------------------------------------------------------------ what they printed
def test_outputs_are_kept_without_noise_and_without_traces_of_the_machine(built):
    code = [cell for cell in cells(built, student=False) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    printed, value = outputs(code[-2])
    assert printed == "whole\nroot: data\n<object object at 0x…>\n"
    assert value == {"text/plain": "[-1.0, 0.0, 1.0]"}
    assert outputs(code[-1]) == [{"text/html": "<b>ü</b>\n<i>two</i>", "text/plain": "two"}]
    assert all(not cell["outputs"] for cell in cells(built) if cell["cell_type"] == "code")


def executed(*outputs, source="x"):
    cell = {"cell_type": "code", "id": "a", "source": source, "outputs": list(outputs)}
    return {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def stream(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def kept(*outputs):
    return clean(executed(*outputs), LESSON, Path("/checkout"))["cells"][0]["outputs"]


def test_chunks_of_a_stream_become_one_and_errors_are_dropped():
    assert kept(stream("a\n"), stream("noise", "stderr"), stream("b\n")) == [stream("a\nb\n")]
    assert kept(stream("bar: 100%|####| 5/5 [00:01<00:00]\n")) == []


def test_widgets_are_dropped_and_pictures_stay():
    widget = {"application/vnd.jupyter.widget-view+json": {}, "text/plain": "HBox()"}
    picture = {"image/png": "iVBORw0KGgo/home/x", "text/plain": "figure"}
    shown = [{"output_type": "display_data", "data": data, "metadata": {}} for data in (widget, picture)]
    assert [output["data"] for output in kept(*shown)] == [picture]


@pytest.mark.parametrize(
    "path", [f"/{'home'}/ada/x", f"/{'tmp'}/abc", "C:\\Users\\ada", str(Path.home() / "x")]
)
def test_a_path_of_the_machine_fails_naming_the_cell(path):
    with pytest.raises(CourseError, match="00_sample, cell 1 shows a path of this machine"):
        kept(stream(f"results in {path}\n"))


def test_outputs_over_the_limit_fail_naming_the_cell():
    with pytest.raises(
        CourseError, match="00_sample, cell 1: its outputs take 200 kB, and 150 kB are the limit"
    ):
        kept(stream("x" * 200_000))


# ------------------------------------------------------------------ building
def test_building_twice_gives_the_same_bytes(kit):
    before = kit.student(LESSON).read_bytes(), kit.instructor(LESSON).read_bytes()
    build_lessons(kit, force=True, say=lambda line: None)
    assert (kit.student(LESSON).read_bytes(), kit.instructor(LESSON).read_bytes()) == before


def test_outputs_of_unchanged_code_are_kept_without_executing(kit, monkeypatch):
    monkeypatch.setattr(executing, "import_nbclient", lambda: pytest.fail("executed"))
    before = [outputs(cell) for cell in cells(kit, False) if cell["cell_type"] == "code"]
    change(kit.source(LESSON), "# # 00 · Sums", "# # 00 · Sums of numbers")
    build_lessons(kit, say=lambda line: None)
    assert "Sums of numbers" in kit.instructor(LESSON).read_text()
    assert [outputs(cell) for cell in cells(kit, False) if cell["cell_type"] == "code"] == before
    assert review(kit) == []


def test_changed_code_is_executed_again(kit):
    change(kit.source(LESSON), "[1.0, 2.0]", "[1.0, 4.0]")
    build_lessons(kit, say=lambda line: None)
    assert '"10.0\\n"' in kit.instructor(LESSON).read_text()


def test_a_cell_that_fails_is_named_and_nothing_is_written(kit):
    before = kit.student(LESSON).read_bytes(), kit.instructor(LESSON).read_bytes()
    change(kit.source(LESSON), "centred([1, 2, 3])\n", "centred([])\n")
    with pytest.raises(CourseError, match=r"lesson 00_sample, cell 7 \(print.*ZeroDivisionError: "):
        build_lessons(kit, say=lambda line: None)
    assert (kit.student(LESSON).read_bytes(), kit.instructor(LESSON).read_bytes()) == before


def test_without_executing_the_check_asks_for_a_build(bare):
    build_lessons(bare, run=False, say=lambda line: None)
    assert review(bare) == [
        "solutions/00_sample.ipynb was not executed whole: run python -m helpers build 00"
    ]


@pytest.mark.parametrize("number", ["00", "0", "00_sample", "solutions/00_sample.py"])
def test_a_lesson_is_named_by_number_name_or_file(bare, number):
    assert bare.lessons([number]) == [LESSON]


def test_an_unknown_lesson_is_told_which_there_are(bare):
    with pytest.raises(CourseError, match="no lesson 9; there are 00_sample"):
        bare.lessons(["9"])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('["setup"]', '["set-up"]', "cell 2: tags .* at most one of setup, exercise"),
        ('["setup"]', '["setup"] slow=true', "cell 2: metadata slow have no meaning"),
        ("import doubled_sum", "import halved", "re-exports no halved"),
        (
            "import doubled_sum",
            "import doubled_sum\nx = 1",
            "'x = 1' stands there; an exercise cell is exactly",
        ),
        ("from solutions.answers import doubled_sum", "pass", "cell 4: 'pass' stands there"),
        (
            '# %% tags=["exercise"]\nfrom solutions.answers import doubled_sum',
            "# %%",
            "centred calls doubled_sum",
        ),
        ("[1.0, 2.0]", "[1.0, 2.0", "cell 5: "),
    ],
)
def test_a_source_that_cannot_be_built_says_where(bare, old, new, said):
    change(bare.source(LESSON), old, new)
    with pytest.raises(CourseError, match=said):
        build_lessons(bare, say=lambda line: None)
    assert not bare.student(LESSON).exists()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    # end blank\n", "", "has no `# end blank`"),
        ("    # blank: subtract the mean of `numbers` from each of them\n", "", "`# end blank` without"),
        ("# blank: subtract", "# blank subtract", "is neither"),
        ("    mean_of_all =", "    # blank: again\n    mean_of_all =", "a blank begins inside a blank"),
        ('    """Subtract the mean from every number."""\n', "", "the docstring states the exercise"),
        (
            "    numbers = [float",
            "    helper()\n    numbers = [float",
            "leans on helper, which is no exercise",
        ),
        ("def centred(", "def centered(", "defines no function centred"),
    ],
)
def test_an_answer_that_cannot_be_blanked_says_why(bare, old, new, said):
    module = bare.sources / "answers/sums.py"
    module.write_text(module.read_text() + "\n\ndef helper():\n    pass\n")
    change(module, old, new)
    with pytest.raises(CourseError, match=said):
        build_lessons(bare, run=False, say=lambda line: None)


# ------------------------------------------------------------------ --check
def test_a_fresh_build_has_no_faults(built):
    assert review(built) == []


def edit(path, cell, **fields):
    """Change a cell of a notebook, as an editor would."""
    notebook = json.loads(path.read_text())
    notebook["cells"][cell].update(fields)
    path.write_text(json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def only(kit, *said):
    """The findings are these, whatever their order."""
    findings = review(kit)
    assert len(findings) == len(said), findings
    for words in said:
        assert any(words in finding for finding in findings), (words, findings)


@pytest.mark.parametrize("student", [True, False])
def test_an_edited_notebook_fails(kit, student):
    path = kit.student(LESSON) if student else kit.instructor(LESSON)
    edit(path, 4, source=["print(1)"])
    only(kit, f"{kit.shown(path)} differs from what solutions/00_sample.py gives now (first in cell 5)")


def test_a_changed_source_makes_both_notebooks_stale(kit):
    change(kit.source(LESSON), "[1.0, 2.0]", "[1.0, 4.0]")
    only(kit, "solutions/00_sample.ipynb differs", "notebooks/00_sample.ipynb differs")


def test_a_changed_answer_makes_the_instructors_notebook_stale_and_no_other(kit):
    change(kit.sources / "answers/sums.py", "return unit * total", "return total * unit")
    only(kit, "solutions/00_sample.ipynb differs")


def test_a_student_notebook_in_another_layout_fails(kit):
    path = kit.student(LESSON)
    path.write_text(json.dumps(json.loads(path.read_text())))
    only(kit, "notebooks/00_sample.ipynb differs from what solutions/00_sample.py gives now (in its metadata")


def test_a_changed_stub_signature_fails(kit):
    change(kit.student(LESSON), "unit: float = UNIT)", "unit: float)")
    only(kit, "cell 4: doubled_sum has another signature than its answer", "differs")


def test_an_output_in_a_student_notebook_fails(kit):
    edit(kit.student(LESSON), 4, outputs=[stream("6.0\n")])
    only(kit, "cell 5 holds an output or an execution count", "differs")


def test_an_execution_count_in_a_student_notebook_fails(kit):
    edit(kit.student(LESSON), 4, execution_count=3)
    only(kit, "cell 5 holds an output or an execution count", "differs")


def test_an_error_in_an_instructors_notebook_fails(kit):
    error = {"output_type": "error", "ename": "KeyError", "evalue": "1", "traceback": []}
    edit(kit.instructor(LESSON), 4, outputs=[error])
    only(kit, "solutions/00_sample.ipynb, cell 5 ends in KeyError")


def test_a_notebook_that_is_missing_torn_or_left_over_fails(kit):
    kit.student(LESSON).unlink()
    kit.instructor(LESSON).write_text("{")
    (kit.root / "notebooks/05_old.ipynb").write_text("{}")
    only(
        kit,
        "notebooks/00_sample.ipynb is missing or no notebook: run python -m helpers build 00",
        "solutions/00_sample.ipynb is missing or no notebook",
        "notebooks/05_old.ipynb has no source solutions/05_old.py: delete it",
    )


def test_outputs_that_grew_too_large_fail(kit):
    edit(kit.instructor(LESSON), 4, outputs=[stream("x" * 1_100_000)])
    only(kit, "has 1.1 MB, over 1 MB", "cell 5 has 1100 kB of outputs")


LEAKS = {
    "a student notebook": ("notebooks/00_sample.ipynb", None),
    "a cell of a lesson": ("solutions/00_sample.py", "# %% [markdown]\n# `total = math.fsum(values)`\n"),
    "a module": ("helpers/sums.py", "def f(values):\n    total   =  math.fsum( values )  # adds\n"),
    "check vectors": ("data/checks/sums.json", json.dumps({"hint": 'write "total = math.fsum(values)"'})),
    "a text": ("README.md", "Use\n\n    total = math.fsum(values)\n"),
}


@pytest.mark.parametrize("place", LEAKS)
def test_a_line_of_an_answer_fails_wherever_students_would_find_it(kit, place):
    name, text = LEAKS[place]
    path = kit.root / name
    if text is None:
        edit(path, 4, source=["if True:\n", "    total = math.fsum(values)\n"])
    elif name.startswith("solutions"):
        path.write_text(path.read_text() + "\n" + text)
        build_lessons(kit, run=False, say=lambda line: None)
        name = "notebooks/00_sample.ipynb"
    else:
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    words = f"{name} holds a line of the answer to doubled_sum: `total = math.fsum(values)`"
    assert any(words in finding for finding in review(kit))


def test_what_instructors_keep_and_what_git_ignores_is_no_leak(kit):
    for name in ("tests/test_sums.py", "solutions/oracles/sums.py", ".venv/x.py", "helpers/__pycache__/x.py"):
        (kit.root / name).parent.mkdir(parents=True, exist_ok=True)
        (kit.root / name).write_text("total = math.fsum(values)\n")
    assert review(kit) == []


def test_only_lines_that_tell_something_count(built):
    lines = {line for _, line in telling_lines(built).values()}
    assert lines == {
        "total = math.fsum(values)",
        "mean_of_all = doubled_sum(numbers) / (UNIT * len(numbers))",
        "moved = [number - mean_of_all for number in numbers]",
    }, "not `return unit * total`, which is short, nor the scaffolding around a blank"


# ------------------------------------------------------------------ in a notebook
def test_an_unfilled_notebook_stops_with_one_friendly_line(built, tmp_path):
    with pytest.raises(executing.CellFailed) as stop:
        executing.execute(load(built.student(LESSON)), LESSON, python_path=ROOT, folder=tmp_path)
    assert not psutil.Process().children(), "the kernel is gone too"
    assert stop.value.shown == (
        "exercise doubled_sum: doubled_sum is not written yet; write it in the cell above"
    )


def test_a_lesson_runs_in_an_empty_directory_offline_on_the_tiny_profile(built, tmp_path):
    notebook = make_notebook(built, LESSON, student=False)
    names = ("COURSE_PROFILE", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "COURSE_RUNS")
    notebook["cells"][-2]["source"] = (
        f"import os; print([os.environ.get(name) for name in {names}], os.listdir())"
    )
    done = executing.execute(notebook, LESSON, python_path=ROOT, folder=tmp_path / "empty")
    assert done["cells"][-2]["outputs"][0]["text"] == "['tiny', '1', '1', '1', None] []\n"


# ------------------------------------------------------------------ the real answers
@pytest.fixture(scope="module")
def real() -> Kit:
    return Kit(ROOT, "solutions.answers")


def test_every_answer_can_be_blanked_and_refuses_by_name(real):
    for name, answer in real.answers.items():
        scope: dict = {}
        exec("\n".join([*answer.needs, answer.stub]), scope)
        arguments = [None] * scope[name].__code__.co_argcount
        with contextlib.suppress(TypeError, AttributeError), pytest.raises(NotImplementedError, match=name):
            scope[name](*arguments)


def test_a_stub_has_the_signature_and_the_docstring_of_its_answer(real):
    for answer in real.answers.values():
        stub, whole = ast.parse(answer.stub).body[0], ast.parse(answer.whole).body[0]
        assert signature(stub) == signature(whole) == answer.signature
        assert ast.get_docstring(stub) == ast.get_docstring(whole)


def test_nothing_that_is_shipped_holds_a_line_of_an_answer(real):
    from helpers.course.builder.leaks import leaks_in

    telling = telling_lines(real)
    assert len(telling) > 50
    assert {real.shown(path): found for path in shipped(real) if (found := leaks_in(path, telling))} == {}


@pytest.mark.parametrize("output", [{}, {"output_type": "error"}])
def test_a_notebook_with_a_torn_output_is_no_notebook(kit, output):
    notebook = json.loads(kit.instructor(LESSON).read_text(encoding="utf-8"))
    next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")["outputs"] = [output]
    kit.instructor(LESSON).write_text(json.dumps(notebook), encoding="utf-8")
    assert "solutions/00_sample.ipynb is missing or no notebook" in review(kit)[0]


@pytest.mark.parametrize("name", ["solutions/answers/__init__.py", "solutions/answers/sums.py"])
def test_answers_that_python_cannot_read_are_named_with_the_line(bare, name):
    with (bare.root / name).open("a", encoding="utf-8") as stream:
        stream.write("\ndef broken(:\n")
    with pytest.raises(CourseError, match=rf"{name} line \d+: invalid syntax"):
        build_lessons(bare, run=False)


@pytest.mark.parametrize("tags", ['"exercise"', "3", '[["a"]]'])
def test_tags_that_are_no_list_of_words_are_refused(bare, tags):
    with bare.source(LESSON).open("a", encoding="utf-8") as stream:
        stream.write(f"\n# %% tags={tags}\nx = 1\n")
    with pytest.raises(CourseError, match=r"solutions/00_sample\.py"):
        build_lessons(bare, run=False)


def test_without_a_place_for_the_students_notebook_neither_is_written(bare):
    shutil.rmtree(bare.root / "notebooks", ignore_errors=True)
    (bare.root / "notebooks").write_text("a file", encoding="utf-8")
    with pytest.raises(CourseError, match="notebooks cannot be written"):
        build_lessons(bare, run=False)
    assert not bare.instructor(LESSON).exists()
