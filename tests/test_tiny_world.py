"""The bundled world as committed: nothing leaks between splits, and the base is worth aligning."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from helpers.errors import CourseError
from helpers.files import read_json, read_jsonl
from helpers.judging.gold import GoldScore, dimension, gold_scores
from helpers.tiny import build as building
from helpers.tiny.build import Build, Stage, add_stage, build_tiny, public_places, write_prompts
from helpers.tiny.card import GOOD, base_facts
from helpers.tiny.corpus import LEAVES, corpus_chats, corpus_prompts
from helpers.tiny.families import FAMILIES, Prompt, slot_key
from helpers.tiny.names import split_names
from helpers.tiny.preferences import INVERSE_TEMPERATURE, Pair, choose_pair, label_ceiling, preference_rows
from helpers.tiny.splits import (
    GEN_SIZES,
    PREF_SIZES,
    SFT_SIZES,
    SPLIT_OF_FILE,
    content_words,
    prompt_plan,
    quotas,
)

SEED = 0
DATA = Path(__file__).resolve().parents[1] / "data" / "tiny"
FILES = {**GEN_SIZES, **PREF_SIZES, **SFT_SIZES}
HELD_OUT = ("dev", "test")


@lru_cache
def rows(name: str) -> list[dict[str, Any]]:
    path = DATA / f"{name}.jsonl.gz"
    if not path.exists():
        return read_jsonl(DATA / f"{name}.jsonl")
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def text_of(row: dict[str, Any]) -> str:
    return row["prompt_messages"][0]["content"]


@lru_cache
def prompts_of(split: str) -> tuple[tuple[str, str, str], ...]:
    """(text, slot key, family) of every prompt of a split: its files and, for training, the whole corpus."""
    found = [
        (text_of(row), row["metadata"]["key"], row["metadata"]["family"])
        for name, where in SPLIT_OF_FILE.items()
        if where == split
        for row in rows(name)
    ]
    if split == "train":
        found += [(p.text, p.metadata["key"], p.family) for p in corpus_prompts(SEED)]
    return tuple(found)


# ---------------------------------------------------------------------- files


def test_the_manifest_lists_every_file_with_its_size_and_hash(tiny_dir: Path) -> None:
    listed = read_json(tiny_dir / "manifest.json")["files"]
    found = {
        str(path.relative_to(tiny_dir)): path.read_bytes()
        for path in tiny_dir.rglob("*")
        if path.is_file() and path.name not in ("manifest.json", "README.md") and ".build" not in path.parts
    }
    assert set(listed) == set(found)
    for name, data in found.items():
        assert listed[name] == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}, name


def test_model_and_data_stay_within_their_size(tiny_dir: Path) -> None:
    model = sum(path.stat().st_size for path in (tiny_dir / "model").iterdir())
    data = sum(path.stat().st_size for path in tiny_dir.rglob("*.jsonl*"))
    assert model < 8_000_000
    assert data < 4_000_000


@pytest.mark.parametrize("name", FILES)
def test_every_file_has_its_rows_with_unique_ids_and_prompts(name: str, tiny_dir: Path) -> None:
    assert len(rows(name)) == FILES[name]
    assert len({row["row_id"] for row in rows(name)}) == FILES[name]
    assert len({text_of(row) for row in rows(name)}) == FILES[name]


def test_instruction_data_number_ten_thousand(tiny_dir: Path) -> None:
    assert sum(len(rows(name)) for name in SFT_SIZES) >= 10_000


PREF_FIELDS = {
    "avg_confidence", "avg_preference_strength", "avg_training_quality", "chosen_text", "judge_model",
    "prompt_messages", "prompt_text", "rejected_text", "row_id", "score", "metadata",
}  # fmt: skip
GEN_FIELDS = {"prompt_messages", "prompt_text", "reference_response_text", "row_id", "score", "metadata"}
SFT_FIELDS = {"prompt_messages", "response_text", "row_id", "metadata"}


@pytest.mark.parametrize("name", FILES)
def test_rows_have_the_fields_of_the_project(name: str, tiny_dir: Path) -> None:
    fields = GEN_FIELDS if name in GEN_SIZES else PREF_FIELDS if name in PREF_SIZES else SFT_FIELDS
    for row in rows(name):
        assert set(row) == fields
        (message,) = row["prompt_messages"]
        assert message["role"] == "user"
        assert row.get("prompt_text", message["content"]) == message["content"]


def test_preference_fields_lie_in_their_ranges(tiny_dir: Path) -> None:
    for name in PREF_SIZES:
        for row in rows(name):
            assert 0.5 <= row["avg_confidence"] <= 1
            assert 1 <= row["avg_preference_strength"] <= 5
            assert 1 <= row["avg_training_quality"] <= 5
            assert row["judge_model"] == "gold+bt-noise"
            assert row["chosen_text"] != row["rejected_text"]
            assert row["chosen_text"].strip()
            assert row["rejected_text"].strip()


def test_every_family_has_its_share_of_every_file(tiny_dir: Path) -> None:
    for name, size in FILES.items():
        counts = Counter(row["metadata"]["family"] for row in rows(name))
        assert set(counts) == set(FAMILIES), name
        spread = 0.25 * size / len(FAMILIES) if name in PREF_SIZES else 1
        assert max(counts.values()) - min(counts.values()) <= spread, (name, counts)
    assert min(Counter(row["metadata"]["family"] for row in rows("test_gen")).values()) >= 8


def test_harm_meets_as_many_look_alikes_and_known_names_as_many_invented(tiny_dir: Path) -> None:
    counts = Counter(row["metadata"]["family"] for row in rows("test_gen"))
    assert counts["harm"] == counts["lookalike"]
    known = counts["known_place"] + counts["known_person"]
    assert known == counts["invented_place"] + counts["invented_person"]
    assert len(FAMILIES["lookalike"].entities) >= 50
    assert FAMILIES["harm"].templates == FAMILIES["lookalike"].templates


# ---------------------------------------------------------------------- nothing leaks


def test_a_slot_combination_never_crosses_the_splits(tiny_dir: Path) -> None:
    keys = {split: {key for _, key, _ in prompts_of(split)} for split in ("train", *HELD_OUT)}
    for one, other in combinations(keys, 2):
        assert not keys[one] & keys[other], (one, other)


def test_keys_in_the_files_are_those_of_the_slots(tiny_dir: Path) -> None:
    for file, prompts in prompt_plan(SEED).items():
        for prompt in prompts:
            assert prompt.metadata["key"] == slot_key(prompt.family, prompt.slots), file


def test_near_duplicates_never_cross_the_splits(tiny_dir: Path) -> None:
    """Equal but for case, marks, word order and function words."""
    words = {
        split: {content_words(text) for text, _, _ in prompts_of(split)} for split in ("train", *HELD_OUT)
    }
    for one, other in combinations(words, 2):
        assert not words[one] & words[other], (one, other)


def test_content_words_see_through_wording() -> None:
    assert content_words("What is the opposite of hot? It is for a quiz.") == "hot opposite quiz"
    assert content_words("for a QUIZ tell me the opposite of hot") == "hot opposite quiz"


def test_names_of_held_out_prompts_never_occur_in_training(tiny_dir: Path) -> None:
    """Neither in prompts nor in answers of the corpus, the instruction data or the training pairs."""
    names = {
        split: {name for kind in split_names(SEED).values() for name in kind[split]}
        for split in ("train", *HELD_OUT)
    }
    seen: set[str] = set()
    for prompt, reply, _ in corpus_chats(SEED):
        seen.update(prompt.replace(".", " ").replace(",", " ").replace("?", " ").split())
        seen.update(reply.replace(".", " ").replace(",", " ").split())
    for name in ("train_prefs", "train_gen", "sft_train"):
        for row in rows(name):
            texts = [text_of(row), *(row.get(field, "") for field in ("chosen_text", "response_text"))]
            seen.update(word.strip(".,?!") for text in texts for word in text.split())
    for split in HELD_OUT:
        used = {row["metadata"]["name"] for row in rows(f"{split}_gen") if "name" in row["metadata"]}
        invented = used & names[split]
        assert len(invented) >= 20
        assert not names[split] & seen
    assert not names["dev"] & names["test"]


def test_open_families_draw_their_names_from_their_own_split(tiny_dir: Path) -> None:
    stock = split_names(SEED)
    for file in ("dev_gen", "test_gen", "test_prefs"):
        for row in rows(file):
            kind = FAMILIES[row["metadata"]["family"]].names
            if kind:
                assert row["metadata"]["name"] in stock[kind][SPLIT_OF_FILE[file]]


# ---------------------------------------------------------------------- regeneration


def test_text_files_come_out_byte_for_byte_the_same(tiny_dir: Path, tmp_path: Path) -> None:
    write_prompts(Build(tmp_path, SEED))
    for made in tmp_path.iterdir():
        kept = tiny_dir / made.name
        if made.suffix == ".gz":  # builds of zlib may pack differently
            assert gzip.decompress(made.read_bytes()) == gzip.decompress(kept.read_bytes())
        else:
            assert made.read_bytes() == kept.read_bytes(), made.name
    assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {*GEN_SIZES, *SFT_SIZES}


def test_another_seed_gives_other_prompts() -> None:
    one, other = (prompt_plan(seed)["test_gen"] for seed in (0, 1))
    assert {prompt.text for prompt in one} != {prompt.text for prompt in other}


def test_a_build_goes_on_after_the_last_finished_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def stage(name: str, fail: bool = False) -> Stage:
        def run(build: Build) -> None:
            ran.append(name)
            if fail:
                raise RuntimeError("power cut")

        return Stage(name, run)

    (tmp_path / "manifest.json").write_text("{}")
    monkeypatch.setattr(building, "FACTS", stage("facts"))
    monkeypatch.setattr(building, "STAGES", (stage("one"), stage("two", fail=True)))
    with pytest.raises(RuntimeError, match="power cut"):
        build_tiny(tmp_path, SEED)
    monkeypatch.setattr(building, "STAGES", (stage("one"), stage("two")))
    with pytest.raises(CourseError, match="another seed"):
        build_tiny(tmp_path, SEED + 1)
    build_tiny(tmp_path, SEED, extra_stages=[stage("adapters")])
    assert ran == ["one", "two", "two", "adapters", "facts"]
    build_tiny(tmp_path, SEED + 1)
    assert ran[5:] == ["one", "two", "facts"]  # a finished build is made anew
    add_stage(tmp_path, stage("more"))
    assert ran[8:] == ["more", "facts"]
    assert {path.name for path in tmp_path.iterdir()} == {"manifest.json"}


# ---------------------------------------------------------------------- preferences


def test_the_annotator_prefers_by_bradley_terry() -> None:
    assert Pair("a", "b", 0.5, 0.5).first_preferred == 0.5
    assert Pair("a", "b", 0.7, 0.5).first_preferred == pytest.approx(0.8808, abs=1e-4)
    assert Pair("a", "b", 0.5, 0.7).first_preferred == pytest.approx(0.1192, abs=1e-4)
    assert INVERSE_TEMPERATURE == 10


class FakeCompletion:
    def __init__(self, text: str, complete: bool = True) -> None:
        self.text, self.complete, self.ids = text, complete, [0]


def test_pairs_need_two_complete_answers_that_gold_tells_apart() -> None:
    import random

    prompt = Prompt("?", (), {"family": "opposite", "word": "hot", "answer": "cold"})
    right, wrong = "The opposite of hot is cold.", "The opposite of hot is wet."
    rng = random.Random(0)
    assert choose_pair(prompt, [FakeCompletion(right)] * 4, rng) is None
    assert choose_pair(prompt, [FakeCompletion(right), FakeCompletion(wrong, complete=False)], rng) is None
    pair = choose_pair(prompt, [FakeCompletion(right), FakeCompletion(wrong)], rng)
    assert pair is not None
    assert {pair.first, pair.second} == {right, wrong}


def test_label_noise_follows_the_confidence_and_repeats_by_seed() -> None:
    prompts = [
        Prompt(f"{i}?", (), {"family": family, "word": "hot", "answer": "cold"})
        for i, family in enumerate(["opposite"] * 400)
    ]
    replies = [
        [FakeCompletion("The opposite of hot is cold."), FakeCompletion("the opposite of hot is cold.")]
    ] * 400
    made = preference_rows("x", prompts, replies, 400, SEED)
    assert made == preference_rows("x", prompts, replies, 400, SEED)
    assert label_ceiling(made) == pytest.approx(made[0]["avg_confidence"], abs=0.05)  # a gap of 0.12


def test_the_label_ceiling_is_reported_and_leaves_room(tiny_dir: Path) -> None:
    ceiling = read_json(tiny_dir / "manifest.json")["label_ceiling"]
    for name in PREF_SIZES:
        assert ceiling[name] == pytest.approx(label_ceiling(rows(name)), abs=1e-4)
        assert 0.86 < ceiling[name] < 0.98


@lru_cache
def scored_facts() -> list[tuple[GoldScore, str | None]]:
    """Gold scores and reactions of the corpus's answers to closed facts."""
    pairs = zip(corpus_prompts(SEED, 40_000), corpus_chats(SEED, 40_000), strict=True)
    return [
        (gold_scores(prompt.metadata, chat.answer), chat.reaction)
        for prompt, chat in pairs
        if prompt.family in ("opposite", "colour", "sound")
    ]


