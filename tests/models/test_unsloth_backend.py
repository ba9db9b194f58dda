"""What is passed to unsloth exists in its signatures, read from its source; it is never imported here."""

import ast
import importlib.util
import json
from pathlib import Path

import pytest

from helpers.errors import CourseError
from helpers.models import unsloth_backend
from helpers.models.adapters import LoraSettings
from helpers.models.hardware import Hardware
from helpers.models.profiles import PROFILES

T4 = Hardware("cuda", "Tesla T4", (7, 5), 14.7, 2, False, 1)
CPU = Hardware("cpu", "CPU x86_64", None, 12.7, 2, False, 0)
RECORDED = json.loads((Path(__file__).parent / "unsloth_signatures.json").read_text())
SOURCES = {
    "FastLanguageModel.from_pretrained": "models/loader.py",
    "FastLlamaModel.get_peft_model": "models/llama.py",  # which FastLanguageModel inherits
}
COLAB = PROFILES["colab"]


def parameters_in_source(package: Path, function: str) -> list[str]:
    """Parameter names of `Class.method`, from the source file's syntax tree."""
    wanted_class, wanted = function.split(".")
    tree = ast.parse((package / SOURCES[function]).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == wanted_class:
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == wanted:
                    return [argument.arg for argument in method.args.args + method.args.kwonlyargs]
    raise AssertionError(f"unsloth has no {function} any more")


def check_contract(signatures):
    loading = unsloth_backend.load_arguments(COLAB, T4, seed=3)
    adding = unsloth_backend.adapter_arguments(COLAB.lora, COLAB, seed=3)
    assert set(loading) <= set(signatures["FastLanguageModel.from_pretrained"])
    assert set(adding) <= set(signatures["FastLlamaModel.get_peft_model"])
    assert signatures["FastLlamaModel.get_peft_model"][0] == "model"


def test_the_arguments_fit_the_recorded_signatures():
    check_contract(RECORDED)


def test_the_arguments_fit_the_installed_source():
    spec = importlib.util.find_spec("unsloth")
    if spec is None:
        pytest.skip(f"unsloth is not installed; checked against recorded version {RECORDED['unsloth']}")
    [package] = spec.submodule_search_locations
    check_contract({name: parameters_in_source(Path(package), name) for name in SOURCES})


def test_the_arguments_say_what_the_profile_says():
    loading = unsloth_backend.load_arguments(COLAB, T4, seed=3)
    assert loading["model_name"] == "Qwen/Qwen2.5-1.5B-Instruct"
    assert loading["load_in_4bit"] is True
    assert str(loading["dtype"]) == "torch.float16"
    assert loading["max_seq_length"] == 700 + 512
    assert loading["random_state"] == 3
    adding = unsloth_backend.adapter_arguments(LoraSettings(), COLAB, seed=3)
    assert (adding["r"], adding["lora_alpha"], adding["lora_dropout"]) == (32, 64, 0.05)
    assert len(adding["target_modules"]) == 7
    named = unsloth_backend.adapter_arguments(LoraSettings(target_modules=("q_proj",)), COLAB, seed=3)
    assert named["target_modules"] == ["q_proj"]


def test_without_a_gpu_asking_for_unsloth_is_an_error():
    with pytest.raises(CourseError, match="--backend unsloth needs a CUDA GPU"):
        unsloth_backend.load(COLAB, hardware=CPU)


def test_not_installed_and_wrong_layout_are_errors(monkeypatch):
    monkeypatch.setattr(unsloth_backend.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CourseError, match="pip install unsloth"):
        unsloth_backend.load(COLAB, hardware=T4)
    monkeypatch.setattr(unsloth_backend.importlib.util, "find_spec", lambda name: object())
    with pytest.raises(CourseError, match="--layout padded, not packed"):
        unsloth_backend.load(COLAB, layout="packed", hardware=T4)
