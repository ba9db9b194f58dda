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
# # 05 · AOT: one distribution above another
#
# DPO compares the two answers of a pair. AOT compares two *heaps*: all chosen answers and all rejected ones, quantile
# by quantile. The pairing is not needed any more, so thumbs up and thumbs down on different prompts will do. The price
# is that the loss of a batch is no longer a sum over its pairs, with a trap in it that has caught at least one library.
#
# | profile | minutes | memory |
# |---|---|---|
# | `tiny`, two CPU cores | 1 (measured) | 1 GiB |
# | `colab`, one T4 | not measured | as lesson 03 |

# %% tags=["setup"]

# %%
import torch
import torch.nn.functional as F

from helpers.course.checks import check
from helpers.course.lesson import Lesson
from helpers.models.policy import response_logprobs

lesson = Lesson("05_aot")

# %% [markdown]
# ## Better at every quantile
#
# Let $u$ be the log-ratio $\log\frac{\pi(y|x)}{\pi_{\mathrm{ref}}(y|x)}$ of an answer. Over the data the chosen answers
# have one distribution of $u$ and the rejected ones another. The first *dominates* the second if each of its quantiles
# is at least as high: the worst chosen answer beats the worst rejected one, the median the median, the best the best.
#
# In one dimension the way to match two heaps of equal size at least cost is known: sort both, and match by rank. With
# $u_{(1)} \le u_{(2)} \le \dots$ for the chosen and $v_{(1)} \le v_{(2)} \le \dots$ for the rejected answers of a batch
# of $B$:
#
# $$\mathcal{L}_{\mathrm{AOT}} = \frac{1}{B}\sum_{k=1}^{B} -\log\sigma\big(\beta\,[u_{(k)} - v_{(k)}]\big)$$
#
# **Before you write it:** what does the loss become for a batch of one pair?

# %% tags=["exercise"]
from solutions.answers import aot_loss

# %%
check("aot_loss", aot_loss)

# %% [markdown]
# ## What the pairing is worth
#
# Deal the rejected answers out anew, so that no pair is left together. DPO's loss changes. Yours should not.

# %%
answers = lesson.use(aot_loss=aot_loss)
generator = torch.Generator().manual_seed(0)
u, v = 3 * torch.randn(8, generator=generator) + 2, 3 * torch.randn(8, generator=generator)
zero, dealt = torch.zeros(8), torch.randperm(8, generator=generator)
dpo = [-F.logsigmoid(0.2 * (u - other)).mean().item() for other in (v, v[dealt])]
aot = [answers.aot_loss(u, other, zero, zero, 0.2).item() for other in (v, v[dealt])]
print(f"DPO: {dpo[0]:.4f} in pairs, {dpo[1]:.4f} dealt anew")
print(f"AOT: {aot[0]:.4f} in pairs, {aot[1]:.4f} dealt anew")

# %% [markdown]
# ## The trap: who is in the batch
#
# Cut the same eight into smaller batches and take the mean of their losses. For DPO that changes nothing.
#
# **Predict:** what is AOT at batches of one?


# %%
def cut(size):
    """Mean loss over batches of `size`."""
    parts = [slice(start, start + size) for start in range(0, 8, size)]
    return sum(answers.aot_loss(u[p], v[p], zero[p], zero[p], 0.2).item() for p in parts) / len(parts)


for size in (8, 4, 2, 1):
    print(f"batches of {size}: AOT {cut(size):.4f}")
print(f"DPO, whatever the batches: {dpo[0]:.4f}")

# %% [markdown]
# At one pair a batch there is nothing to sort, and AOT *is* DPO. A trainer that splits a batch of 16 into 16
# micro-batches to save memory, and sorts inside each, has quietly trained DPO. This course's trainer first computes
# the log-probabilities of the whole optimiser batch, lets your function see all of them, and back-propagates in
# micro-batches afterwards.
#
# ## The two heaps before training
#
# Before the first step both are a single point at 0, as the policy is the reference. So look at where they are after
# training, on pairs that were held out.
#
# **Predict:** on the plot of chosen quantiles over rejected quantiles, where will the points lie: above the diagonal
# everywhere, or only in the middle?

# %%
run = lesson.train("aot", answers, on_tiny={"train_limit": 2000, "num_train_epochs": 1.0, "logging_steps": 1})
lesson.curves({"AOT": run}, "loss", "The loss falls from ln 2, as DPO's does", "loss").mark(0.6931, "ln 2")

# %%
held_out = lesson.groups(lesson.held_out(limit=256))


