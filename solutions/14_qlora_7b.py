# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 14 · QLoRA: seven billion parameters on one card
#
# A model of 7 billion parameters has 15 GB of weights, and training all of them with Adam takes 100 GB more. QLoRA trains
# it on a card of 24 GB, at a pinch of 16. Nothing in it is magic: it is arithmetic about bytes. You will write the 4-bit
# format that makes it possible, equal to the library's code for code, and a function that says what a run will take
# before it is started. Then you will merge the result, the right way and the way that loses it.
#
# | profile | minutes | memory |
# |---|---|---|
# | `tiny`, two CPU cores | 1 (measured) | 1 GiB |
# | `qlora_7b`, 24 GB card | not measured | 7 GiB for a training step, by the arithmetic below; 20 GiB where it merges |

# %% tags=["setup"]

# %%
import time

import torch
from transformers import Qwen2Config

from helpers.course.checks import check
from helpers.course.lesson import Lesson
from helpers.course.lesson_display import COLOURS, Table
from helpers.models.loading import LoraSettings, add_adapter, free, load_base, merge_adapter, save_adapter
from helpers.models.memory import TensorPeak, planned_sizes, sizes_of
from helpers.models.merging import Drift
from helpers.models.policy import response_logprobs
from helpers.text.groups import make_batch

lesson = Lesson("14_qlora_7b")
tiny = lesson.profile.name == "tiny"
name = lesson.profile.model_name
rows = lesson.groups(lesson.examples(kind="sft", limit=640 if tiny else 80), kind="sft")
held_out = lesson.groups(lesson.held_out("sft", 64 if tiny else 16), kind="sft")

# %% [markdown]
# ## Where the bytes go
#
# Four things lie in memory for every *trained* weight, and one for every frozen one. Adam keeps two moments:
#
# | | full fine-tuning | LoRA |
# |---|---|---|
# | weight | 2 bytes (bf16), 4 more for a float32 copy | frozen: 2 bytes, or a half |
# | gradient | 2 to 4 | none |
# | Adam's two moments | 8 | none |
#
# The frozen part is the same for both. LoRA makes the rest small: it trains a few per cent as many weights, all of them in
# float32. What remains is the base. **That is what 4 bits are for.** (Hu et al. 2021; Dettmers et al. 2023.)
#
# **Predict:** how many GiB do the weights alone of a 7B model take in bf16, and in 4 bits?

# %%
NAMES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
QWEN = {
    "1.5B": (1536, 8960, 28, 12, 2),
    "7B": (3584, 18944, 28, 28, 4),
    "14B": (5120, 13824, 48, 40, 8),
}


def plan_of(size):
    """Numbers of weights in Qwen2.5 of that size, with adapters of rank 32 on its linear layers."""
    small = size == "1.5B"
    config = Qwen2Config(**dict(zip(NAMES, QWEN[size], strict=True)), tie_word_embeddings=small)
    config.vocab_size = 151_936 if small else 152_064
    return planned_sizes(config, r=32)


# The sizes of Qwen2.5, from its configuration files. Counted on the meta device: nothing is allocated.
plans = {size: plan_of(size) for size in QWEN}
by_hand = []
for size, plan in plans.items():
    frozen = plan["linear_parameters"] + plan["other_parameters"]
    in_four = plan["linear_parameters"] / 2 + plan["other_parameters"] * 2
    trained = plan["adapter_parameters"]
    gib = [2 * frozen, in_four, 16 * frozen, 16 * trained]
    by_hand.append(
        [size, f"{frozen / 1e9:.2f} B", f"{trained / 1e6:.0f} M", *(value / 2**30 for value in gib)]
    )
Table(
    "GiB by hand: the base in two precisions, and 16 bytes for every weight that is trained",
    [
        "model",
        "frozen",
        "LoRA r 32",
        "base, bf16",
        "linear layers in 4 bits",
        "training all",
        "training LoRA",
    ],
    by_hand,
)