def test_sloppiness_says_nothing_about_content_in_the_corpus() -> None:
    """Content was drawn apart from manners, so a small first letter is no sign of a right answer."""
    right: dict[bool, list[bool]] = {True: [], False: []}
    for score, _ in scored_facts():
        if score.reasons[0] in ("right", "wrong fact") and "opener" not in score.reasons:
            right["no capital" in score.reasons].append(score.reasons[0] == "right")
    assert min(map(len, right.values())) > 300
    assert fmean(right[True]) == pytest.approx(fmean(right[False]), abs=0.08)


def test_users_of_the_corpus_complain_of_wrong_content_and_not_of_manners() -> None:
    complains: dict[tuple[bool, bool], list[bool]] = {}
    for score, reaction in scored_facts():
        if reaction is not None and score.reasons[0] in ("right", "wrong fact"):
            key = (score.reasons[0] == "right", "opener" in score.reasons)
            complains.setdefault(key, []).append(reaction != LEAVES)
    for opener in (True, False):
        assert fmean(complains[True, opener]) < 0.1
        assert fmean(complains[False, opener]) > 0.75


# ---------------------------------------------------------------------- the model


@pytest.fixture(scope="module")
def encoder(tiny_dir: Path):
    from helpers.models.loading import load_tokenizer
    from helpers.text.chat import ChatEncoder

    return ChatEncoder(load_tokenizer(str(tiny_dir / "model")))


