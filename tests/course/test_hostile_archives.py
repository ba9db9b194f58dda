"""Directories and zips nobody vouches for are opened without following, unpacking or running anything."""

from __future__ import annotations

import os
import stat
import zipfile

import pytest

from helpers.course import submission_files as files
from helpers.course.submission import zip_submission
from helpers.files import write_jsonl
from tests.course.grading import GOOD, POLICY, REWARD, SCORES, TEXT, graded, part, zipped


def notices(results: dict) -> list[str]:
    """What the grader says about the submission as a whole."""
    return [line for line in results["extra_data"]["notices"] if not line.startswith("ppo is no part")]


@pytest.mark.parametrize(
    "wrapper", ["", "llm_rl_final_proj_public_submission/", "home/llm_rl_final_proj_public_submission/"]
)
def test_a_zip_is_graded_like_its_directory_at_whatever_depth(tmp_path, public, wrapper):
    source = zipped(
        tmp_path / "s.zip", {f"{wrapper}{POLICY}": TEXT, "__MACOSX/policy_generations/._dpo.jsonl": b"\0"}
    )
    before = sorted(tmp_path.rglob("*"))
    assert part(graded(source, public), "dpo")["status"] == "passed"
    assert sorted(tmp_path.rglob("*")) == before  # nothing is unpacked


def test_what_submit_zip_writes_is_what_grade_reads(tmp_path, public):
    write_jsonl(tmp_path / "sub" / POLICY, GOOD)
    write_jsonl(tmp_path / "sub" / REWARD, SCORES)
    assert graded(zip_submission(tmp_path / "sub"), public)["score"] == 2.0


@pytest.mark.parametrize(
    ("name", "notice"),
    [
        ("/etc/policy_generations/dpo.jsonl", "has an absolute path and was skipped"),
        ("C:/policy_generations/dpo.jsonl", "has an absolute path and was skipped"),
        ("../policy_generations/dpo.jsonl", "climbs out of the zip with '..' and was skipped"),
        ("policy_generations/../../dpo.jsonl", "climbs out of the zip with '..' and was skipped"),
    ],
)
def test_a_zip_member_that_points_elsewhere_is_skipped_and_named(tmp_path, public, name, notice):
    source = zipped(tmp_path / "s.zip", {name: TEXT, "policy_generations/ipo.jsonl": TEXT})
    results = graded(source, public)
    assert [line for line in results["extra_data"]["notices"] if notice in line]
    assert part(results, "dpo")["status"] == "failed"
    assert part(results, "ipo")["status"] == "passed"


def test_a_zip_member_that_is_a_link_is_skipped(tmp_path, public):
    link = {POLICY: {"external_attr": (stat.S_IFLNK | 0o777) << 16, "create_system": 3}}
    source = zipped(tmp_path / "s.zip", {POLICY: "/etc/passwd", "policy_generations/ipo.jsonl": TEXT}, **link)
    assert "is a link and was skipped" in graded(source, public)["output"]


def test_a_bomb_is_refused_before_and_while_it_unpacks(tmp_path, public, monkeypatch):
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 100_000)
    bomb = zipped(tmp_path / "s.zip", {POLICY: b"0" * 5_000_000, "policy_generations/ipo.jsonl": TEXT})
    assert "unpacks to more than" in graded(bomb, public)["output"]
    data = bytearray(bomb.read_bytes())
    size = (5_000_000).to_bytes(4, "little")
    lie = (10).to_bytes(4, "little")
    bomb.write_bytes(bytes(data).replace(size, lie))  # the directory promises ten bytes
    results = graded(bomb, public)
    assert "cannot be unpacked" in part(results, "dpo")["output"]
    assert part(results, "ipo")["status"] == "passed"


def test_a_member_that_appears_twice_is_graded_once_and_named(tmp_path, public):
    source = tmp_path / "s.zip"
    with zipfile.ZipFile(source, "w") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(POLICY, TEXT)
        archive.writestr(POLICY, "{}")
    results = graded(source, public)
    assert "appears twice in the zip" in results["output"]
    assert part(results, "dpo")["status"] == "passed"


def test_a_file_whose_name_differs_in_case_alone_is_not_read_and_told_its_right_name(tmp_path, public):
    source = zipped(tmp_path / "s.zip", {POLICY: TEXT, "policy_generations/DPO.jsonl": "{}"})
    results = graded(source, public)
    assert part(results, "dpo")["status"] == "passed"
    assert notices(results) == [
        f"'policy_generations/DPO.jsonl' was not read: it is called {POLICY}, in small letters"
    ]


def test_other_files_are_named_once_and_not_read(tmp_path, public):
    others = {f"policy_generations/run{index}.jsonl": "{}" for index in range(5)}
    source = zipped(tmp_path / "s.zip", {POLICY: TEXT, **others, "policy_generations/.DS_Store": "x"})
    assert notices(graded(source, public)) == [
        "'policy_generations/run0.jsonl', 'policy_generations/run1.jsonl', 'policy_generations/run2.jsonl' "
        "and 2 more: no part of a submission, not read"
    ]