# %% [markdown]
# Embedding and LM head stay in bf16: in the 7B model a billion weights, 2 GiB of its 5. Only the linear layers inside
# the decoder are quantised.
#
# ## Four bits a weight
#
# Sixteen levels are all there is. A block of 64 weights shares one scale, the largest absolute value in it (*absmax*), so
# that every weight becomes a number from −1 to 1, and then the number of the nearest level. Where should the levels be?
# Trained weights look like draws from a normal distribution, many near 0 and few far out. NF4 puts its levels at quantiles
# of one: close together around 0, further apart outside. 0 itself is a level.
#
# **Before you write it:** what are codes and absmax of a block of zeros? And is `weight / absmax` the same number as
# `weight * (1 / absmax)`?

# %% tags=["exercise"]
from solutions.answers import nf4_quantize

# %%
check("nf4_quantize", nf4_quantize)

# %% tags=["exercise"]
from solutions.answers import nf4_dequantize

# %%
check("nf4_dequantize", nf4_dequantize)

# %% [markdown]
# Your function against the library, on weights of the model itself. bitsandbytes packs two codes into one byte, the first
# in the upper half.

# %%
import bitsandbytes.functional as bnb

answers = lesson.use(nf4_quantize=nf4_quantize, nf4_dequantize=nf4_dequantize)
base = lesson.model()
weight = base.get_submodule("model.layers.1.mlp.up_proj").weight.detach()
if not weight.is_floating_point():  # on larger profiles it is packed already
    weight = base.get_input_embeddings().weight[:2000].detach()
weight = weight.float().cpu()
blocks = weight.reshape(-1, 64)[:2000]
codes, scales = zip(*map(answers.nf4_quantize, blocks), strict=True)
packed, state = bnb.quantize_4bit(blocks.contiguous(), blocksize=64, quant_type="nf4")
pairs = packed.reshape(-1)
theirs = torch.stack([pairs >> 4, pairs & 15], dim=1).reshape(blocks.shape)
same = torch.stack(codes) == theirs
print(
    f"{same.sum()} of {same.numel()} codes are equal, all scales: {torch.equal(torch.stack(scales), state.absmax)}"
)

# %% [markdown]
# ## Why not equal steps?
#
# Fifteen levels at equal distances are the usual 4-bit integers: an odd number, so that 0 is one of them.
#
# **Predict:** by how much is the error smaller with NF4's levels, on normal weights?

# %%
levels = answers.nf4_dequantize(torch.arange(16), torch.tensor(1.0))
equal = torch.linspace(-1, 1, 15)


def rounded(values, grid, block):
    """Each block scaled by its absmax, every weight put on the nearest level, and scaled back."""
    cut = values.reshape(-1, block)
    scale = cut.abs().amax(dim=1, keepdim=True).clamp(min=1e-38)
    nearest = torch.bucketize(cut / scale, (grid[:-1] + grid[1:]) / 2)
    return (grid[nearest] * scale).reshape(values.shape)


def error(values, grid, block):
    """Root mean square of what rounding changes, as a share of the weights' own."""
    return ((rounded(values, grid, block) - values).norm() / values.norm()).item()


draw = torch.Generator().manual_seed(0)
normal = torch.randn(2**20, generator=draw)
plot = lesson.plot(
    "levels", "Where the levels are: NF4 below, equal steps above", "weight / absmax", "share of weights"
)
scaled = normal.reshape(-1, 64) / normal.reshape(-1, 64).abs().amax(dim=1, keepdim=True)
height, edges = torch.histogram(scaled.flatten(), bins=81, range=(-1.0, 1.0))
height = height / height.max()
plot.axes.plot((edges[:-1] + edges[1:]) / 2, height, color=COLOURS[6], label="normal weights, blocks of 64")
plot.axes.plot(levels, torch.full((16,), 0.0), "|", markersize=14, color=COLOURS[0], label="NF4")
plot.axes.plot(equal, torch.full((15,), 0.25), "|", markersize=14, color=COLOURS[1], label="equal steps")
plot

# %%
counts = torch.bincount(torch.bucketize(scaled.flatten(), (levels[:-1] + levels[1:]) / 2), minlength=16)
print("share of each NF4 code:", *(f"{share:.3f}" for share in (counts / counts.sum()).tolist()))
for label, values in {"normal weights": normal, "this model's weights": weight}.items():
    print(
        f"{label}: error {error(values, levels, 64):.4f} with NF4, {error(values, equal, 64):.4f} with equal steps"
    )

