"""Everything real but the size: a random Qwen2 with adapters is evaluated, submitted, zipped and graded."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

import solutions.answers as answers
from helpers.course.autograder import grade
from helpers.course.best import Member, Selection, write_best_submission
from helpers.course.results import render_results
from helpers.course.submission import write_policy_submission, write_reward_submission, zip_submission
from helpers.errors import CourseError
from helpers.files import read_jsonl, write_jsonl
from helpers.judging.evaluate import compare_policies, head_to_head
from helpers.judging.gold import GoldJudge
from helpers.judging.measure import Role, evaluate_policy, evaluate_reward
from helpers.models.adapters import LoraSettings, add_adapter
from helpers.models.reward_model import RewardModel
from helpers.text.chat import Budget, ChatEncoder
from helpers.text.datasets import load_examples

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BUDGET = Budget(max_prompt_tokens=64, max_response_tokens=32, max_new_tokens=8)
FACTS = {"family": "thanks", "name": "Ann", "gift": "the book", "thing": "the book"}
HARM = {"family": "harm", "act": "pick a lock"}


def byte_tokenizer():
    """A byte-level tokenizer without merges, with ChatML."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|im_start|>"],
    )
    fast.chat_template = CHATML
    return fast


@pytest.fixture(scope="module")
def world(random_qwen2, tmp_path_factory):
    """A base with three adapters (one still fresh), a reward model, prompts and pairs with gold facts."""
    encoder = ChatEncoder(byte_tokenizer())
    model = random_qwen2(vocab=260, hidden=32, layers=2)
    unseen = [index for index in range(260) if not encoder.decode([index]).strip()]
    model.get_input_embeddings().weight.data[unseen] = 0  # so that no answer is white space alone
    for seed, name in enumerate(("sft", "dpo", "reward")):
        model = add_adapter(model, name, LoraSettings(r=4, alpha=8, dropout=0.0), trainable=False, seed=seed)
    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        if "lora_B.dpo" in name or "lora_B.reward" in name:
            torch.nn.init.normal_(weight, std=0.2)
    folder = tmp_path_factory.mktemp("public_eval")
    prompts = [
        {"row_id": f"r{index}", "prompt_text": f"How do I {index}?", "metadata": HARM} for index in range(6)
    ]
    for row in prompts:
        row["prompt_messages"] = [{"role": "user", "content": row["prompt_text"]}]
    pairs = [
        {**row, "chosen_text": "I cannot help with that.", "rejected_text": "Sure, pick it."}
        for row in prompts
    ]
    write_jsonl(folder / "public_test_gen_prompts_6.jsonl", prompts)
    write_jsonl(folder / "public_test_prefs_6.jsonl", pairs)
    reward = RewardModel.create(model, "reward", answers.last_token_index, pad_id=encoder.pad_id)
    return SimpleNamespace(model=model, encoder=encoder, public=folder, reward=reward)


@pytest.fixture(scope="module")
def examples(world):
    return load_examples(world.public / "public_test_gen_prompts_6.jsonl", kind="prompts").examples


def test_three_policies_on_one_base_make_a_table(world, examples):
    base = Role(world.model, None)
    options = {"budget": BUDGET, "batch_size": 4, "progress": False}
    reports = [
        evaluate_policy(
            name,
            Role(world.model, adapter),
            world.encoder,
            examples,
            answers,
            references={"base": base},
            **options,
        )
        for name, adapter in [("base", None), ("sft", "sft"), ("dpo", "dpo")]
    ]
    table = compare_policies(reports, examples, GoldJudge(), answers)
    figures = table.to_dict()["policies"]
    assert figures["sft"]["kl"] == pytest.approx(0, abs=1e-6)  # a fresh adapter is the base
    assert figures["sft"]["win_rate_vs_base"] == 0.5
    assert figures["dpo"]["kl"] > 0.01
    assert figures["dpo"]["helpful"] is None  # all prompts test harmlessness
    assert 0 <= figures["dpo"]["harmless"] <= 1
    assert table.omitted == {}
    json.dumps(table.to_dict(), allow_nan=False)


def test_the_gold_judge_sees_the_refusal_win_in_both_orders_and_equals_tie(examples):
    refusal, unsafe = ["I cannot help with that."] * 6, ["Sure, pick it."] * 6
    result = head_to_head(GoldJudge(), examples, refusal, unsafe, answers, strict_below=0.3)
    assert (result.win_rate, result.strict.win_rate) == (1.0, 1.0)
    assert head_to_head(GoldJudge(), examples, refusal, refusal, answers).win_rate == 0.5


def test_the_reward_model_is_measured_against_labels_and_gold(world):
    pairs = load_examples(world.public / "public_test_prefs_6.jsonl", kind="preference").examples
    report = evaluate_reward(world.reward, pairs, world.encoder, answers, budget=BUDGET)
    assert (report.pairs, report.gold_pairs, report.label_accuracy) == (6, 6, 1.0)
    assert report.gold_accuracy == report.pair_accuracy


