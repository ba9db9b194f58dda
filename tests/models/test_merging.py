"""Merging: equal to base + adapter in full precision, another model in 4 bits, readable by other tools."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from helpers.errors import CourseError
from helpers.models import merging
from helpers.models.loading import load_adapter, load_base

BASE = "data/tiny/model"


@pytest.fixture(scope="module")
def sft(tiny_dir: Path) -> Path:
    return tiny_dir / "adapters" / "sft"


@pytest.fixture(scope="module")
def exported(sft, tmp_path_factory):
    target = tmp_path_factory.mktemp("export") / "sft"
    return merging.export_adapter(sft, target, trained_in="nf4", check=True)


def test_the_merged_model_is_base_and_adapter_up_to_rounding(exported):
    assert exported.merged.largest < 1e-4 and exported.merged.tokens > 20
    assert exported.reloaded.largest == 0


def test_an_adapter_meets_another_base_than_the_one_in_4_bits_and_that_is_measured(exported):
    assert exported.trained.mean > 100 * exported.merged.mean


def test_the_files_need_nothing_but_transformers(exported, sft):
    model = AutoModelForCausalLM.from_pretrained(exported.path)
    ids = AutoTokenizer.from_pretrained(exported.path)("a river", return_tensors="pt").input_ids
    ours = load_adapter(load_base(BASE), sft, "sft")
    with torch.no_grad():
        assert torch.allclose(model(ids).logits, ours(input_ids=ids).logits, atol=1e-3)
    report = json.loads((exported.path / "export.json").read_text())
    assert report["merged"]["largest"] < 1e-4 and report["base"] == BASE
    assert (exported.path / "model.safetensors").stat().st_mode & 0o777 == 0o644


def test_four_bits_would_round_the_adapter_away(sft):
    """The trap: PEFT does it with a warning. What is left of the adapter's change is less than half."""
    base, whole = load_base(BASE), load_adapter(load_base(BASE), sft, "sft")
    name = "model.layers.1.mlp.up_proj"
    was = base.get_submodule(name).weight.detach()
    wanted = whole.get_base_model().get_submodule(name).get_delta_weight("sft").detach()
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    def rounded(weight):
        return dequantize_4bit(*quantize_4bit(weight.contiguous(), quant_type="nf4"))

    error = rounded(was + wanted) - (rounded(was) + wanted)
    assert error.norm() > 0.5 * wanted.norm()


def test_a_base_stored_in_4_bits_is_refused_by_name(tmp_path, sft, tiny_dir):
    place = tmp_path / "owner-bnb-4bit"
    place.mkdir()
    config = json.loads((tiny_dir / "model" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (place / "config.json").write_text(json.dumps(config))
    with pytest.raises(CourseError, match="full precision only.*--model_name"):
        merging.export_adapter(sft, tmp_path / "out", model_name=str(place))
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten_and_a_place_without_adapter_is_named(tmp_path, sft):
    (tmp_path / "mine.txt").write_text("keep me")
    with pytest.raises(CourseError, match="exists already"):
        merging.export_adapter(sft, tmp_path)
    with pytest.raises(CourseError, match="holds no adapter"):
        merging.export_adapter(tmp_path, tmp_path / "new")


def test_the_run_says_what_an_adapter_was_trained_on(tmp_path):
    place = tmp_path / "run" / "final" / "adapter"
    place.mkdir(parents=True)
    assert merging.trained_quantization(place) == "none"
    (tmp_path / "run" / "config.json").write_text('{"quantization": "nf4"}')
    assert merging.trained_quantization(place) == "nf4"


def test_gguf_is_made_by_llama_cpps_own_script(tmp_path, exported):
    checkout = tmp_path / "llama.cpp"
    with pytest.raises(CourseError, match="git clone"):
        merging.convert_to_gguf(exported.path, checkout)
    checkout.mkdir()
    script = checkout / merging.CONVERTER
    script.write_text("import sys\nopen(sys.argv[3], 'w').write(sys.argv[5])\n")
    made = merging.convert_to_gguf(exported.path, checkout, "q8_0")
    assert made.read_text() == "q8_0" and made.name == "sft-q8_0.gguf"
    script.write_text("import sys\nsys.exit('no such architecture')\n")
    with pytest.raises(CourseError, match="no such architecture"):
        merging.convert_to_gguf(exported.path, checkout, "f16")
    assert merging.gguf_command(Path("out"), None)[0] == "python" != sys.executable


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--adapter and --output_dir"),
        (["--adapter", "a", "--output_dir", "b", "--dtype", "nf4"], "full precision only"),
        (["--adapter", "a", "--output_dir", "b", "--format", "onnx"], "safetensors, gguf"),
    ],
)
def test_flags_that_cannot_work_are_refused_before_a_model_is_loaded(words, says):
    from helpers.apps.exporting import export

    with pytest.raises(CourseError, match=says):
        export(words)