# %% [markdown]
# A seventh less error, for nothing. (The codes are not used equally often, as quantiles promise: a block of 64 has one absmax
# only, and few weights near it.) What costs is the block size, and what a block cannot stand is an *outlier*:
# one weight far out sets the scale for all, and the others fall on the few levels around 0. Trained models of several
# billion parameters have such weights and, worse, such activations (Dettmers et al. 2022).
#
# **Predict:** one weight in a thousand is made 20 times as large. Which curve moves more, that of small or of large
# blocks?

# %%
spoiled = normal.clone()
spoiled[::1000] *= 20
sizes = [32, 64, 128, 256, 1024, 4096]
plot = lesson.plot(
    "blocks", "The larger the block, the more an outlier spoils", "weights in a block", "relative error"
)
for label, values in {"normal": normal, "one outlier in 1,000": spoiled}.items():
    clean = torch.ones_like(values, dtype=torch.bool)
    clean[::1000] = False
    errors = [
        ((rounded(values, levels, size) - values)[clean].norm() / values[clean].norm()).item()
        for size in sizes
    ]
    plot.axes.plot(sizes, errors, "o-", label=label)
    print(f"{label}: " + ", ".join(f"{size}: {value:.3f}" for size, value in zip(sizes, errors, strict=True)))
plot.axes.set_xscale("log", base=2)
plot

# %% [markdown]
# (The outliers themselves are left out of the error.) Small blocks contain the damage. They cost scales: 4 bytes for every 64
# weights is 1/16 byte, an eighth more. **Double quantisation** quantises the scales too: one byte each, and 4 bytes for
# every 256 of them.
#
# **By hand:** how many bits a weight is that, with and without?

# %%
plain, double = 4 + 8 * 4 / 64, 4 + 8 * (1 / 64 + 4 / (64 * 256))
print(f"bits a weight: {plain:.3f} plain, {double:.3f} doubly quantised")
saved = (plain - double) / 8 * plans["7B"]["linear_parameters"] / 2**30
print(f"saved on the 7B model: {saved:.2f} GiB")

quantised = load_base(name, quantization="nf4")
inside = quantised.get_submodule("model.layers.1.mlp.up_proj").weight.quant_state
print("in the library: scales in", inside.absmax.dtype, "and their own in blocks of", inside.state2.blocksize)

# %% [markdown]
# And what does it cost the model? Mean negative log-probability of held-out answers, in nats a token.


# %%
@torch.no_grad()
def scores(model):
    """Log-probability of every token of the held-out answers."""
    model.eval()
    found = response_logprobs(model, make_batch(held_out, lesson.encoder.pad_id, "padded"))
    return found.logprobs[found.mask].float().cpu()


before = {"base": scores(base), "base in NF4": scores(quantised)}
free(quantised)
for label, values in before.items():
    print(f"{label:12}{-values.mean():.4f} nats a token")

# %% [markdown]
# ## What will it take?
#
# Weights are not all. A forward pass keeps *activations* for the backward pass, some $8h + 4m$ values for every token in every
# layer ($h$ hidden size, $m$ the MLP's inner one). *Gradient checkpointing* keeps the input of each layer only and computes
# the rest again, one layer at a time (Chen et al. 2016). The *logits* of every position, with their gradient,
# are 8 bytes for each of 152,064 words: the course's own losses never hold them all.
#
# The docstring says what counts as what. Write it as a list of sizes, and keep to bytes until the end.

# %% tags=["exercise"]
from solutions.answers import qlora_memory_gib

# %%
check("qlora_memory_gib", qlora_memory_gib)

# %%
answers = lesson.use(
    nf4_quantize=nf4_quantize, nf4_dequantize=nf4_dequantize, qlora_memory_gib=qlora_memory_gib
)
TOKENS = 2 * (700 + 512)  # two rows of the longest that the course allows
BLOCK = (
    16 * 2**20 // 2
)  # the course's losses hold 16 Mi logits at a time, without gradients: half of 8 bytes each
table = []
for size, plan in plans.items():
    parts = answers.qlora_memory_gib(tokens=TOKENS, **plan, optimizer_bytes=2, logits_at_once=BLOCK)
    table.append([size, *parts.values()])