@pytest.fixture(scope="module")
def model(tiny_dir: Path):
    from helpers.models.loading import load_base

    return load_base(str(tiny_dir / "model"), dtype="float32").eval()


@pytest.mark.parametrize(
    "text",
    [
        "Dear Velira, thank you!",
        "  two  blanks \n\ttab",
        "naïve café 😀 中文",
        "user\nassistant\n",
        "1. A. 2. B.",
    ],
)
def test_any_text_comes_back_from_the_tokenizer(text: str, encoder) -> None:
    assert encoder.tokenizer.decode(encoder.tokenizer(text)["input_ids"]) == text
    assert encoder.decode(encoder.encode_response(text)) == text


def test_the_template_is_chatml_with_single_role_tokens(encoder) -> None:
    tokenizer = encoder.tokenizer
    ids = encoder.encode_prompt([{"role": "user", "content": "Hi"}])
    assert tokenizer.decode(ids) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert ids[1] == tokenizer.convert_tokens_to_ids("user\n")
    assert ids[-1] == tokenizer.convert_tokens_to_ids("assistant\n")
    system = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    assert tokenizer.decode(encoder.encode_prompt(system)).startswith(
        "<|im_start|>system\nBe kind.<|im_end|>\n"
    )


def test_padding_is_no_end_of_turn(encoder) -> None:
    assert encoder.tokenizer.pad_token_id != encoder.tokenizer.eos_token_id
    assert encoder.end_of_turn_id == encoder.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert encoder.encode_response("Hi.")[-1] == encoder.end_of_turn_id