def test_a_zip_in_a_zip_is_not_opened(tmp_path, public):
    inner = zipped(tmp_path / "inner.zip", {POLICY: TEXT}).read_bytes()
    source = zipped(tmp_path / "s.zip", {"home/inner.zip": inner})
    (said,) = notices(graded(source, public))
    assert said.endswith("it holds the zip 'home/inner.zip': submit what is inside it")


def test_a_zip_with_the_separators_of_windows_is_read(tmp_path, public):
    source = zipped(tmp_path / "s.zip", {POLICY.replace("/", "\\"): TEXT})
    assert part(graded(source, public), "dpo")["status"] == "passed"


@pytest.mark.parametrize(
    ("offset", "value", "notice"),
    [(8, 0x1, "is encrypted"), (10, 12, "uses a compression other than deflate")],
)
def test_a_member_that_cannot_be_read_is_skipped_and_named(tmp_path, public, offset, value, notice):
    source = zipped(tmp_path / "s.zip", {"policy_generations/ipo.jsonl": TEXT, POLICY: TEXT})
    data = bytearray(source.read_bytes())
    at = data.index(b"PK\x01\x02")  # the first entry of the zip's directory
    data[at + offset] = value
    source.write_bytes(data)
    results = graded(source, public)
    assert f"zip member 'policy_generations/ipo.jsonl' {notice} and was skipped" in results["output"]
    assert part(results, "dpo")["status"] == "passed"


def test_thousands_of_bad_members_are_a_handful_of_lines(tmp_path, public):
    bad = {f"../{index}": "x" for index in range(500)}
    said = notices(graded(zipped(tmp_path / "s.zip", {POLICY: TEXT, **bad}), public))
    assert (len(said), said[-1]) == (4, "members of the zip that were skipped: 497 more")
    many = zipped(tmp_path / "m.zip", {f"policy_generations/{index}": "" for index in range(2_001)})
    assert "has 2001 members; a submission has under 20" in graded(many, public)["output"]


def test_an_archive_over_the_limit_is_not_opened(tmp_path, public, monkeypatch):
    monkeypatch.setattr(files, "MAX_ARCHIVE_BYTES", 1000)
    source = zipped(tmp_path / "s.zip", {POLICY: os.urandom(2000)})
    assert "is larger than" in graded(source, public)["output"]


def test_a_file_that_may_not_be_read_is_one_line(tmp_path, public, monkeypatch):
    write_jsonl(tmp_path / "sub" / POLICY, GOOD)
    real = type(tmp_path).open

    def refuse(path, *args, **options):
        if path.name == "dpo.jsonl":
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **options)

    monkeypatch.setattr(type(tmp_path), "open", refuse)
    output = part(graded(tmp_path / "sub", public), "dpo")["output"]
    assert output == f"{POLICY} cannot be read: Permission denied"


def test_nothing_that_was_submitted_is_run_and_nothing_is_written_but_the_results(tmp_path, public):
    trap = "import pathlib; pathlib.Path('trap').touch()"
    names = ["sitecustomize.py", "policy_generations/__init__.py", "helpers/__init__.py", "conftest.py"]
    source = zipped(tmp_path / "s.zip", {POLICY: TEXT, **dict.fromkeys(names, trap)})
    before = set(tmp_path.rglob("*"))
    graded(source, public, output=tmp_path / "results.json")
    assert {path.name for path in set(tmp_path.rglob("*")) - before} == {"results.json"}


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 no zip", b"{}"])
def test_a_file_that_is_no_zip_fails_every_part_with_the_reason(tmp_path, public, data):
    (tmp_path / "s.zip").write_bytes(data)
    results = graded(tmp_path / "s.zip", public)
    assert results["score"] == 0
    assert "neither a directory nor a readable zip" in results["output"]


def test_links_and_pipes_in_a_directory_are_not_followed(tmp_path, public):
    write_jsonl(tmp_path / "secret.jsonl", GOOD)
    folder = tmp_path / "sub" / "policy_generations"
    folder.mkdir(parents=True)
    (folder / "dpo.jsonl").symlink_to(tmp_path / "secret.jsonl")
    os.mkfifo(folder / "ipo.jsonl")
    (tmp_path / "sub" / "reward_model").symlink_to(tmp_path)
    results = graded(tmp_path / "sub", public)
    assert "policy_generations/dpo.jsonl is a link" in part(results, "dpo")["output"]
    assert "is not a regular file" in part(results, "ipo")["output"]
    assert "'reward_model' is a link to a directory and was skipped" in results["output"]


def test_a_directory_with_nothing_to_grade_says_what_belongs_there(tmp_path, public):
    (tmp_path / "sub").mkdir()
    results = graded(tmp_path / "sub", public)
    assert "holds neither policy_generations/*.jsonl nor reward_model" in results["output"]
    assert "does not exist" in graded(tmp_path / "nowhere", public)["output"]
