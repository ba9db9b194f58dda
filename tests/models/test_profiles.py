"""Which profile a machine gets, why, and what the flag and the environment change."""

import dataclasses
import json

import pytest

from helpers.errors import CourseError
from helpers.models.hardware import Hardware
from helpers.models.profiles import PROFILES, describe_profiles, fits, pick_profile
from helpers.training.configs import OnlineConfig, PreferenceConfig, RewardConfig, SFTConfig, resolve
from helpers.training.ppo_config import PPOConfig

T4 = Hardware("cuda", "Tesla T4", (7, 5), 14.7, 2, False, 1)
L4 = Hardware("cuda", "NVIDIA L4", (8, 9), 22.2, 12, False, 1)
A100 = Hardware("cuda", "NVIDIA A100-SXM4-40GB", (8, 0), 39.6, 12, False, 1)
OLD_GPU = Hardware("cuda", "GeForce GTX 960", (5, 2), 4.0, 4, False, 1)
CPU = Hardware("cpu", "CPU x86_64", None, 12.7, 2, False, 0)
MPS = Hardware("mps", "Apple GPU", None, 16, 8, False, 1)


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch):
    monkeypatch.delenv("COURSE_PROFILE", raising=False)


@pytest.mark.parametrize(
    ("hardware", "name", "dtype"),
    [
        (T4, "colab", "float16"),
        (L4, "colab", "bfloat16"),
        (A100, "colab", "bfloat16"),
        (OLD_GPU, "tiny", "float32"),
        (CPU, "tiny", "float32"),
        (MPS, "tiny", "float32"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_automatic_choice(hardware, name, dtype):
    profile = pick_profile(hardware=hardware)
    assert (profile.name, profile.dtype) == (name, dtype)
    assert hardware.name in profile.reason
    assert "default" in profile.reason or "needs" in profile.reason


def test_flag_wins_over_variable_which_wins_over_the_automatic_choice(monkeypatch):
    monkeypatch.setenv("COURSE_PROFILE", "smol")
    by_variable, by_flag = pick_profile(hardware=T4), pick_profile("tiny", T4)
    assert by_variable.name == "smol"
    assert "COURSE_PROFILE" in by_variable.reason
    assert by_flag.name == "tiny"
    assert "--profile" in by_flag.reason


def test_an_unknown_name_is_refused_and_says_where_it_came_from(monkeypatch):
    with pytest.raises(CourseError, match="--profile.*'big'.*tiny, smol, colab, qlora_7b"):
        pick_profile("big", CPU)
    monkeypatch.setenv("COURSE_PROFILE", "huge")
    with pytest.raises(CourseError, match="COURSE_PROFILE.*'huge'"):
        pick_profile(hardware=CPU)


def test_a_named_profile_that_hardly_runs_here_says_so():
    assert "note: needs about" in pick_profile("qlora_7b", CPU).reason
    assert "with care" in pick_profile("qlora_7b", T4).reason
    assert "note" not in pick_profile("qlora_7b", A100).reason


@pytest.mark.parametrize(
    ("name", "hardware", "status"),
    [
        ("tiny", CPU, "yes"),
        ("smol", CPU, "yes"),
        ("colab", T4, "yes"),
        ("qlora_7b", T4, "tight"),
        ("qlora_7b", L4, "yes"),
        ("colab", MPS, "no"),
        ("colab", OLD_GPU, "no"),
        ("colab", dataclasses.replace(CPU, memory_gib=64), "slow"),
    ],
)
def test_what_fits_where(name, hardware, status):
    assert fits(name, hardware)[0] == status


def test_the_paged_optimiser_is_for_gpus_only():
    assert pick_profile("qlora_7b", L4).optim == "paged_adamw_8bit"
    assert pick_profile("qlora_7b", CPU).optim == "adamw_torch"


def test_the_table_has_a_row_for_every_profile_and_its_precision_on_this_machine():
    table = describe_profiles(T4)
    assert all(profile.model_name in table for profile in PROFILES.values())
    assert "NF4, fp16 compute" in table
    assert "NF4, bf16 compute" in describe_profiles(L4)
    assert "NF4, fp32 compute" in describe_profiles(CPU)


def test_the_profiles_of_the_design():
    tiny, smol, colab, big = (PROFILES[name] for name in ("tiny", "smol", "colab", "qlora_7b"))
    assert (tiny.model_name, tiny.judge, tiny.quantization) == ("data/tiny/model", "gold", "none")
    assert smol.model_name == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert (colab.model_name, colab.quantization) == ("Qwen/Qwen2.5-1.5B-Instruct", "nf4")
    assert (big.model_name, big.quantization) == ("Qwen/Qwen2.5-7B-Instruct", "nf4")
    for profile in (smol, colab, big):
        assert (profile.lora.r, profile.lora.alpha, profile.lora.dropout) == (32, 64, 0.05)
        assert profile.lora.target_modules == "all-linear"
        assert (profile.max_prompt_tokens, profile.max_response_tokens, profile.max_new_tokens) == (
            700,
            512,
            256,
        )


def test_the_large_profiles_train_with_the_projects_settings():
    training = PROFILES["colab"].training
    dpo = training["dpo"]
    assert (dpo["beta"], dpo["learning_rate"], dpo["num_train_epochs"]) == (0.1, 5e-5, 3)
    assert (dpo["per_device_train_batch_size"], dpo["gradient_accumulation_steps"]) == (4, 4)
    assert dpo["warmup_ratio"] > 0
    assert (training["ipo"]["beta"], training["aot"]["beta"]) == (0.1, 0.2)
    grpo = training["grpo"]
    sampled = (grpo["min_new_tokens"], grpo["max_new_tokens"], grpo["temperature"], grpo["top_p"])
    assert sampled == (32, 256, 0.8, 0.95)
    assert (grpo["max_steps"], grpo["per_device_train_batch_size"], grpo["group_size"]) == (25, 16, 4)
    assert (grpo["learning_rate"], grpo["num_epochs"], grpo["minibatch_size"]) == (1e-5, 2, 8)
    assert (grpo["clip_eps"], grpo["kl_coef"], grpo["max_grad_norm"]) == (0.2, 0.01, 0.5)
    assert grpo["gradient_accumulation_steps"] == 2


@pytest.mark.parametrize("name", PROFILES)
def test_every_default_is_a_field_of_its_config_and_passes_its_checks(name):
    configs = {"sft": SFTConfig, "reward_model": RewardConfig, "dpo": PreferenceConfig, "ppo": PPOConfig}
    profile = pick_profile(name, CPU)
    for algo, defaults in profile.training.items():
        offline = PreferenceConfig if algo in ("ipo", "aot") else OnlineConfig
        config = configs.get(algo, offline)
        fields = {field.name for field in dataclasses.fields(config)}
        assert set(defaults) <= fields, f"{name}/{algo}: {set(defaults) - fields}"
        resolve(config(), profile.defaults(algo))


def test_defaults_of_an_unknown_algorithm_are_refused():
    with pytest.raises(CourseError, match="--algo remax"):
        PROFILES["tiny"].defaults("remax")


def test_a_profile_can_be_written_to_a_run_directory():
    assert json.loads(json.dumps(dataclasses.asdict(pick_profile("colab", T4))))["dtype"] == "float16"