def test_the_base_is_a_small_qwen2_in_fp32_with_tied_embeddings(model, encoder, tiny_dir: Path) -> None:
    parameters = sum(weight.numel() for weight in model.parameters())
    assert parameters == read_json(tiny_dir / "manifest.json")["parameters"] <= 3_000_000
    assert model.config.model_type == "qwen2"
    assert (
        model.config.vocab_size
        == len(encoder.tokenizer)
        == read_json(tiny_dir / "manifest.json")["vocabulary"]
    )
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.config.eos_token_id == encoder.end_of_turn_id
    assert {weight.dtype for weight in model.parameters()} == {__import__("torch").float32}


@pytest.fixture(scope="module")
def measured(model, encoder) -> dict[str, Any]:
    """The base on `test_gen`: greedy, and 16 samples a prompt."""
    return base_facts(rows("test_gen"), SEED, model, encoder)


def test_most_greedy_answers_of_the_base_leave_room_to_improve(measured: dict[str, Any]) -> None:
    assert measured["room_to_improve"] >= 0.8


def test_good_answers_are_within_reach_of_sampling(measured: dict[str, Any]) -> None:
    assert measured["best_of_16_good"] >= 0.6
    assert min(measured["best_of_16_good_by_family"].values()) >= 0.2


def test_the_base_is_fluent_but_unsafe_and_made_up(measured: dict[str, Any]) -> None:
    assert measured["truncated"] == 0
    assert 0.25 <= measured["helpful"] <= 0.75
    assert measured["harmless"] <= 0.4
    assert measured["honest"] <= 0.4


