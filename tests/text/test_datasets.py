"""Every format into one schema; every row that is dropped is counted with its reason and place."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.errors import CourseError
from helpers.text.chat import Budget, ChatEncoder
from helpers.text.datasets import encode_groups, load_examples, report_source
from helpers.text.formats import FORMATS, KINDS, RowError, transcript_messages
from helpers.text.groups import pack_groups
from helpers.text.messages import user


def write(path, rows):
    path.write_bytes(b"\n".join(json.dumps(row, ensure_ascii=False).encode() for row in rows) + b"\n")
    return path


def pair(number: int = 0, **changes) -> dict:
    row = {
        "row_id": f"r{number}",
        "prompt_messages": [user(f"Question {number}?")],
        "prompt_text": f"Question {number}?",
        "chosen_text": f"A good answer, {number}.",
        "rejected_text": f"Bad {number}.",
        "avg_confidence": 0.8,
        "metadata": {"family": "facts"},
    }
    return {name: value for name, value in {**row, **changes}.items() if value is not ...}


def load_one(tmp_path, row, kind):
    (example,) = load_examples(write(tmp_path / "one.jsonl", [row]), kind=kind).examples
    return example


# The project's own rows


def test_a_preference_row_of_the_project(tmp_path):
    example = load_one(tmp_path, pair(), "preference")
    assert example.row_id == "r0"
    assert example.messages == (user("Question 0?"),)
    assert example.responses == ("A good answer, 0.", "Bad 0.")
    assert example.metadata["avg_confidence"] == 0.8
    assert example.metadata["metadata"] == {"family": "facts"}
    assert {"row_id", "prompt_messages", "chosen_text"}.isdisjoint(example.metadata)


def test_a_prompt_row_keeps_its_reference_beside_the_prompt(tmp_path):
    row = {"row_id": 7, "prompt_messages": [user("Hi")], "reference_response_text": "Hello.", "score": 4.0}
    example = load_one(tmp_path, row, "prompts")
    assert (example.row_id, example.responses) == ("7", ())
    assert example.metadata == {"reference_response_text": "Hello.", "score": 4.0}


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"prompt_messages": [user("Hi")], "response_text": "A."}, "A."),
        ({"prompt_text": "Hi", "response_text": "A.", "generated_num_tokens": 3}, "A."),
        (pair(chosen_text="B."), "B."),
        ({"prompt_messages": [user("Hi")], "reference_response_text": "C."}, "C."),
    ],
)
def test_the_answer_to_imitate_is_the_best_one_a_row_has(tmp_path, row, answer):
    assert load_one(tmp_path, row, "sft").responses == (answer,)


# Other formats

HH = {
    "chosen": "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: Human: what?\n\nAssistant: Fine.\n\nAnd more. ",
    "rejected": "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: Human: what?\n\nAssistant: Go away.",
}
ULTRAFEEDBACK = {
    "prompt": "Hi",
    "prompt_id": "abc",
    "chosen": [user("Hi"), {"role": "assistant", "content": "Hello."}],
    "rejected": [user("Hi"), {"role": "assistant", "content": "No."}],
    "messages": [user("Hi"), {"role": "assistant", "content": "Hello."}],
    "score_chosen": 8.5,
}
COMPLETIONS = {
    "instruction": "Hi",
    "completions": [
        {"response": "Meh.", "overall_score": 10, "fine-grained_score": 2.0},
        {"response": "Best.", "overall_score": 5, "fine-grained_score": 4.5},
        {"response": "Worst.", "overall_score": 1.5},
    ],
}


def test_hh_rlhf_transcripts_share_their_prompt(tmp_path):
    example = load_one(tmp_path, HH, "preference")
    assert [m["role"] for m in example.messages] == ["user", "assistant", "user"]
    assert example.messages[-1]["content"] == "Human: what?"
    assert example.responses == ("Fine.\n\nAnd more.", "Go away.")
    assert example.row_id == "one.jsonl:1"


def test_ultrafeedback_pairs(tmp_path):
    example = load_one(tmp_path, ULTRAFEEDBACK, "preference")
    assert (example.row_id, example.responses) == ("abc", ("Hello.", "No."))
    assert example.messages == (user("Hi"),)
    assert example.metadata["score_chosen"] == 8.5
    alone = {"prompt": [user("Hi")], **{n: ULTRAFEEDBACK[n][1:] for n in ("chosen", "rejected")}}
    assert load_one(tmp_path, alone, "preference").messages == (user("Hi"),)


def test_ultrafeedback_completions_give_the_best_against_the_worst(tmp_path):
    example = load_one(tmp_path, COMPLETIONS, "preference")
    assert example.responses == ("Best.", "Worst.")
    assert (example.metadata["chosen_score"], example.metadata["rejected_score"]) == (4.5, 1.5)
    assert load_one(tmp_path, COMPLETIONS, "sft").responses == ("Best.",)


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        ({"instruction": "Add.", "input": "1 and 2", "output": "3"}, "Add.\n\n1 and 2"),
        ({"instruction": "Greet.", "input": "", "output": "3"}, "Greet."),
        ({"instruction": "Greet.", "input": "<noinput>", "output": "3", "text": "Below is"}, "Greet."),
        (
            {"instruction": "Sum up.", "context": "Long.", "response": "3", "category": "s"},
            "Sum up.\n\nLong.",
        ),
        ({"id": "s", "instruction": "Add.", "instances": [{"input": "1", "output": "3"}]}, "Add.\n\n1"),
        ({"messages": [user("Hi"), {"role": "assistant", "content": "3"}]}, "Hi"),
        ({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "3"}]}, "Hi"),
        ({"prompt": "Hi", "completion": "3"}, "Hi"),
        ({"prompt": [user("Hi")], "completion": [{"role": "assistant", "content": "3"}]}, "Hi"),
        ({"prompt": "Hi", "chosen": "3", "rejected": "4"}, "Hi"),
    ],
)
def test_instruction_data(tmp_path, row, prompt):
    example = load_one(tmp_path, row, "sft")
    assert example.messages == (user(prompt),)
    assert example.responses == ("3",)
    assert load_one(tmp_path, row, "prompts").messages == (user(prompt),)


def test_a_seed_task_gives_one_example_an_instance(tmp_path):
    row = {
        "id": "s",
        "instruction": "Add.",
        "instances": [{"input": str(n), "output": "x"} for n in range(3)],
    }
    loaded = load_examples(write(tmp_path / "seeds.jsonl", [row]), kind="sft")
    assert [example.row_id for example in loaded.examples] == ["s", "s#1", "s#2"]


def oasst(name, parent, role, rank=None, **more) -> dict:
    return {
        "message_id": name,
        "parent_id": parent,
        "role": role,
        "text": f"text {name}",
        "rank": rank,
        **more,
    }


TREE = [
    oasst("q", None, "prompter", lang="en"),
    oasst("a1", "q", "assistant", 1),
    oasst("a0", "q", "assistant", 0),
    oasst("a2", "q", "assistant", 2),
    oasst("q2", "a0", "prompter"),
    oasst("b", "q2", "assistant"),
    oasst("q3", "a1", "prompter"),
    oasst("x", "q", "assistant", 3, deleted=True),
    oasst("q4", "nowhere", "prompter"),
    oasst("c", "q4", "assistant", 0),
]


def test_openassistant_trees_become_answers_and_pairs(tmp_path):
    path = write(tmp_path / "trees.jsonl", TREE)
    loaded = load_examples(path, kind="sft")
    assert [(e.row_id, e.responses) for e in loaded.examples] == [("q", ("text a0",)), ("q2", ("text b",))]
    assert [m["content"] for m in loaded.examples[1].messages] == ["text q", "text a0", "text q2"]
    assert loaded.report.dropped == {
        "deleted by its author": 1,
        "user message without an answer": 1,
        "parent message is missing": 1,
    }
    pairs = load_examples(path, kind="preference")
    assert [e.responses for e in pairs.examples] == [("text a0", "text a2")]
    assert pairs.report.dropped["fewer than two ranked answers"] == 2
    assert pairs.examples[0].metadata["lang"] == "en"


def test_a_tree_that_bites_its_tail_is_dropped_not_walked_for_ever(tmp_path):
    rows = [oasst("q", "a", "prompter"), oasst("a", "q", "assistant"), *TREE[:3]]
    rows[0]["message_id"], rows[0]["parent_id"] = "loop", "a9"
    rows[1]["message_id"], rows[1]["parent_id"] = "a9", "loop"
    report = load_examples(write(tmp_path / "t.jsonl", rows), kind="sft").report
    assert report.dropped["message is its own ancestor"] == 1


# What is wrong with a row

BAD_ROWS = {
    "missing field": [
        pair(chosen_text=...),
        pair(rejected_text=None),
        pair(prompt_messages=..., prompt_text=...),
    ],
    "wrong type": [
        pair(chosen_text=5),
        pair(prompt_messages="Hi"),
        pair(prompt_messages=["Hi"]),
        pair(prompt_messages=[{"role": "user", "content": {"a": 1}}]),
        pair(prompt_messages=[{"role": "user", "content": [{"type": "image"}]}]),
    ],
    "empty response": [pair(chosen_text=""), pair(rejected_text=" \n\t")],
    "empty prompt": [pair(prompt_messages=[user("  ")])],
    "empty message": [pair(prompt_messages=[{"role": "system", "content": ""}, user("Hi")])],
    "chosen equal to rejected": [pair(chosen_text="Same.", rejected_text="Same.")],
    "bad role order": [
        pair(prompt_messages=[]),
        pair(prompt_messages=[user("a"), user("b")]),
        pair(prompt_messages=[user("a"), {"role": "assistant", "content": "b"}]),
        pair(prompt_messages=[{"role": "tool", "content": "b"}]),
    ],
}


@pytest.mark.parametrize(("reason", "row"), [(r, row) for r, rows in BAD_ROWS.items() for row in rows])
def test_a_bad_row_is_dropped_under_its_reason_with_its_line(tmp_path, reason, row):
    loaded = load_examples(write(tmp_path / "x.jsonl", [pair(1), row, pair(2)]), kind="preference")
    assert [example.row_id for example in loaded.examples] == ["r1", "r2"]
    assert loaded.report.dropped == {reason: 1}
    assert loaded.report.examples_of_dropped[reason][0].startswith("x.jsonl:2")
    assert (loaded.report.read, loaded.report.kept) == (3, 2)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"row_id": "r1", "chosen', "not JSON"),
        (b"not json", "not JSON"),
        (b'{"n": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"prompt_text": "caf\xe9"}', "not UTF-8"),
        (b'["a", "list"]', "wrong type"),
        (b"3", "wrong type"),
        (json.dumps(pair(chosen_text="\ud800 half")).encode(), "not valid Unicode"),
    ],
)
def test_a_bad_line_is_dropped_under_its_reason_with_its_number(tmp_path, line, reason):
    good = [json.dumps(pair(n)).encode() for n in range(2)]
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n\n".join([good[0], line, good[1]]) + b"\r\n")
    report = load_examples(path, kind="preference").report
    assert report.dropped == {reason: 1}
    assert report.examples_of_dropped[reason][0].startswith("x.jsonl:3")
    assert (report.read, report.kept) == (3, 2)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rejected": "\n\nHuman: Other\n\nAssistant: Go away."}, "prompts differ"),
        ({"rejected": HH["chosen"]}, "chosen equal to rejected"),
        ({"rejected": HH["rejected"] + "\n\nHuman: and?"}, "bad role order"),
        ({"rejected": HH["rejected"].removesuffix("Go away.")}, "empty response"),
        ({"rejected": "Once upon a time"}, "not a transcript"),
        ({name: f"Human: a\n\nHuman: b\n\nAssistant: {name}" for name in HH}, "bad role order"),
    ],
)
def test_a_bad_transcript_is_dropped_under_its_reason(tmp_path, changes, reason):
    report = load_examples(write(tmp_path / "x.jsonl", [HH, {**HH, **changes}]), kind="preference").report
    assert report.dropped == {reason: 1}


def test_every_row_is_kept_dropped_or_left_over(tmp_path):
    rows = [pair(n) for n in range(6)] + [row for rows in BAD_ROWS.values() for row in rows] + [pair(1)]
    report = load_examples(write(tmp_path / "x.jsonl", rows), kind="preference", limit=4).report
    assert report.read == len(rows) == report.kept + sum(report.dropped.values()) + report.not_taken


def test_no_usable_row_is_an_error_that_carries_the_report(tmp_path):
    path = write(tmp_path / "x.jsonl", [pair(1, chosen_text=""), pair(2, chosen_text=...)])
    with pytest.raises(CourseError, match="(?s)no usable row in .*x.jsonl.*empty response.*missing field"):
        load_examples(path, kind="preference")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content"]), inner),
    max_leaves=6,
)
FIELDS = sorted({*HH, *ULTRAFEEDBACK, *COMPLETIONS, *pair(), *TREE[0], "input", "output", "instances"})


@given(st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=7), st.sampled_from(KINDS))
@settings(max_examples=150, deadline=None)
def test_no_row_whatsoever_breaks_a_parser(row, kind):
    for known in FORMATS:
        if known.matches(row) and kind in known.kinds:
            try:
                for example in known.parse(row, "id", kind):
                    assert example.messages[-1]["role"] == "user"
                    assert all(isinstance(text, str) and text.strip() for text in example.responses)
            except RowError as problem:
                assert problem.reason


# Duplicates


def test_exact_duplicates_go_and_repeated_ids_are_counted(tmp_path):
    rows = [pair(1), pair(1), pair(2, row_id="r1"), pair(3), pair(3, row_id="r4", prompt_text="x")]
    report = load_examples(write(tmp_path / "x.jsonl", rows), kind="preference").report
    assert report.dropped == {"exact duplicate row": 1}
    assert report.examples_of_dropped["exact duplicate row"] == ["x.jsonl:2"]
    assert report.duplicates == {"kept with a row_id seen before": 1, "kept with a text seen before": 1}
    assert report.kept == 4


# Files


def test_line_separators_inside_strings_do_not_split_rows(tmp_path):
    text = "one\u2028two\u2029three\x85four\x0bfive"
    example = load_one(tmp_path, pair(chosen_text=text), "preference")
    assert example.responses[0] == text


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.jsonl", "x.json.gz", "x.json"])
def test_gzip_is_recognised_by_its_first_bytes(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(json.dumps(pair()).encode() + b"\n"))
    assert len(load_examples(path, kind="sft").examples) == 1


def test_a_json_list_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps([pair(1), "no", pair(2)], indent=1).encode())
    report = load_examples(path, kind="sft").report
    assert report.kept == 2
    assert report.examples_of_dropped["wrong type"][0].startswith("x.json[1]")
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(pair(1)).encode())
    assert load_examples(path, kind="sft").report.kept == 1


def test_a_truncated_archive_and_a_broken_list_are_refused(tmp_path):
    packed = tmp_path / "x.jsonl.gz"
    packed.write_bytes(gzip.compress(json.dumps(pair()).encode() * 50)[:-20])
    with pytest.raises(CourseError, match="x.jsonl.gz cannot be read"):
        load_examples(packed, kind="sft")
    broken = tmp_path / "x.json"
    broken.write_text("[{}, ")
    with pytest.raises(CourseError, match="x.json is not a JSON list"):
        load_examples(broken, kind="sft")


def test_a_directory_is_read_by_split(tmp_path):
    write(tmp_path / "train_prefs.jsonl", [pair(1)])
    with gzip.open(tmp_path / "test_prefs.jsonl.gz", "wb") as stream:
        stream.write(json.dumps(pair(2)).encode())
    (tmp_path / "README.md").write_text("a data card")
    assert load_examples(tmp_path, split="test_prefs", kind="sft").examples[0].row_id == "r2"
    with pytest.raises(CourseError, match="no split 'dev'; it has: test_prefs, train_prefs"):
        load_examples(tmp_path, split="dev", kind="sft")
    with pytest.raises(CourseError, match="several splits, name one"):
        load_examples(tmp_path, kind="sft")


def test_what_is_nowhere_is_refused(tmp_path):
    with pytest.raises(CourseError, match="missing.jsonl does not exist"):
        load_examples(tmp_path / "missing.jsonl", kind="sft")
    with pytest.raises(CourseError, match="no file ending in"):
        load_examples(tmp_path, split="train", kind="sft")
    (tmp_path / "x.csv").write_text("a,b\n")
    with pytest.raises(CourseError, match="x.csv is none of .jsonl"):
        load_examples(tmp_path / "x.csv", kind="sft")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(CourseError, match="empty.jsonl has no row"):
        load_examples(tmp_path / "empty.jsonl", kind="sft")


# Choosing format, kind and number


def test_the_format_can_be_named(tmp_path):
    row = {
        "instruction": "Hi",
        "output": "A.",
        "messages": [user("Other"), {"role": "assistant", "content": "B."}],
    }
    path = write(tmp_path / "x.jsonl", [row])
    assert load_examples(path, kind="sft").examples[0].responses == ("A.",)
    assert load_examples(path, kind="sft", format="messages").examples[0].responses == ("B.",)
    with pytest.raises(CourseError, match="unknown format 'csv'; known are project, hh"):
        load_examples(path, kind="sft", format="csv")


def test_rows_of_the_majority_decide_the_format(tmp_path):
    path = write(tmp_path / "x.jsonl", [{"prompt": "odd", "completion": "one"}, pair(1), pair(2)])
    report = load_examples(path, kind="preference").report
    assert (report.format, report.dropped) == ("project", {"missing field": 1})


def test_unknown_fields_and_impossible_kinds_say_what_is_known(tmp_path):
    with pytest.raises(
        CourseError, match="fields of .*x.jsonl: colour, size.*Rename.*alpaca: instruction, output"
    ):
        load_examples(write(tmp_path / "x.jsonl", [{"colour": 1, "size": 2}]), kind="sft")
    path = write(tmp_path / "y.jsonl", [{"instruction": "Hi", "output": "A."}])
    with pytest.raises(CourseError, match="format alpaca hold no preference examples, only sft and prompts"):
        load_examples(path, kind="preference")
    with pytest.raises(CourseError, match="kind must be one of preference, sft, prompts, not 'dpo'"):
        load_examples(path, kind="dpo")
    with pytest.raises(CourseError, match="limit must be at least 1"):
        load_examples(path, kind="sft", limit=0)


def test_a_limit_takes_a_seeded_sample_in_order(tmp_path):
    path = write(tmp_path / "x.jsonl", [pair(n) for n in range(50)])
    first, again, other = (load_examples(path, kind="sft", limit=10, seed=s).examples for s in (0, 0, 1))
    numbers = [int(example.row_id[1:]) for example in first]
    assert first == again
    assert first != other
    assert numbers == sorted(numbers)
    assert numbers[-1] > 10, "a sample, not the head"


# The hub


def test_the_hub_offline_is_a_clear_error():
    with pytest.raises(
        CourseError, match="course-kit/no-such-data is no file or directory here, and the hub"
    ):
        load_examples("course-kit/no-such-data", split="train", kind="sft")


def test_hub_rows_go_through_the_same_formats(monkeypatch):
    import datasets

    table = datasets.Dataset.from_list(
        [ULTRAFEEDBACK, {**ULTRAFEEDBACK, "prompt_id": "d", "score_chosen": 1.0}]
    )
    calls = []

    def load_dataset(name, config, split):
        calls.append((name, config, split))
        return table if split else datasets.DatasetDict({"train": table})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    loaded = load_examples("owner/ultra:small", split="train_prefs", kind="preference")
    assert [example.row_id for example in loaded.examples] == ["abc", "d"]
    assert len(load_examples("owner/ultra", kind="preference").examples) == 2
    assert calls == [("owner/ultra", "small", "train_prefs"), ("owner/ultra", None, None)]


# The report


def test_the_report_reads_like_a_report(tmp_path):
    rows = [pair(n) for n in range(8)] + [
        pair(8, chosen_text="x", rejected_text="longer"),
        pair(9, chosen_text=""),
    ]
    path = write(tmp_path / "x.jsonl", [*rows, pair(3)])
    report = load_examples(path, kind="preference").report
    assert report.chosen_longer_share == 8 / 9
    text = report.render()
    for line in (
        "format project, read as preference",
        "rows read                               11",
        "kept                                     9  (81.8%)",
        "dropped                                  2",
        "empty response                         1\n      x.jsonl:10",
        "exact duplicate row                    1\n      x.jsonl:11",
        "length in characters     shortest   median     95 %  longest     mean",
        "chosen is longer than rejected in 88.9% of pairs",
    ):
        assert line in text
    assert max(map(len, text.split("\n")[1:])) <= 110


def test_report_source_guesses_the_kind_and_takes_every_split(tmp_path):
    write(tmp_path / "train_prefs.jsonl", [pair(1)])
    write(tmp_path / "train_gen.jsonl", [{"prompt_messages": [user("Hi")], "reference_response_text": "A."}])
    write(tmp_path / "train_sft.jsonl", [{"prompt_messages": [user("Hi")], "response_text": "A."}])
    write(tmp_path / "odd.jsonl", [{"colour": 1}])
    text = report_source(tmp_path)
    for expected in (
        "read as preference",
        "read as prompts",
        "read as sft",
        "split odd\n  error: no known format",
    ):
        assert expected in text
    assert "read as sft" in report_source(tmp_path, split="train_prefs", kind="sft")
    with pytest.raises(CourseError, match="no known format"):
        report_source(tmp_path / "odd.jsonl")


# Into token ids


@pytest.fixture(scope="module")
def encoder(make_tokenizer):
    return ChatEncoder(make_tokenizer("qwen2"))


def test_examples_become_groups_with_counts(tmp_path, encoder):
    long = "cats and dogs " * 40
    rows = [
        pair(1),
        pair(2, prompt_messages=[user(long)]),
        pair(3, chosen_text=long),
        pair(4, chosen_text=long + "one end", rejected_text=long + "another"),
    ]
    loaded = load_examples(write(tmp_path / "x.jsonl", rows), kind="preference")
    groups, report = encode_groups(
        loaded.examples, encoder, Budget(80, 40), kind="preference", report=loaded.report
    )
    assert [group.row_id for group in groups] == ["r1", "r2", "r3"]
    assert report.dropped == {"equal after truncation": 1}
    assert report.examples_of_dropped == {"equal after truncation": ["r4"]}
    assert (report.read, report.kept, report.truncated_prompts, report.truncated_responses) == (4, 3, 1, 1)
    assert report.unit == "tokens"
    assert report.lengths["prompt"].longest == 80
    assert report.lengths["chosen"].longest == 40
    assert loaded.report.kept == 4, "the report of loading is left as it was"
    assert "responses truncated" in report.render()
    for group in groups:
        chosen, rejected = group.responses
        assert encoder.is_complete(rejected)
        assert encoder.is_complete(chosen) == (group.row_id != "r3")
    pack_groups(groups, encoder.pad_id)


def test_prompts_become_groups_without_responses_one_for_each(tmp_path, encoder):
    loaded = load_examples(write(tmp_path / "x.jsonl", [pair(n) for n in range(3)]), kind="prompts")
    groups, report = encode_groups(loaded.examples, encoder, Budget(), kind="prompts")
    assert [(group.row_id, group.responses) for group in groups] == [("r0", []), ("r1", []), ("r2", [])]
    assert report.kept == report.read == 3


def test_pairs_that_are_equal_once_trimmed_carry_no_signal(tmp_path, make_tokenizer):
    encoder = ChatEncoder(make_tokenizer("llama3"))
    rows = [pair(1), pair(2, chosen_text="Yes.", rejected_text=" Yes.\n")]
    loaded = load_examples(write(tmp_path / "x.jsonl", rows), kind="preference")
    _, report = encode_groups(loaded.examples, encoder, Budget(), kind="preference")
    assert report.dropped == {"equal after truncation": 1}


def test_encoding_refuses_the_wrong_kind_and_an_empty_result(tmp_path, encoder):
    loaded = load_examples(write(tmp_path / "x.jsonl", [pair(1)]), kind="sft")
    with pytest.raises(CourseError, match="row 'r1' has 1 responses; kind 'preference' needs 2"):
        encode_groups(loaded.examples, encoder, Budget(), kind="preference")
    same = load_examples(
        write(tmp_path / "y.jsonl", [pair(1, chosen_text="cats a", rejected_text="cats b")]),
        kind="preference",
    )
    with pytest.raises(CourseError, match="(?s)no usable row is left.*equal after truncation"):
        encode_groups(same.examples, encoder, Budget(max_response_tokens=1), kind="preference")


# Transcripts, any text


@given(st.lists(st.text(alphabet="ab \n:", min_size=1).filter(lambda t: t.strip()), min_size=1, max_size=5))
@settings(max_examples=50, deadline=None)
def test_a_transcript_splits_into_what_it_was_joined_from(contents):
    names = ["Human", "Assistant"] * 3
    text = "".join(f"\n\n{name}: {content.strip()}" for name, content in zip(names, contents, strict=False))
    messages = transcript_messages(text)
    assert [message["content"] for message in messages] == [content.strip() for content in contents]
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant", "user"][
        : len(contents)
    ]


# Real files


def test_real_preferences_and_prompts(real_data):
    directory = real_data / "wildchat_min4_judged_5k_v1"
    pairs = load_examples(directory, split="test_prefs", kind="preference")
    assert (pairs.report.kept, pairs.report.dropped) == (256, {})
    assert 0.4 < pairs.report.chosen_longer_share < 0.6
    assert len(load_examples(directory, split="test_gen", kind="prompts").examples) == 256
    public = real_data / "public_eval"
    prompts = load_examples(public, split="public_test_gen_prompts_128", kind="prompts")
    assert len({example.row_id for example in prompts.examples}) == 128
    assert load_examples(public, split="public_test_prefs_256", kind="preference").report.kept == 256


def test_real_transcripts_and_seed_tasks(real_data):
    report = load_examples(
        real_data / "hh_rlhf" / "harmless-base_test_sample.jsonl.gz", kind="preference"
    ).report
    assert (report.read, report.kept, report.format) == (300, 299, "hh")
    assert report.dropped == {"prompts differ": 1}
    seeds = load_examples(real_data / "alpaca" / "seed_tasks.jsonl", kind="sft")
    assert (seeds.report.format, len(seeds.examples)) == ("seed_tasks", 175)


def test_real_texts_survive_encoding(real_data, make_tokenizer):
    encoder = ChatEncoder(make_tokenizer("qwen2"))
    path = real_data / "hh_rlhf" / "harmless-base_test_sample.jsonl.gz"
    loaded = load_examples(path, kind="preference", limit=60)
    groups, report = encode_groups(
        loaded.examples, encoder, Budget(), kind="preference", report=loaded.report
    )
    texts = {example.row_id: example.responses for example in loaded.examples}
    for group in groups:
        for ids, text in zip(group.responses, texts[group.row_id], strict=True):
            decoded = encoder.decode(ids)
            assert decoded == text if encoder.is_complete(ids) else text.startswith(decoded.rstrip("\ufffd"))
    assert report.kept + sum(report.dropped.values()) == 60 + sum(loaded.report.dropped.values())
