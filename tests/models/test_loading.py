"""Loading in full precision and 4 bits, adapters on one base, the reference, merging, and memory."""

import gc
import json
import os

import psutil
import pytest
import torch
from peft import PeftModel

from helpers.errors import CourseError
from helpers.models import adapters, loading
from helpers.models.hardware import Hardware
from helpers.models.loading import (
    LoraSettings,
    activate,
    active_adapter,
    add_adapter,
    count_bases,
    free,
    load_adapter,
    load_base,
    load_tokenizer,
    merge_adapter,
    reference,
    resolve_model,
    save_adapter,
)

SMALL = LoraSettings(r=4, alpha=8, dropout=0.0)
IDS = torch.arange(24).reshape(2, 12)


@pytest.fixture(scope="module")
def base_dir(tmp_path_factory, random_qwen2):
    path = tmp_path_factory.mktemp("models") / "base"
    random_qwen2().save_pretrained(path)
    return path


@pytest.fixture
def base(base_dir):
    return load_base(base_dir)


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits.float()


def shake(model, name, seed=1):
    """Give an adapter weights that change the model."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if f".{name}." in key:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.2)
    return model


def trainable(model):
    return {name for name, weight in model.named_parameters() if weight.requires_grad}


# -------------------------------------------------------------------- 4 bits
def test_nf4_is_doubly_quantised_and_computes_in_the_dtype_of_the_machine(base_dir):
    model = load_base(base_dir, quantization="nf4")
    layer = model.model.layers[0].self_attn.q_proj
    assert layer.weight.quant_type == "nf4"
    assert layer.weight.quant_state.nested
    assert layer.compute_dtype == torch.float32
    assert not trainable(model)


def test_quantisation_options_follow_the_hardware(base_dir):
    t4 = Hardware("cuda", "Tesla T4", (7, 5), 14.7)
    options = loading._placement("nf4", loading._dtype(None, "nf4", t4), t4)
    config = options["quantization_config"]
    assert config.bnb_4bit_compute_dtype == torch.float16
    assert (config.bnb_4bit_quant_type, config.bnb_4bit_use_double_quant) == ("nf4", True)
    assert options["device_map"] == {"": "cuda:0"}
    assert loading._placement("none", torch.float32, Hardware("cpu", "CPU")) == {}


def test_under_fp16_everything_but_the_4bit_weights_is_fp32_and_under_bf16_it_stays(random_qwen2):
    half = random_qwen2().half()
    loading.prepare_4bit(half, torch.float16)
    assert {weight.dtype for weight in half.parameters()} == {torch.float32}
    brain = random_qwen2().bfloat16()
    loading.prepare_4bit(brain, torch.bfloat16)
    assert {weight.dtype for weight in brain.parameters()} == {torch.bfloat16}
    assert not trainable(half) | trainable(brain)


def one_step(model):
    """One plain gradient step on the adapter; returns the gradients."""
    model.train()
    model(input_ids=IDS, labels=IDS, use_cache=False).loss.backward()
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    grads = {name: weight.grad.clone() for name, weight in weights.items()}
    torch.optim.SGD(weights.values(), lr=0.1).step()
    return grads


@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_every_lora_b_moves_after_one_step_under_gradient_checkpointing(base_dir, quantization):
    grads = []
    for checkpointing in (True, False):
        base = load_base(base_dir, quantization=quantization, gradient_checkpointing=checkpointing)
        model = add_adapter(base, "policy", SMALL)
        grads.append(one_step(model))
        assert any(getattr(m, "gradient_checkpointing", False) for m in model.modules()) == checkpointing
        moved = {name: bool(w.any()) for name, w in model.named_parameters() if "lora_B" in name}
        assert len(moved) == 2 * 7
        assert all(moved.values()), [name for name, has_moved in moved.items() if not has_moved]
    assert grads[0].keys() == grads[1].keys()
    for name, grad in grads[0].items():
        torch.testing.assert_close(grad, grads[1][name], atol=1e-5, rtol=1e-3)


def test_an_eval_pass_changes_no_gradient_of_a_4_bit_model(base_dir):
    """bitsandbytes would repack the weights for a CPU kernel without backward: see `prepare_4bit`."""
    grads = []
    for evaluated in (False, True):
        model = shake(add_adapter(load_base(base_dir, quantization="nf4"), "policy", SMALL), "policy")
        if evaluated:
            in_eval = logits(model.eval())
            torch.testing.assert_close(logits(model.train()), in_eval, atol=1e-5, rtol=1e-5)
        grads.append(one_step(model))
    for name, grad in grads[0].items():
        torch.testing.assert_close(grads[1][name], grad, atol=1e-6, rtol=1e-4)


# ------------------------------------------------------------------- adapters
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_adapter_weights_are_fp32_on_any_base(base_dir, dtype, tmp_path):
    model = add_adapter(load_base(base_dir, dtype=dtype), "policy", SMALL)
    save_adapter(model, "policy", tmp_path / "a")
    load_adapter(model, tmp_path / "a", "second")
    for name, weight in model.named_parameters():
        assert weight.dtype == (torch.float32 if "lora_" in name else getattr(torch, dtype)), name


def test_all_linear_layers_but_the_head_are_adapted(base):
    model = add_adapter(base, "policy")
    adapted = {name.split(".lora_")[0].split(".")[-1] for name in trainable(model)}
    assert adapted == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    config = model.peft_config["policy"]
    assert (config.r, config.lora_alpha, config.lora_dropout) == (32, 64, 0.05)


def test_adapters_can_be_put_on_named_layers_only(base):
    model = add_adapter(base, "policy", LoraSettings(r=2, target_modules=("q_proj",)))
    assert {name.split(".lora_")[0].split(".")[-1] for name in trainable(model)} == {"q_proj"}
    with pytest.raises(CourseError, match="no_such_layer"):
        add_adapter(model, "other", LoraSettings(target_modules=("no_such_layer",)))


def test_a_fresh_adapter_changes_nothing(base):
    before = logits(base)
    assert torch.equal(logits(add_adapter(base, "policy", SMALL)), before)


def test_the_seed_decides_the_adapter_and_the_global_rng_is_left_alone(base_dir):
    def fresh(seed, noise):
        torch.manual_seed(noise)
        model = add_adapter(load_base(base_dir), "policy", SMALL, seed=seed)
        following = torch.rand(1)
        torch.manual_seed(noise)
        assert torch.equal(following, torch.rand(1)), "add_adapter drew from the global RNG"
        return torch.cat([w.detach().flatten() for n, w in model.named_parameters() if "lora_A" in n])

    assert torch.equal(fresh(3, noise=1), fresh(3, noise=2))
    assert not torch.equal(fresh(3, noise=1), fresh(4, noise=1))


def test_a_second_adapter_shares_the_base_and_is_alone_trainable(base):
    model = add_adapter(base, "policy", SMALL)
    again = add_adapter(model, "reward", SMALL)
    assert again is model
    assert active_adapter(model) == "reward"
    assert trainable(model) and all(".reward." in name for name in trainable(model))
    activate(model, "policy", trainable=True)
    assert all(".policy." in name for name in trainable(model))
    add_adapter(model, "frozen", SMALL, trainable=False)
    assert not trainable(model)
    assert count_bases([model, model.get_base_model()]) == 1


def test_two_loads_are_two_bases(base_dir):
    first, second = load_base(base_dir), load_base(base_dir)
    assert count_bases([first, second]) == 2
    assert count_bases([first, add_adapter(first, "policy", SMALL)]) == 1


def test_adapter_names_are_checked(base):
    with pytest.raises(CourseError, match="letters, digits and underscores"):
        add_adapter(base, "a.b", SMALL)
    model = add_adapter(base, "policy", SMALL)
    with pytest.raises(CourseError, match="already has an adapter 'policy'"):
        add_adapter(model, "policy", SMALL)
    with pytest.raises(CourseError, match="pass the PeftModel"):
        add_adapter(base, "second", SMALL)
    with pytest.raises(CourseError, match="no adapter 'reward' .it has: policy"):
        activate(model, "reward", trainable=False)


@pytest.mark.parametrize("bad", [{"r": 0}, {"alpha": 0}, {"dropout": 1.0}])
def test_impossible_lora_settings_are_refused(base, bad):
    with pytest.raises(CourseError, match="--lora_r"):
        add_adapter(base, "policy", LoraSettings(**bad))


# --------------------------------------------------------------- save and load
def test_a_saved_adapter_loads_to_equal_outputs(base_dir, tmp_path):
    model = shake(add_adapter(load_base(base_dir), "policy", SMALL), "policy")
    save_adapter(model, "policy", tmp_path / "adapter")
    assert sorted(p.name for p in (tmp_path / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    loaded = load_adapter(load_base(base_dir), tmp_path / "adapter", "other_name")
    assert torch.equal(logits(loaded), logits(model))
    assert not trainable(loaded)


def test_loading_beside_others_keeps_the_active_adapter_unless_it_is_to_be_trained(base, tmp_path):
    model = shake(add_adapter(base, "policy", SMALL), "policy")
    save_adapter(model, "policy", tmp_path / "a")
    before = trainable(model)
    load_adapter(model, tmp_path / "a", "frozen")
    assert active_adapter(model) == "policy"
    assert trainable(model) == before
    load_adapter(model, tmp_path / "a", "next", trainable=True)
    assert active_adapter(model) == "next"
    assert trainable(model) and all(".next." in name for name in trainable(model))


def test_the_default_adapter_of_peft_can_be_saved_too(base, tmp_path):
    model = shake(add_adapter(base, "default", SMALL), "default")
    save_adapter(model, "default", tmp_path / "a")
    assert (tmp_path / "a" / "adapter_model.safetensors").is_file()


def test_saving_twice_gives_the_same_bytes(base, tmp_path):
    model = shake(add_adapter(base, "policy", SMALL), "policy")
    for name in ("a", "b"):
        save_adapter(model, "policy", tmp_path / name)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_a_crash_while_saving_leaves_the_old_adapter_whole(base, tmp_path, monkeypatch):
    model = shake(add_adapter(base, "policy", SMALL), "policy", seed=1)
    save_adapter(model, "policy", tmp_path / "a")
    old = (tmp_path / "a" / "adapter_model.safetensors").read_bytes()
    shake(model, "policy", seed=2)
    with monkeypatch.context() as patch:
        patch.setattr(adapters.json, "dumps", lambda *a, **k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            save_adapter(model, "policy", tmp_path / "a")
    assert (tmp_path / "a" / "adapter_model.safetensors").read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_an_adapter_of_another_base_is_refused_and_the_model_is_untouched(base_dir, tmp_path, random_qwen2):
    wide = add_adapter(random_qwen2(hidden=64), "policy", SMALL)
    save_adapter(wide, "policy", tmp_path / "wide")
    deep = add_adapter(random_qwen2(layers=3), "policy", SMALL)
    save_adapter(deep, "policy", tmp_path / "deep")
    base = load_base(base_dir)
    with pytest.raises(CourseError, match="another base.*has size 128, this base needs 64"):
        load_adapter(base, tmp_path / "wide", "policy")
    with pytest.raises(CourseError, match="another base.*layers.2.*has no such layer"):
        load_adapter(base, tmp_path / "deep", "policy")
    model = add_adapter(base, "policy", SMALL)
    with pytest.raises(CourseError, match="another base"):
        load_adapter(model, tmp_path / "wide", "second")
    assert list(model.peft_config) == ["policy"]


def test_a_directory_without_an_adapter_is_refused(base, tmp_path):
    with pytest.raises(CourseError, match="adapter_config.json is missing.*final/adapter"):
        load_adapter(base, tmp_path / "nothing", "policy")


# ------------------------------------------------------------------- reference
def test_the_reference_of_a_fresh_adapter_is_the_base(base):
    before = logits(base)
    model = shake(add_adapter(base, "policy", SMALL), "policy")
    assert not torch.allclose(logits(model), before)
    with reference(model):
        assert torch.equal(logits(model), before)
    assert not torch.allclose(logits(model), before)


def test_after_sft_the_reference_is_the_sft_adapter_and_not_the_base(base, tmp_path):
    model = shake(add_adapter(base, "policy", SMALL), "policy", seed=1)
    save_adapter(model, "policy", tmp_path / "sft")
    load_adapter(model, tmp_path / "sft", "sft")
    sft = logits(model)
    shake(model, "policy", seed=2)  # training goes on
    with reference(model, "sft"):
        right = logits(model)
    with reference(model):
        wrong = logits(model)
    assert torch.equal(right, sft)
    assert (wrong - sft).abs().max() > 0.1, "adapter off would have measured another reference"


def state(model):
    flags = {name: weight.requires_grad for name, weight in model.named_parameters()}
    off = [m.disable_adapters for m in model.modules() if hasattr(m, "disable_adapters")]
    return active_adapter(model), flags, off


@pytest.mark.parametrize("frozen", [False, True])
def test_reference_restores_everything_nested_and_after_errors(base, frozen):
    model = add_adapter(base, "policy", SMALL)
    add_adapter(model, "sft", SMALL, trainable=False)
    activate(model, "policy", trainable=not frozen)
    before = state(model)
    with reference(model, "sft"):
        assert active_adapter(model) == "sft"
        inner = state(model)
        with reference(model):
            assert active_adapter(model) is None
            with reference(model, "policy"):
                assert active_adapter(model) == "policy"
            assert active_adapter(model) is None
        assert state(model) == inner
        assert trainable(model) == {name for name, flag in before[1].items() if flag}
    assert state(model) == before
    with pytest.raises(RuntimeError, match="boom"), reference(model):
        raise RuntimeError("boom")
    assert state(model) == before
    with pytest.raises(CourseError, match="no adapter 'nobody'"), reference(model, "nobody"):
        pass
    assert state(model) == before


def test_a_model_without_adapters_is_its_own_reference(base):
    with reference(base) as model:
        assert model is base
    with pytest.raises(CourseError, match="no adapter 'sft' .it has: none"), reference(base, "sft"):
        pass


# ----------------------------------------------------------------------- merge
def test_a_merged_adapter_computes_what_the_adapter_did_and_reports_its_drift(base):
    model = shake(add_adapter(base, "sft", SMALL), "sft")
    before = logits(model)
    merged = merge_adapter(model, "sft", IDS)
    assert not isinstance(merged.model, PeftModel)
    assert not any("lora" in name for name, _ in merged.model.named_parameters())
    torch.testing.assert_close(logits(merged.model), before, atol=1e-4, rtol=1e-4)
    assert 0 <= merged.drift < 1e-4
    fresh = add_adapter(merged.model, "policy", SMALL)
    with reference(fresh):
        torch.testing.assert_close(logits(fresh), before, atol=1e-4, rtol=1e-4)


def test_merging_into_4_bit_weights_is_refused(base_dir):
    model = shake(add_adapter(load_base(base_dir, quantization="nf4"), "sft", SMALL), "sft")
    before = logits(model)
    with pytest.raises(CourseError, match="4-bit weights.*quantization='none'"):
        merge_adapter(model, "sft")
    assert torch.equal(logits(model), before)


def test_merging_under_another_adapter_is_refused(base):
    model = add_adapter(add_adapter(base, "sft", SMALL), "reward", SMALL)
    with pytest.raises(CourseError, match="would change the base of reward"):
        merge_adapter(model, "sft")


# ---------------------------------------------------------------------- names
def test_the_bundled_model_is_found_from_anywhere_and_recorded_without_a_path(
    base_dir, tmp_path, monkeypatch
):
    data = tmp_path / "data"
    (data / "tiny").mkdir(parents=True)
    os.symlink(base_dir, data / "tiny" / "model")
    monkeypatch.setenv("COURSE_DATA", str(data))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    model = add_adapter(load_base("data/tiny/model"), "policy", SMALL)
    save_adapter(model, "policy", tmp_path / "a")
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "data/tiny/model"
    assert str(tmp_path) not in (tmp_path / "a" / "adapter_config.json").read_text()


def test_a_missing_bundled_model_says_how_to_build_it(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CourseError, match="data build-tiny"):
        resolve_model("data/tiny/model")


@pytest.mark.parametrize("name", ["./no/such/dir", "/no/such/dir", "runs/x", "noowner", "a/b/c"])
def test_a_path_that_does_not_exist_is_named(name):
    with pytest.raises(CourseError, match=f"{name}.*no such directory"):
        resolve_model(name)


@pytest.mark.parametrize("load", [load_base, load_tokenizer])
def test_a_hub_model_without_the_hub_says_what_to_do(load, monkeypatch):
    monkeypatch.setattr(loading, "hub_is_reachable", lambda: False)
    with pytest.raises(CourseError, match="cannot load 'Qwen/Qwen2.5-1.5B-Instruct'.*\n.*--profile tiny"):
        load("Qwen/Qwen2.5-1.5B-Instruct")


def test_an_empty_directory_is_no_model(tmp_path):
    with pytest.raises(CourseError, match="from this directory"):
        load_base(tmp_path)


def test_bad_settings_are_refused(base_dir, monkeypatch):
    with pytest.raises(CourseError, match="--quantization.*'int3'"):
        load_base(base_dir, quantization="int3")
    with pytest.raises(CourseError, match="dtype 'float12'"):
        load_base(base_dir, dtype="float12")
    with pytest.raises(CourseError, match="needs a model name"):
        load_base()
    with pytest.raises(CourseError, match="Apple"):
        load_base(base_dir, quantization="nf4", hardware=Hardware("mps", "Apple GPU"))
    monkeypatch.setattr(loading.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CourseError, match="pip install bitsandbytes"):
        load_base(base_dir, quantization="nf4")


# --------------------------------------------------------------------- memory
@pytest.fixture(scope="module")
def big_dir(tmp_path_factory, random_qwen2):
    """About 40 MiB, so that a leaked copy shows."""
    path = tmp_path_factory.mktemp("models") / "big"
    random_qwen2(vocab=20000, hidden=512, layers=1).save_pretrained(path)
    return path


def resident_mib():
    gc.collect()
    return psutil.Process().memory_info().rss / 2**20


@pytest.mark.parametrize(
    "cell",
    [
        "model = add_adapter(load_base(path), 'policy', small)\nlogits(model)",
        "free(globals().get('model'))\n"
        "model = add_adapter(load_base(path, quantization='nf4'), 'policy', small)\n"
        "logits(model)\n"
        "Out.append(model)",
    ],
    ids=["assigned again", "freed, though the notebook keeps a reference"],
)
def test_running_a_loading_cell_again_does_not_grow_memory(big_dir, cell):
    notebook = {"path": big_dir, "small": SMALL, "Out": []}
    notebook.update(logits=logits, load_base=load_base, add_adapter=add_adapter, free=free)
    for _ in range(2):  # the first runs fill allocators and caches
        exec(cell, notebook)
    before = resident_mib()  # the pass through the model matters: a mapped file counts once it is read
    for _ in range(5):
        exec(cell, notebook)
    assert resident_mib() - before < 25, "more than half a model was kept"


def test_free_empties_what_is_still_referred_to(base):
    model = add_adapter(base, "policy", SMALL)
    model.train()
    loss = model(input_ids=IDS, labels=IDS).loss
    loss.backward()
    optimiser = torch.optim.AdamW(w for w in model.parameters() if w.requires_grad)
    optimiser.step()
    batches = {"ids": IDS.clone(), "list": [torch.ones(3)]}
    free(model, optimiser, batches, loss, None)
    assert all(weight.numel() == 0 and weight.grad is None for weight in model.parameters())
    assert not optimiser.state
    assert batches == {}
    assert loss.grad_fn is None


def test_free_takes_a_trainer_apart(base):
    class Trainer:
        model, lr_scheduler = base, object()
        optimizer = torch.optim.SGD(base.parameters(), lr=1)

    trainer = Trainer()
    free(trainer)
    assert trainer.model is None and trainer.optimizer is None
    assert all(weight.numel() == 0 for weight in base.parameters())


def test_free_leaves_other_models_alone(base_dir):
    first, second = load_base(base_dir), load_base(base_dir)
    before = logits(second)
    free(first)
    assert torch.equal(logits(second), before)


def test_a_loaded_model_is_in_eval_mode_and_takes_what_it_is_not_told_from_the_profile(base_dir):
    from helpers.models.profiles import PROFILES

    model = load_base(base_dir, PROFILES["colab"], hardware=Hardware("cpu", "CPU"))
    assert not model.training
    assert model.is_loaded_in_4bit
    assert any(getattr(m, "gradient_checkpointing", False) for m in model.modules())
    plain = load_base(base_dir, PROFILES["colab"], quantization="none", gradient_checkpointing=False)
    assert not getattr(plain, "is_loaded_in_4bit", False)
    assert plain.dtype == torch.float32


# ------------------------------------------------------------------ damaged models
@pytest.mark.parametrize(
    ("file", "harm", "said"),
    [
        ("model.safetensors", lambda data: data[:-500], "cannot load"),
        ("model.safetensors", lambda data: b"x", "cannot load"),
        ("config.json", lambda data: b"[]", "cannot load"),
        ("config.json", lambda data: b"{", "cannot load"),
        ("config.json", lambda data: data.replace(b'"hidden_size": 32', b'"hidden_size": 64'), "other sizes"),
    ],
)
def test_a_damaged_model_is_named(tmp_path, random_qwen2, file, harm, said):
    random_qwen2().save_pretrained(tmp_path)
    (tmp_path / file).write_bytes(harm((tmp_path / file).read_bytes()))
    with pytest.raises(CourseError, match=said) as problem:
        load_base(str(tmp_path), quantization="none")
    assert str(tmp_path) in str(problem.value)


def test_weights_that_are_missing_are_not_made_up(tmp_path, random_qwen2):
    from safetensors.torch import load_file, save_file

    random_qwen2().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CourseError, match=r"lack model.layers.1.mlp.up_proj.weight"):
        load_base(str(tmp_path), quantization="none")