Table(f"GiB of a QLoRA run with rank 32, {TOKENS} tokens at a time, 8-bit AdamW", ["model", *parts], table)

# %% [markdown]
# A T4 has 14.7 GiB, a 4090 23.6. Sampling needs room of its own, for the keys and values of every token so far. And bf16
# is not for a T4: with fp16 the course keeps embeddings and head in float32, 2 GiB more for the 7B model.
#
# **Predict:** of adapters, 4 bits, double quantisation, checkpointing, 8-bit AdamW and logits in blocks, which two save most?

# %%
plan = plans["7B"]
everything = {**plan, "adapter_parameters": plan["linear_parameters"] + plan["other_parameters"]}
off = {"tokens": TOKENS, "quantised": False, "double_quantised": False, "checkpointing": False}
tricks = {
    "all weights": {**everything, **off},
    "+ adapters": {**plan, **off},
    "+ NF4": {**plan, **off, "quantised": True},
    "+ double": {**plan, **off, "quantised": True, "double_quantised": True},
    "+ checkpointing": {**plan, "tokens": TOKENS},
    "+ 8-bit Adam": {**plan, "tokens": TOKENS, "optimizer_bytes": 2},
    "+ logit blocks": {**plan, "tokens": TOKENS, "optimizer_bytes": 2, "logits_at_once": BLOCK},
}
totals = {label: answers.qlora_memory_gib(**how) for label, how in tricks.items()}
plot = lesson.plot("tricks", "7B: what each trick leaves (note the log scale)", "", "GiB", size=(7.2, 3.2))
bars = plot.axes.bar(list(totals), [parts["total"] for parts in totals.values()], color=COLOURS[0])
plot.axes.bar_label(bars, [f"{parts['total']:.1f}" for parts in totals.values()])
plot.axes.set_yscale("log")
plot.axes.tick_params(axis="x", labelsize=7)
plot

# %% [markdown]
# (The first bar counts the frozen copy in bf16 beside float32 weights, gradients and moments, as mixed precision has it.)
#
# The *paged* part of "paged 8-bit AdamW" is no saving: its moments may move to the machine's own memory when a long batch
# needs the room, and come back. It turns a crash into a slow step.
#
# ## Predicted against measured
#
# The same steps that training takes, on this machine, with every tensor counted that lives at a time. The first column
# is your function's.
#
# **Predict:** checkpointing computes each layer's forward pass once more. A backward pass is worth two forward passes. How much
# slower is a step?


# %%
def step(model, optimizer, groups, layout="packed"):
    """One optimiser step on the answers of these groups; the loss in nats a token."""
    found = response_logprobs(model, make_batch(groups, lesson.encoder.pad_id, layout))
    loss = -found.logprobs.sum() / found.mask.sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def qlora(quantization, checkpointing=False, rate=2e-3):
    """A base in that precision under a fresh adapter, and its optimiser."""
    frozen = load_base(name, quantization=quantization, gradient_checkpointing=checkpointing)
    settings = LoraSettings(r=16, alpha=32, dropout=0.0)
    model = add_adapter(frozen, "policy", settings).train()
    return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate)