@torch.no_grad()
def log_ratios(policy):
    """(pairs, 2) log-ratio of every held-out answer, chosen and rejected."""
    sums = []
    for role in (lesson.role(policy), lesson.role(None)):
        with role.active():
            parts = [lesson.batch(held_out[i : i + 32]) for i in range(0, len(held_out), 32)]
            sums.append(torch.cat([response_logprobs(role.model, p).logprobs.sum(dim=1) for p in parts]))
    return (sums[0] - sums[1]).view(-1, 2)


def quantile_plot(key, title, policies):
    """Sorted chosen over sorted rejected log-ratios."""
    plot = lesson.plot(key, title, "rejected log-ratio, sorted, nats", "chosen, sorted, nats")
    for label, policy in policies.items():
        ratios = log_ratios(policy).sort(dim=0).values
        plot.axes.plot(ratios[:, 1], ratios[:, 0], ".", markersize=4, label=label)
    low, high = plot.axes.get_xlim()
    plot.axes.plot([low, high], [low, high], "--", color="#888888", linewidth=1, label="equal")
    return plot


quantile_plot("quantiles", "After: the chosen heap lies above the rejected one", {"AOT": run})

# %%
lesson.show({"base": None, "AOT": run}, "After AOT")

# %%
lesson.evaluate({"base": None, "AOT": run})

# %% [markdown]
# ## A broken run: sorted against each other
#
# Sort one side upwards and the other downwards. It is one argument, and everything runs: the best chosen answer is
# then held against the worst rejected one, and the worst chosen one against the best rejected one.
#
# **Predict:** which of these matches can a model hope to win, and what will it do about the others?


# %%
def against_each_other(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """AOT with one sort the wrong way round."""
    chosen = (policy_chosen - ref_chosen).sort().values
    rejected = (policy_rejected - ref_rejected).sort(descending=True).values
    return F.softplus(-beta * (chosen - rejected)).mean()


broken = lesson.train(
    "aot",
    lesson.use(unchecked=True, aot_loss=against_each_other),
    name="against_each_other",
    on_tiny={"train_limit": 2000, "num_train_epochs": 1.0, "logging_steps": 1},
)
both = {"AOT": run, "sorted against each other": broken}
lesson.curves(
    both, "loss", "Sorted against each other, the loss stays near ln 2", "loss", key="loss_both"
).mark(0.6931, "ln 2")

# %%
quantile_plot("quantiles_broken", "The heaps hardly move apart", both)

# %%
lesson.evaluate({"base": None, **both})

# %% [markdown]
# To gain on the worst chosen against the best rejected answer, the run must make both heaps narrow: it holds the model
# where it was, and learns little else. How much the matching matters depends on $\beta$: while $\beta\,(u - v)$ is small,
# $-\log\sigma$ is nearly a straight line, and the mean of a straight line does not depend on who is matched with whom.
# With $\beta = 0.1$ this slip is invisible here, and lives for months in a code base until somebody asks more of it.

# %%
for name, function in (("yours", answers.aot_loss), ("sorted against each other", against_each_other)):
    print(f"{name}: {function(u, v, zero, zero, 2.0).item():.3f}")

# %% [markdown]
# ## The same in TRL
#
# `loss_type="aot_unpaired"` is this form; `"aot"` is the paired one, which sorts margins of pairs. The batch must be
# large on the device itself: TRL sorts within the micro-batch.

# %%
from peft import LoraConfig
from trl import DPOConfig, DPOTrainer

settings = DPOConfig(
    output_dir=str(lesson.path / "trl"),
    loss_type="aot_unpaired",
    beta=0.5,
    learning_rate=2e-3,
    per_device_train_batch_size=32,
    max_steps=20,
    logging_steps=1,
    gradient_checkpointing=False,
    bf16=False,
    report_to="none",
    save_strategy="no",
    dataloader_pin_memory=False,
)
trainer = DPOTrainer(
    model=lesson.fresh_base(),
    args=settings,
    train_dataset=lesson.conversations(lesson.examples(limit=640)),
    processing_class=lesson.tokenizer,
    peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
)
losses = lesson.losses_of(trainer)
plot = lesson.plot("trl", "TRL's unpaired AOT starts at ln 2 too", "step", "loss")
plot.line(range(1, len(losses) + 1), losses, "TRL").mark(0.6931, "ln 2")

# %% [markdown]
# ## Questions
#
# 1. By how much did AOT's loss on the eight numbers change from batches of eight to batches of one?
# 2. Is there any quantile on the first quantile plot where the rejected heap is above the chosen one?
# 3. What did the wrong matching cost in the table, and which of the three scores suffered most?
#
# ## To read
#
# - Melnyk et al., *Distributional Preference Alignment of LLMs via Optimal Transport* (2024),
#   [arXiv 2406.05882](https://arxiv.org/abs/2406.05882): section 3 for dominance, both forms of the loss.

# %%
lesson.finish()
