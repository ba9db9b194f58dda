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
# # 01 · Supervised fine-tuning
#
# The simplest way to change how a model answers is to show it answers. The loss is the one it was pretrained with;
# what is new is *which* tokens it is taken over, and how they are averaged. You will write it, train with it, and
# see what becomes of a model that is never told when to stop.
#
# | profile | minutes | memory |
# |---|---|---|
# | `tiny`, two CPU cores | 1 (measured) | 1 GiB |
# | `colab`, one T4 | not measured; some 30 | 10 GB of GPU memory, an estimate |

# %% tags=["setup"]

# %%
import math

import torch

from helpers.course.checks import check
from helpers.course.lesson import Lesson
from helpers.course.lesson_display import Table
from helpers.course.plots import BLUE, GREY, VERMILLION
from helpers.models.policy import response_logprobs

lesson = Lesson("01_sft")

# %% [markdown]
# ## What the data is
#
# Prompts, each with one answer that somebody found good. There is no bad answer to compare it with.

# %%
rows = lesson.examples(kind="sft", limit=800)
for row in rows[:4]:
    print("prompt:", row.messages[-1]["content"])
    print("answer:", row.responses[0], "\n")

# %% [markdown]
# The twelve prompts of the course, before:

# %%
lesson.show({"base": None}, "Before: the base model, answers tinted from bad (orange) to good (green)")

# %% [markdown]
# ## The loss
#
# Make the answers likely: maximise $\log p(y \mid x)$, which is a sum over tokens. Per token, over all answers $i$ of
# a batch:
#
# $$\mathcal{L} = -\,\frac{\sum_i \sum_{t} \log p(y_{i,t} \mid x_i, y_{i,<t})}{\sum_i |y_i|}$$
#
# Two decisions hide in it.
#
# **Answers only.** The prompt is given to the model, not asked of it. This is what counts in one row:

