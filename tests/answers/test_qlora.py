"""NF4 equal to bitsandbytes code for code; memory arithmetic against what tensors really take."""

from __future__ import annotations

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from solutions.answers import nf4_dequantize, nf4_quantize, qlora_memory_gib
from solutions.answers.qlora import NF4_LEVELS

functional = pytest.importorskip("bitsandbytes.functional")


def theirs(block: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, absmax and restored weights of one block by bitsandbytes; it packs two codes a byte."""
    packed, state = functional.quantize_4bit(block, blocksize=len(block), quant_type="nf4")
    restored = functional.dequantize_4bit(packed, state).reshape(-1)
    pairs = packed.reshape(-1)
    return torch.stack([pairs >> 4, pairs & 15], dim=1).reshape(-1), state.absmax[0], restored


def agree(block: torch.Tensor) -> None:
    codes, absmax = nf4_quantize(block)
    expected = theirs(block)
    assert torch.equal(codes, expected[0]) and torch.equal(absmax, expected[1])
    assert torch.equal(nf4_dequantize(codes, absmax), expected[2])


@pytest.mark.parametrize("size", [32, 64, 128, 256, 512, 1024])
@pytest.mark.parametrize("scale", [1e-36, 1e-12, 0.02, 1.0, 1e12, 1e36])
def test_random_blocks_equal_bitsandbytes_bit_for_bit(size: int, scale: float) -> None:
    for seed in range(30):
        agree(torch.randn(size, generator=torch.Generator().manual_seed(seed)) * scale)


@pytest.mark.parametrize("seed", range(60))
def test_weights_on_and_beside_midpoints_equal_bitsandbytes(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    points = (NF4_LEVELS[:-1] + NF4_LEVELS[1:]) / 2
    absmax = torch.rand((), generator=draw) * 10 ** float(torch.randint(-5, 6, (), generator=draw)) + 1e-6
    block = points[torch.randint(0, 15, (64,), generator=draw)] * absmax
    block[::3] = torch.nextafter(block[::3], torch.full_like(block[::3], 1e9))
    block[0] = absmax
    agree(block)


def test_zeros_subnormals_and_half_precision_equal_bitsandbytes() -> None:
    agree(torch.zeros(64))
    agree(torch.full((64,), 1e-40))
    block = torch.randn(64, generator=torch.Generator().manual_seed(1))
    for dtype in (torch.bfloat16, torch.float16):
        codes, absmax = nf4_quantize(block.to(dtype))
        assert torch.equal(codes, theirs(block.to(dtype))[0])
        assert absmax.dtype == torch.float32


def test_dividing_by_the_scale_is_not_the_same() -> None:
    """Why the docstring insists: on midpoints some codes differ."""
    points, wrong = (NF4_LEVELS[:-1] + NF4_LEVELS[1:]) / 2, 0
    for seed in range(200):
        absmax = torch.rand((), generator=torch.Generator().manual_seed(seed)) + 0.5
        block = torch.cat([absmax[None], points * absmax])
        codes, _ = nf4_quantize(block)
        wrong += int((torch.bucketize(block / absmax, points) != codes).sum())
    assert wrong > 20


# ---------------------------------------------------------------- memory
class Alive(TorchDispatchMode):
    """Bytes of the tensors that exist at a time, at their peak."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        super().__init__()
        self.held: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0
        self.see(tensors)

    def see(self, tensors: object) -> None:
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.held[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        self.see(result)
        self.held = {key: entry for key, entry in self.held.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.held.values()))
        return result


@pytest.mark.parametrize(
    ("rows", "width", "dropout", "checkpointing"),
    [(2, 64, 0.0, False), (8, 128, 0.0, False), (8, 128, 0.05, False), (8, 256, 0.0, True)],
)
def test_the_prediction_is_within_15_percent_of_the_peak_of_tiny(
    rows: int, width: int, dropout: float, checkpointing: bool
) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from helpers.files import find_data

    base = AutoModelForCausalLM.from_pretrained(find_data("data/tiny/model"), attn_implementation="sdpa")
    c, every = base.config, sum(p.numel() for p in base.parameters())
    lora = LoraConfig(r=16, lora_dropout=dropout, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, lora).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    trained = [p for p in model.parameters() if p.requires_grad]
    linear = sum(m.base_layer.weight.numel() for m in model.modules() if hasattr(m, "base_layer"))
    adapters, optimizer = sum(p.numel() for p in trained), torch.optim.AdamW(trained)
    with Alive(*model.parameters()) as alive:
        for _ in range(2):
            ids = torch.randint(0, c.vocab_size, (rows, width))
            mask = torch.ones(rows, 1, width, width, dtype=torch.bool).tril()
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            del logits
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    shape = (rows * width, c.hidden_size, c.intermediate_size, c.num_hidden_layers, c.vocab_size)
    settings = {
        "quantised": False,
        "compute_bytes": 4,
        "checkpointing": checkpointing,
        "lora_dropout": dropout > 0,
    }
    predicted = qlora_memory_gib(linear, every - linear, adapters, *shape, **settings)
    assert predicted["total"] == pytest.approx(alive.peak / 2**30, rel=0.15)


def test_parts_add_up_and_savings_save() -> None:
    sizes = (6_525_288_448, 1_090_332_160, 80_740_352, 4096, 3584, 18944, 28, 152_064)
    whole = qlora_memory_gib(*sizes)
    assert whole["total"] == pytest.approx(sum(size for name, size in whole.items() if name != "total"))
    half = qlora_memory_gib(*sizes, quantised=False)
    assert half["weights"] == pytest.approx(2 * (sizes[0] + sizes[1]) / 2**30)
    for worse in ({"double_quantised": False}, {"checkpointing": False}, {"quantised": False}):
        assert qlora_memory_gib(*sizes, **worse)["total"] > whole["total"]