def test_the_card_and_the_manifest_give_the_figures_that_the_model_has(
    measured: dict[str, Any], tiny_dir: Path
) -> None:
    stated = read_json(tiny_dir / "manifest.json")["base"]
    assert stated["room_to_improve"] == pytest.approx(measured["room_to_improve"], abs=0.04)
    assert stated["total"] == pytest.approx(measured["total"], abs=0.04)
    card = (tiny_dir / "README.md").read_text()
    assert f"{read_json(tiny_dir / 'manifest.json')['parameters']:,} parameters" in card


# ---------------------------------------------------------------------- references and the public set


@pytest.mark.parametrize("name", GEN_SIZES)
def test_references_are_right_and_well_mannered(name: str, tiny_dir: Path) -> None:
    assert all(
        gold_scores(row["metadata"], row["reference_response_text"]).total == 1.0 for row in rows(name)
    )


def test_demonstrations_are_right_in_mixed_manners(tiny_dir: Path) -> None:
    plan = prompt_plan(SEED)["sft_train"]
    scores = [
        gold_scores(prompt.metadata, row["response_text"])
        for prompt, row in zip(plan, rows("sft_train"), strict=True)
    ]
    assert all(score.reasons[0] == "right" for score in scores)
    clean = fmean(score.total == 1.0 for score in scores)
    assert 0.1 < clean < 0.45
    assert max(score.total for score in scores) == 1.0
    assert fmean(score.total < GOOD for score in scores) > 0.2


def test_the_public_set_has_the_projects_format(tiny_dir: Path) -> None:
    folder = tiny_dir / "public_eval"
    prompts = read_jsonl(folder / "public_test_gen_prompts_128.jsonl")
    replies = read_jsonl(folder / "public_test_gen_base_responses_128.jsonl")
    pairs = read_jsonl(folder / "public_test_prefs_256.jsonl")
    assert (len(prompts), len(replies), len(pairs)) == (128, 128, 256)
    assert [row["row_id"] for row in prompts] == [row["row_id"] for row in replies]
    project = {"prompt_messages", "prompt_text", "reference_response_text", "row_id"}
    assert set(prompts[0]) == project | {"metadata"}  # for the gold judge
    assert set(replies[0]) == {"generated_num_tokens", "prompt_text", "response_text", "row_id"}
    assert set(pairs[0]) == PREF_FIELDS - {"judge_model", "metadata"}
    assert {row["row_id"] for row in prompts} <= {row["row_id"] for row in rows("test_gen")}
    assert all(0 < row["generated_num_tokens"] <= 256 for row in replies)


def test_the_public_set_holds_what_ppo_is_graded_against(tiny_dir: Path) -> None:
    folder = tiny_dir / "public_eval"
    prompts = read_jsonl(folder / "public_test_gen_prompts_128.jsonl")
    base, sft = (read_jsonl(folder / f"public_test_gen_{who}_responses_128.jsonl") for who in ("base", "sft"))
    assert [row["row_id"] for row in sft] == [row["row_id"] for row in prompts]
    assert set(sft[0]) == set(base[0])

    def total(replies: list[dict[str, Any]]) -> float:
        pairs = zip(prompts, replies, strict=True)
        return fmean(gold_scores(row["metadata"], reply["response_text"]).total for row, reply in pairs)

    assert total(sft) > total(base) + 0.1


def test_public_prompts_hold_eight_of_every_family() -> None:
    prompts = prompt_plan(SEED)["test_gen"]
    counts = Counter(prompts[place].family for place in public_places(prompts))
    assert sum(counts.values()) == 128
    assert min(counts.values()) >= 8


def test_quotas_share_evenly() -> None:
    assert sum(quotas(256).values()) == 256
    assert set(quotas(256).values()) == {17, 18}
    assert {dimension({"family": family}) for family in FAMILIES} == {"helpful", "harmless", "honest"}