# %%
groups = sorted(lesson.groups(rows[:64], "sft"), key=lambda group: len(group.responses[0]))[::8]
batch = lesson.batch(groups)
mask = batch.mask_in_rows()  # (B, T): true on the tokens of the answers
with torch.no_grad():
    logits = lesson.model()(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
context = batch.attention_mask.bool() & ~mask
print("context:", repr(lesson.tokenizer.decode(batch.input_ids[0][context[0]])))
print("learnt: ", repr(lesson.tokenizer.decode(batch.input_ids[0][mask[0]])))

# %% [markdown]
# Look at the decoded tokens whenever you set up a training run. The first word of the answer has to be there (a mask
# that is one place off loses it), the end-of-turn token has to be there, and nothing of the prompt. What stands
# outside the mask may be anything, NaN too: select, do not multiply by zero.
#
# **Every token the same.** The denominator counts the tokens of the whole batch. The mean over answers of their mean
# per token looks alike, and is another thing: in it, a token of a short answer weighs more than one of a long answer.
#
# **Predict:** one answer has the single token loss 3, another has the losses 1, 1 and 1. What is the loss of the
# batch, and what would the mean of the two means be?

# %% tags=["exercise"]
from solutions.answers import sft_loss

# %%
check("sft_loss", sft_loss)

# %% [markdown]
# ### The same trap, one level up
#
# A batch that does not fit in memory is cut into micro-batches, and their gradients are added up. If each
# micro-batch takes its own mean, the mean of means is back.

# %%
answers = lesson.use(sft_loss=sft_loss)
total = int(mask.sum())
table, means, weighted = [], [], []
for start in range(0, len(groups), 2):
    two = slice(start, start + 2)
    loss = answers.sft_loss(logits[two], batch.input_ids[two], mask[two]).item()
    tokens = int(mask[two].sum())
    means.append(loss)
    weighted.append(loss * tokens / total)
    table.append([f"{start}–{start + 1}", tokens, loss, f"1/{4 * tokens}", f"1/{total}"])
header = ["answers", "tokens", "mean loss", "one token weighs, mean of means", "token-weighted"]
Table("In the mean of means, tokens of short answers are louder", header, table)


# %%
def gradient(parts, weights):
    """Gradient of the weighted sum of the parts' losses, with respect to the logits."""
    free = logits.float().detach().requires_grad_()
    losses = [answers.sft_loss(free[p], batch.input_ids[p], mask[p]) for p in parts]
    return torch.autograd.grad(sum(w * loss for w, loss in zip(weights, losses, strict=True)), free)[0]


whole = answers.sft_loss(logits, batch.input_ids, mask).item()
print(f"one batch of eight             {whole:.4f}")
print(f"micro-batches, token-weighted  {sum(weighted):.4f}")
print(f"micro-batches, mean of means   {sum(means) / len(means):.4f}\n")

parts = [slice(start, start + 2) for start in range(0, 8, 2)]
right = gradient([slice(0, 8)], [1.0])
ways = {
    "token-weighted": [int(mask[p].sum()) / total for p in parts],
    "mean of means": [1 / 4] * 4,
    "sum of means": [1.0] * 4,
}
for name, weights in ways.items():
    error = (gradient(parts, weights) - right).norm() / right.norm()
    print(f"gradient, {name}: off by {error:.1%}")

# %% [markdown]
# The losses hardly differ, and that is why nobody saw it: widely used trainers took the mean of means until late in
# 2024. The last line is a slip that is quieter still. Divide by the number of micro-batches for the log, but not
# before the backward pass, and the curve is right while gradients are four times too large. So compare gradients with
# those of one large batch, not losses.
#
# What counting the prompt would do, in numbers:

# %%
everything = answers.sft_loss(logits, batch.input_ids, batch.attention_mask.bool()).item()
share = 1 - whole * total / (everything * int(batch.attention_mask[:, 1:].sum()))
print(f"answers only:         {whole:.2f} nats a token")
print(f"prompts and answers:  {everything:.2f}, and the prompts make {share:.0%} of the sum")

# %% [markdown]
# Most of such a loss is about guessing what people will ask.
#
# ## Perplexity
#
# $\exp$ of the mean negative log-likelihood, again over tokens: how many equally likely tokens the model is wavering
# between, on average. 1 is certainty. It is what SFT is measured by on held-out answers.
#
# Averages of batches' perplexities are wrong for the reason above. And $T$ tokens have $T - 1$ log-probabilities:
# who divides by $T$ flatters the model.

# %% tags=["exercise"]
from solutions.answers import perplexity

# %%
check("perplexity", perplexity)

# %%
answers = lesson.use(sft_loss=sft_loss, perplexity=perplexity)
held_out = lesson.groups(lesson.held_out("sft", limit=100), "sft")
found = []
for start in range(0, len(held_out), 10):
    with torch.no_grad():
        scores = response_logprobs(lesson.model(), lesson.batch(held_out[start : start + 10]))
    found.append(scores.logprobs[scores.mask])
flat = torch.cat(found)[None]
base_perplexity = answers.perplexity(flat, torch.ones_like(flat, dtype=torch.bool))
print(f"the base's perplexity on {len(held_out)} held-out answers: {base_perplexity:.3f}")
print(f"guessing among all tokens would give {len(lesson.tokenizer)}")
print(f"the loss that belongs to it: {math.log(base_perplexity):.3f}")

# %% [markdown]
# ## Your loss and the trainer's
#
# Your function takes logits. For a vocabulary of 151,936 those are the largest tensor of the whole run, so the
# trainer can do without them: it goes from hidden states to log-probabilities in pieces. It must be the same number.

# %%
with torch.no_grad():
    scores = response_logprobs(lesson.model(), batch)
fused = -scores.logprobs.sum().item() / int(scores.mask.sum())
print(f"your loss on full logits   {whole:.7f}")
print(f"the trainer's, in pieces   {fused:.7f}")

# %% [markdown]
# ## Train
#
# On `tiny` your function trains the model (`fused` off); where logits do not fit, the trainer takes its own way to the
# same number. What learns is an adapter, LoRA: two thin matrices beside every frozen one, which start as no change at
# all.
#
# **Predict:** where does the loss begin? You have seen the number. And what will change more, what the answers say or
# how they say it?

# %%
settings = {"fused": False, "num_train_epochs": 2.0, "logging_steps": 1, "eval_steps": 10}
run = lesson.train("sft", answers, eval_limit=100, on_tiny=settings)


# %%
def draw_loss(key, title, run):
    """Loss on the answers it learns from and on held-out ones, which begin with the base."""
    metrics = lesson.metrics(run)
    plot = lesson.plot(key, title, "step", "nats a token")
    plot.line(metrics["loss"].steps, metrics["loss"].values, "training")
    steps, values = metrics["eval_perplexity"].steps.tolist(), metrics["eval_perplexity"].values.tolist()
    plot.line([0, *steps], torch.tensor([base_perplexity, *values]).log(), "held out", marker="o")
    return plot


draw_loss("sft", "Both losses fall, most of it in the first steps", run)

# %%
lesson.show({"base": None, "SFT": run}, "After: refusals, and politer answers")

# %%
lesson.evaluate({"base": None, "SFT": run})

# %% [markdown]
# How to read it: greedy answers to prompts that training never saw. The judge sees each beside the base's, in both orders,
# and a tie counts one half; the 95 % are a bootstrap interval over prompts. Helpful, harmless and honest are mean scores
# from 0 to 1 over the prompts that ask for each; *honest* asks about invented things only, so a model that denies a real
# place loses in *helpful*.
#
# ## Too little data
#
# The same with 64 answers, again and again.
#
# **Predict:** how do the two curves go on?

# %%
few = lesson.train(
    "sft",
    answers,
    name="few",
    train_limit=64,
    num_train_epochs=15.0,
    eval_steps=5,
    eval_limit=100,
    on_tiny={"fused": False, "per_device_train_batch_size": 16, "logging_steps": 1},
)
draw_loss("few", "64 answers: training goes on, held-out loss turns", few)

# %%
lesson.evaluate({"base": None, "SFT": run, "64 answers": few})

# %% [markdown]
# The model learns the 64 answers by heart, and grows surer of words that others would not have chosen. Yet its own
# answers are still far better than the base's: a manner is learnt from few examples, and greedy answers do not show
# how sure a model is. Ouyang et al. trained on past this turn on purpose, as people's ratings still rose. What
# perplexity measures is not what we want; it is what we can measure without a judge.
#
# ## A broken run: the end left out
#
# The mask of lesson 00 that goes by token id: padding has the id of the end-of-turn token, so that token is in no loss.
#
# **Predict:** will the training loss be higher or lower than before? Which answers will change?

# %%
stop = lesson.encoder.end_of_turn_id


def without_end(logits, input_ids, mask):
    """The loss, with the token that ends an answer taken for padding."""
    return sft_loss(logits, input_ids, mask & (input_ids != stop))


broken = lesson.train(
    "sft",
    lesson.use(unchecked=True, sft_loss=without_end, perplexity=perplexity),
    name="without_end",
    fused=False,
    eval_limit=100,
    on_tiny=settings,
)
both = {"SFT": run, "without end": broken}
for name, policy in both.items():
    print(f"{name}: mean loss of the last ten steps {lesson.metrics(policy)['loss'].values[-10:].mean():.3f}")
lesson.curves(both, "loss", "The training loss cannot tell: the broken run looks better", "nats a token")

# %%
title = "Held-out perplexity can: it counts the ends"
plot = lesson.plot("held_out", title, "step", "perplexity")
for name, policy in both.items():
    curve = lesson.metrics(policy)["eval_perplexity"]
    plot.line([0, *curve.steps], [base_perplexity, *curve.values], name, marker="o")
plot

# %%
lesson.show(both, "Without its end, an answer is not finished when it is complete")

# %%
prompts = lesson.held_out("prompts", 150)
plot = lesson.plot("lengths", "Without its end, many an answer runs on", "tokens", "share still going")
longest = lesson.budget.max_new_tokens
for (name, policy), colour in zip({"base": None, **both}.items(), (GREY, BLUE, VERMILLION), strict=True):
    report = lesson.report(name, policy, prompts)
    lengths = torch.tensor(report.generated_tokens)
    going = [(lengths > length).float().mean().item() for length in range(longest)]
    plot.axes.plot(range(longest), going, color=colour, label=name)
    print(f"{name}: {report.truncated_share:.0%} of the answers had to be cut off at {longest} tokens")
plot

# %%
lesson.evaluate({"base": None, **both})

# %% [markdown]
# Nothing taught it to go on; it was only never taught where to stop. What it had learnt about that before, as a base,
# fades while the rest is trained. And the loss looks better than that of the sound run: it leaves out a token that is
# not quite certain.
#
# ## The same in TRL
#
# TRL takes the same messages. A prompt with a completion is learnt by its completion only.

# %%
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

trl_settings = SFTConfig(
    output_dir=str(lesson.path / "trl"),
    learning_rate=2e-3,
    per_device_train_batch_size=32,
    max_steps=20,
    logging_steps=1,
    gradient_checkpointing=False,
    bf16=False,
    dataloader_pin_memory=False,
    report_to="none",
    save_strategy="no",
    disable_tqdm=True,
)
trainer = SFTTrainer(
    model=lesson.fresh_base(),
    args=trl_settings,
    train_dataset=lesson.conversations(rows[:640]),
    processing_class=lesson.tokenizer,
    peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
)
theirs = trainer.data_collator([trainer.train_dataset[0]])
live = theirs["input_ids"][theirs["labels"] != -100].tolist()
ours = lesson.groups(rows[:1], "sft")[0]
print("learnt by TRL: ", repr(lesson.tokenizer.decode(live)))
print("learnt by us:  ", repr(lesson.tokenizer.decode(ours.responses[0])))

ids, learnt = theirs["input_ids"].to(lesson.model().device), theirs["labels"] != -100
shorter = learnt.clone()
shorter[:, len(ours.prompt_ids) + len(ours.responses[0]) :] = False
with torch.no_grad():
    logits = lesson.model()(input_ids=ids).logits
for name, mask in {"TRL's tokens": learnt, "ours": shorter}.items():
    print(f"the base's loss on {name}: {answers.sft_loss(logits, ids, mask.to(ids.device)):.3f}")

# %%
losses = lesson.losses_of(trainer)
own = lesson.metrics(run)["loss"]
plot = lesson.plot("trl", "TRL's loss falls like ours", "step", "nats a token")
plot.line(own.steps[:20], own.values[:20], "this course")
plot.line(range(1, len(losses) + 1), losses, "TRL")
plot

# %% [markdown]
# The curves differ in the order of the data and in the first weights of the adapter. They also count slightly different
# tokens: TRL's rows end with whatever the template writes behind the end of turn, here a line end. The model never gets
# to say it, so it does no harm; but losses of two libraries can only be compared once the tokens are the same.
#
# TRL can also *pack*: put several conversations into one row, so that no padding is computed. It is safe only if no
# conversation sees another (position ids that restart, an attention mask that respects it), if each is closed by its
# own end of turn, and if labels are the ids themselves where the trainer shifts, and their successors where it does
# not.
#
# ## Questions
#
# 1. At which step was the held-out loss of the 64 answers lowest, and how low was the training loss at the end?
# 2. By how much do training loss and win rate of the broken run differ from those of the sound one, and which way?
# 3. SFT made at least one kind of prompt worse. Look at questions about places that do exist: what did the answers
#    teach, and how would you mend it?
#
# ## To read
#
# - Ouyang et al. (2022), [arXiv 2203.02155](https://arxiv.org/abs/2203.02155), section 3.5: SFT as the first of three
#   steps.
# - Zhou et al., *LIMA* (2023), [arXiv 2305.11206](https://arxiv.org/abs/2305.11206): a thousand good answers, and why
#   perplexity is a poor judge of them.
# - Hu et al., *LoRA* (2021), [arXiv 2106.09685](https://arxiv.org/abs/2106.09685).

# %%
lesson.finish()