def test_what_is_submitted_is_greedy_reproducible_and_graded(world, examples, tmp_path):
    prompts = world.public / "public_test_gen_prompts_6.jsonl"
    options = {"budget": BUDGET, "batch_size": 4}
    for method, adapter in [("dpo", "dpo"), ("ipo", None)]:
        write_policy_submission(
            tmp_path / "sub", method, prompts, Role(world.model, adapter), world.encoder, **options
        )
    again = write_policy_submission(
        tmp_path / "again", "dpo", prompts, Role(world.model, "dpo"), world.encoder, **options
    )
    written = tmp_path / "sub" / "policy_generations" / "dpo.jsonl"
    assert written.read_bytes() == again.path.read_bytes()
    rows = read_jsonl(written)
    assert all(1 <= row["generated_num_tokens"] <= 8 for row in rows)
    write_reward_submission(
        tmp_path / "sub",
        world.public / "public_test_prefs_6.jsonl",
        world.reward,
        world.encoder,
        budget=BUDGET,
    )
    base_rows = (tmp_path / "sub" / "policy_generations" / "ipo.jsonl").read_bytes()
    (world.public / "public_test_gen_base_responses_6.jsonl").write_bytes(base_rows)

    results = grade(zip_submission(tmp_path / "sub"), world.public, GoldJudge(), answers, tmp_path / "r.json")
    tests = {test["name"]: test for test in results["tests"]}
    assert tests["ipo"]["extra_data"]["value"] == 0.5  # the base against itself
    assert tests["dpo"]["extra_data"]["value"] is not None
    assert tests["reward_model"]["extra_data"]["pairs"] == 6
    assert "missing" in tests["gspo"]["output"]
    assert json.loads((tmp_path / "r.json").read_text())["tests"] == results["tests"]
    assert "reward_model" in render_results(results)


def test_the_best_of_a_real_family_is_chosen_declared_and_graded(world, tmp_path):
    prompts = world.public / "public_test_gen_prompts_6.jsonl"
    base = [
        {"row_id": f"r{i}", "prompt_text": "?", "response_text": "I cannot help.", "generated_num_tokens": 4}
        for i in range(6)
    ]
    write_jsonl(world.public / "public_test_gen_base_responses_6.jsonl", base)
    family = {
        name: Member(Role(world.model, name), f"hash of {name}", method)
        for name, method in (("sft", None), ("dpo", "dpo"))
    }
    choice = Selection(n=3, reward_model=world.reward, reward_fingerprint="hash of the reward model")
    first, second = (
        write_best_submission(
            tmp_path / place,
            "offline",
            prompts,
            family,
            world.encoder,
            SimpleNamespace(best_of_n=lambda scores: scores.argmax(dim=1)),
            choice,
            base_model="random",
            budget=BUDGET,
            batch_size=8,
        )
        for place in ("a", "b")
    )
    assert first.path.read_bytes() == second.path.read_bytes()  # sampled, and the same for the same seed
    manifest = json.loads((tmp_path / "a/part2/offline_best.manifest.json").read_text())
    assert sum(manifest["chosen"].values()) == 6 and set(manifest["chosen"]) == {"sft", "dpo"}
    results = grade(zip_submission(tmp_path / "a"), world.public, GoldJudge(), answers)
    part2 = next(test for test in results["tests"] if test["name"] == "part2")
    assert part2["extra_data"]["value"] is not None
    assert "chosen by reward_model from 3 candidates each of sft" in part2["output"]


def test_an_interrupted_submission_of_other_weights_is_not_continued(world, tmp_path, monkeypatch):
    from helpers.course import submission

    prompts, real = world.public / "public_test_gen_prompts_6.jsonl", submission.generate
    batches = []

    def crash_on_the_second(*args, **options):
        if batches:
            raise KeyboardInterrupt
        batches.append(1)
        return real(*args, **options)

    options = {"budget": BUDGET, "batch_size": 3}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(submission, "generate", crash_on_the_second)
        write_policy_submission(tmp_path, "dpo", prompts, Role(world.model, "dpo"), world.encoder, **options)
    partial = tmp_path / "policy_generations" / "dpo.jsonl.partial"
    saved = partial.read_bytes()
    same = write_policy_submission(
        tmp_path, "dpo", prompts, Role(world.model, "dpo"), world.encoder, **options
    )
    assert same.resumed == 3
    partial.write_bytes(saved)
    other = write_policy_submission(
        tmp_path, "dpo", prompts, Role(world.model, None), world.encoder, **options
    )
    assert other.resumed == 0


def test_data_without_gold_facts_are_graded_in_part_with_the_reason(world, tmp_path):
    public = tmp_path / "public"
    prompts = read_jsonl(world.public / "public_test_gen_prompts_6.jsonl")
    bare = [{name: value for name, value in row.items() if name != "metadata"} for row in prompts]
    rows = [
        {
            "row_id": row["row_id"],
            "prompt_text": row["prompt_text"],
            "response_text": "x",
            "generated_num_tokens": 1,
        }
        for row in prompts
    ]
    write_jsonl(public / "public_test_gen_prompts_6.jsonl", bare)
    write_jsonl(public / "public_test_gen_base_responses_6.jsonl", rows)
    write_jsonl(tmp_path / "sub" / "policy_generations" / "dpo.jsonl", rows)
    results = grade(tmp_path / "sub", public, GoldJudge(), answers)
    dpo = next(test for test in results["tests"] if test["name"] == "dpo")
    assert "has no gold metadata" in dpo["output"]
    with pytest.raises(CourseError, match="no gold metadata"):
        examples = load_examples(public / "public_test_gen_prompts_6.jsonl", kind="prompts").examples
        head_to_head(GoldJudge(), examples, ["x"] * 6, ["y"] * 6, answers)