def measured(quantization, checkpointing):
    """Predicted GiB, GiB of tensors at their peak, seconds of a step."""
    model, optimizer = qlora(quantization, checkpointing)
    batch = sorted(rows, key=lambda group: len(group.prompt_ids))[-32 if tiny else -2 :]
    width = max(len(group.prompt_ids) + len(group.responses[0]) for group in batch)
    with TensorPeak(model) as memory:
        for _ in range(2):
            step(model, optimizer, batch)
    started = time.perf_counter()
    step(model, optimizer, batch)
    seconds = time.perf_counter() - started
    found = sizes_of(model)
    plan = answers.qlora_memory_gib(
        tokens=len(batch) * width,
        **found,
        quantised=quantization == "nf4",
        compute_bytes=next(model.get_base_model().parameters()).element_size(),
        checkpointing=checkpointing,
        logits_at_once=min(len(batch) * width * found["vocab"] // 2, BLOCK),
    )
    free(model, optimizer)
    return plan["total"], memory.peak, seconds


# %%
cases = {
    "fp32": ("none", False),
    "fp32, checkpointing": ("none", True),
    "NF4": ("nf4", False),
    "NF4, checkpointing": ("nf4", True),
}
if not tiny:  # a 7B model in full precision is what this lesson is not about
    cases = {label: how for label, how in cases.items() if how[0] == "nf4"}
results = {label: measured(*how) for label, how in cases.items()}
Table(
    "MiB by your function, and at the peak",
    ["run", "predicted, MiB", "measured, MiB", "ratio"],
    [[label, p * 1024, m * 1024, p / m] for label, (p, m, _) in results.items()],
)

# %%
plot = lesson.plot(
    "memory_seconds", "Checkpointing buys memory with time", "seconds a step", "MiB at the peak"
)
for label, (_, peak, seconds) in results.items():
    plot.axes.plot(seconds, peak * 1024, "o", label=label)
plot.axes.set_ylim(bottom=0)
plot.axes.set_xlim(left=0)
plot

# %% [markdown]
# By the number of passes a step is four thirds as long; the figure has this machine's clock. On so small a model the base
# is next to nothing and NF4 saves nothing: activations are all. At 7 billion it is the other way round. And 4 bits are no
# faster: every matrix is unpacked at each use.
#
# What live tensors do not show is what an allocator holds beside them, and the kernels' own workspaces. `python -m helpers
# bench --only memory` measures whole processes, for `tiny` and for SmolLM2-135M in NF4; your function is to be within 15 %.
#
# ## QLoRA in twelve lines
#
# You have seen all of it: a base in NF4 that nothing moves, an adapter in float32, a loss, AdamW. Supervised
# fine-tuning as in lesson 01, once on the base in float32 and once in NF4.
#
# **Predict:** how much worse is the end of the NF4 curve?

# %%
STEPS, AT_ONCE = (40, 16) if tiny else (20, 4)


def fine_tune(model, optimizer, steps=range(STEPS)):
    """The losses of some steps, the rows in order."""
    return [step(model, optimizer, rows[n * AT_ONCE : (n + 1) * AT_ONCE]) for n in steps]


runs = {"NF4": qlora("nf4")}
if tiny:
    runs["fp32"] = qlora("none")
losses = {label: fine_tune(*run) for label, run in runs.items()}
plot = lesson.plot("loss", "4 bits cost next to nothing in training", "step", "nats a token")
for label, values in losses.items():
    plot.line(range(1, len(values) + 1), values, label)
plot

# %% [markdown]
# The adapter learns *around* the rounding: the base's error is there from the first step, and the gradient sees it.

# %%
trained = runs["NF4"][0]
adapter = save_adapter(trained, "policy", lesson.path / "adapter")
lesson.show(
    {"base": None, "QLoRA": adapter}, "Before and after: the adapter trained in NF4, here on the full base"
)

# %% [markdown]
# ## Merging, and the trap
#
# Adapters can be served as they are. To hand on one plain model, fold it in: $W + \frac{\alpha}{r} BA$. Into *which* $W$?
#
# - Into the full-precision base: exact, but it is not quite the base that the adapter was trained on.
# - Into the 4-bit base: that *is* the base it was trained on. The sum is rounded to 16 levels again.
#
# **Predict:** which one changes the model's answers more?

# %%
import warnings

from helpers.models.loading import load_adapter

kept = {"NF4 base + adapter": scores(trained)}
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PEFT warns of what this cell shows
    in_four = scores(trained.merge_and_unload())
free(*runs["NF4"])  # on a large model one base has to go before the next comes
whole = load_adapter(load_base(name, quantization="none"), adapter, "policy")
kept["full base + adapter"] = scores(whole)
kept["merged, full precision"] = scores(merge_adapter(whole, "policy").model)
kept["merged into 4 bits"] = in_four
kept = {**before, **kept}

# %%
reference = kept["NF4 base + adapter"]
Table(
    "Held-out answers: what is left of the training",
    ["model", "nats a token", "mean drift from what was trained", "largest"],
    [
        [label, -values.mean().item(), drift.mean, drift.largest]
        for label, values in kept.items()
        for drift in [Drift.between(values, reference)]
    ],
)

# %%
gain = {label: (values.mean() - kept["base"].mean()).item() for label, values in kept.items()}
plot = lesson.plot(
    "merge",
    "What the training gained, and what merging leaves of it",
    "",
    "nats a token better",
    size=(7.2, 3.2),
)
bars = plot.axes.bar(
    [label.replace(" + ", "\n+ ").replace(", ", ",\n") for label in gain],
    list(gain.values()),
    color=[COLOURS[1] if "4 bits" in k else COLOURS[0] for k in gain],
)
plot.axes.bar_label(bars, [f"{value:.2f}" for value in gain.values()])
plot.axes.tick_params(axis="x", labelsize=7)
plot.axes.axhline(0, color=COLOURS[6], linewidth=0.8)
plot

# %% [markdown]
# Merged in full precision, the model is what adapter and base were, up to rounding; moving it to the full base cost
# little. And the 4 bits? On `tiny` they lost little as well. This adapter is large: 40 steps at a rate of 2e-3 move many
# weights by more than half a step between two levels. Adapters of large models are trained at a tenth of that rate and
# move each weight far less. We can look at such an adapter by scaling this one down.
#
# **Predict:** and an adapter half as large, or a sixteenth?

# %%
from peft.tuners.lora import LoraLayer


def merged_at(scale):
    """Nats a token gained over the NF4 base: by the scaled adapter on it, and by the two merged in 4 bits."""
    model = load_adapter(load_base(name, quantization="nf4"), adapter, "policy")
    for layer in model.modules():
        if isinstance(layer, LoraLayer):
            layer.scaling["policy"] *= scale
    on_top = scores(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folded = scores(model.merge_and_unload())
    return [(found.mean() - before["base in NF4"].mean()).item() for found in (on_top, folded)]


scales = [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1]
beside, folded = zip(*map(merged_at, scales), strict=True)
plot = lesson.plot(
    "trap",
    "The smaller the adapter, the less of it survives 4 bits",
    "size of the adapter",
    "nats a token gained",
)
plot.axes.plot(scales, beside, "o-", label="adapter beside the NF4 base")
plot.axes.plot(scales, folded, "o-", label="merged into 4 bits")
plot.axes.set_xscale("log", base=2)
plot

# %%
for scale, one, other in zip(scales, beside, folded, strict=True):
    print(f"adapter × {scale:<7} gains {one:.3f}, merged {other:.3f}: {other / one:.0%} kept")

# %% [markdown]
# The weights of an NF4 base lie exactly on its levels. What moves one by less than half a step is rounded away: $W + BA$
# becomes $W$. What moves it further jumps a whole step. (Even an adapter of zeros changes the model a little, for the scales
# are rounded anew.)
#
# `merge_adapter` of this course refuses a 4-bit base. If the result has to be small, merge in full precision and quantise
# the merged model, once, with a tool that looks at data (GPTQ, AWQ) or with more than 4 bits (GGUF's `q8_0`, `q5_k_m`).

# %%
from helpers.errors import CourseError

try:
    merge_adapter(qlora("nf4")[0], "policy")
except CourseError as refusal:
    print(refusal)

# %% [markdown]
# ## A broken run: merge as you go
#
# An idea that comes up: merge the adapter into the base every few steps and go on with a fresh one. The rank adds up, and in
# full precision it works (ReLoRA trains whole models so). A smaller learning rate makes the adapters small when they are
# merged, as they are in the training of large models.
#
# **Predict:** what does the held-out loss do, if the base that they are merged into has 4 bits?

# %%
EVERY = 5


def merging_as_it_goes(quantization, merge=True, rate=5e-4):
    """Held-out nats a token, every few steps, when the adapter is merged and renewed."""
    model, optimizer = qlora(quantization, rate=rate)
    found = [-scores(model).mean().item()]
    for start in range(0, STEPS, EVERY):
        if start and merge:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                folded = model.merge_and_unload()
            model = add_adapter(folded, "policy", LoraSettings(r=16, alpha=32, dropout=0.0), seed=start)
            optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate)
        fine_tune(model.train(), optimizer, range(start, start + EVERY))
        found.append(-scores(model).mean().item())
    return found


curves = {
    "never merged, NF4": merging_as_it_goes("nf4", merge=False),
    "merged into NF4": merging_as_it_goes("nf4"),
}
if tiny:
    curves["merged, full precision"] = merging_as_it_goes("none")
plot = lesson.plot(
    "forgets", "Merged into 4 bits every 5 steps, a run forgets", "step", "held-out nats a token"
)
for label, values in curves.items():
    plot.axes.plot(range(0, STEPS + 1, EVERY), values, "o-", markersize=3, label=label)
plot

# %% [markdown]
# Nothing crashes, and the steps between two merges learn as they always did. Each merge takes it back: for most of the weights
# the update was smaller than half a step between two levels, and the next piece starts where the last one had started.
#
# ## On a real card
#
# Headless, with the profile's settings (NF4, double quantisation, checkpointing, paged 8-bit AdamW, logits in blocks):
#
# ```
# python -m helpers profile                       # what fits this machine, and why
# python -m helpers train --algo sft --profile qlora_7b --output_dir runs/sft_7b
# python -m helpers train --algo dpo --profile qlora_7b --init_adapter runs/sft_7b/final/adapter
# python -m helpers export --adapter runs/sft_7b --output_dir exported/sft_7b --check
# ```
#
# On a GPU the longest batch goes first (`--check_memory`): what does not fit says so in the first minute, with the flags to
# lower. On a T4 add `--micro_batch_tokens 1024 --max_prompt_tokens 512 --max_response_tokens 256 --lora_r 16`. Any hub id
# works: `--model_name Qwen/Qwen2.5-14B-Instruct`. `--backend unsloth` loads through Unsloth's kernels, where that is installed.
# `export` merges in full precision only, prints the drift from the NF4 base, and writes safetensors for transformers and
# vLLM; with `--format gguf --llama_cpp DIR` llama.cpp's own converter makes a GGUF file of them.
#
# ## In TRL
#
# The same run in TRL is a quantised base and `peft_config`; TRL adds the adapter itself:
#
# ```
# base = AutoModelForCausalLM.from_pretrained(name, quantization_config=BitsAndBytesConfig(
#     load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16))
# SFTTrainer(base, args=SFTConfig(optim="paged_adamw_8bit", gradient_checkpointing=True), train_dataset=data,
#     peft_config=LoraConfig(r=32, lora_alpha=64, target_modules="all-linear")).train()
# ```
#
# ## Questions
#
# 1. What part of the 7B run's GiB is neither weights nor activations? Which single setting would you change for a 14B model on
#    16 GB?
# 2. By how many nats does the adapter suffer from each of the two moves: from the NF4 base to the full base, and from the
#    full base to a 4-bit merge?
# 3. Where does your prediction miss most, and in which direction? What lives that it does not count?
#
# ## To read
#
# - Dettmers et al., *QLoRA* (2023), [arXiv 2305.14314](https://arxiv.org/abs/2305.14314): section 3 has NF4, double
#   quantisation and paged optimisers.
# - Hu et al., *LoRA* (2021), [arXiv 2106.09685](https://arxiv.org/abs/2106.09685).
# - Dettmers et al., *LLM.int8()* (2022), [arXiv 2208.07339](https://arxiv.org/abs/2208.07339): outliers, from 6.7 billion
#   parameters on.
# - Chen et al., *Training deep nets with sublinear memory cost* (2016), [arXiv 1604.06174](https://arxiv.org/abs/1604.06174).
# - Lialin et al., *ReLoRA* (2023), [arXiv 2307.05695](https://arxiv.org/abs/2307.05695): merging as one goes, done right.

# %%
lesson.finish()
