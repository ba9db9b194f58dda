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
# # 00 · Set-up and data
#
# Every method of this course looks at a model through one number: the log-probability of a token given the tokens
# before it. You will write the two functions it rests on, which tokens count and how likely they are, and look at
# the data and at the model as it is before anyone has taught it manners.
#
# | stage | learns from | lessons |
# |---|---|---|
# | supervised fine-tuning (SFT) | good answers | 01 |
# | reward model | pairs of answers, one preferred | 02 |
# | DPO and its relatives | the same pairs, without a reward model | 03–05 |
# | PPO, GRPO and their relatives | the model's own answers, scored by the reward model | 06–09 |
# | judging, and what goes wrong | all of them side by side | from 10 |
#
# | profile | minutes | memory |
# |---|---|---|
# | `tiny`, two CPU cores | below 1 (measured) | 1 GiB |
# | `colab`, one T4 | not measured; some 5, most of it downloading the model | 8 GB of GPU memory, an estimate |

# %% tags=["setup"]

# %%
import math

import torch

from helpers.course.checks import check
from helpers.course.lesson import Lesson
from helpers.course.lesson_display import Table
from helpers.course.plots import BLUE, GREY, SKY, VERMILLION
from helpers.models.policy import response_logprobs

lesson = Lesson("00_setup_and_data")

# %% [markdown]
# A profile is a model, a data set and a way of computing that fit the machine. `tiny` is a world of its own: a model
# of a million parameters and small talk in which every answer can be judged exactly. Set the environment variable
# `COURSE_PROFILE` to choose another; everything you write works with all of them.
#
# ## What the data is
#
# One prompt, two answers, and somebody's word that the first is better.

# %%
pairs = lesson.examples(kind="preference", limit=200)
pair = pairs[3]
print("prompt:  ", pair.messages[-1]["content"])
print("chosen:  ", pair.responses[0])
print("rejected:", pair.responses[1])

# %% [markdown]
# How likely does the model find each token of these answers? The trainers' own function says it; by the end of the
# lesson yours will say the same.

# %%
group = lesson.groups([pair])[0]
with torch.no_grad():
    scores = response_logprobs(lesson.model(), lesson.batch([group])).logprobs


def draw_tokens(key, title, ids, values):
    """Bars of the log-probability of each token; the first 24 of them."""
    words = [lesson.tokenizer.decode([token]).replace("\n", "⏎") for token in ids[:24]]
    plot = lesson.plot(key, title, "token", "log-probability", size=(6.4, 2.5))
    plot.axes.bar(range(len(words)), values[: len(words)], color=BLUE)
    plot.axes.set_xticks(range(len(words)), words, rotation=60, ha="right", fontsize=8)
    plot.axes.set_ylim(min(-5.0, float(values.min())), 0.2)
    return plot


good, bad = group.responses
draw_tokens("chosen_tokens", "The chosen answer: nearly every token is expected", good, scores[0])

# %%
draw_tokens("rejected_tokens", "The rejected one: a single token is a surprise", bad, scores[1])

# %% [markdown]
# A log-probability is never above 0, and 0 is certainty. Most tokens of a sentence follow from the others; the model
# decides in a few places, and those are what this course moves.
#
# ## The model before any training
#
# These twelve prompts go through the whole course. The answers are greedy: always the likeliest token.

# %%
lesson.show({"base": None}, "The base model, answers tinted from bad (orange) to good (green)")

# %% [markdown]
# The base of `tiny` knows a good deal. It also obeys a harmful request, describes a place that does not exist, and is
# rude now and then. Nobody has told it not to.
#
# ## What a conversation becomes
#
# A model sees ids. The *chat template*, which comes with the tokenizer, says how turns are written: markers that
# no user can type begin and end each of them. A prompt ends where the assistant is to begin.

# %%
prompt_ids = lesson.encoder.encode_prompt(pair.messages)
response_ids = lesson.encoder.encode_response(pair.responses[0])
print(lesson.tokenizer.decode(prompt_ids + response_ids))
print("-" * 40)
print("begin-of-text id:", lesson.encoder.bos_id, "(None: this template has none)")
print("end-of-turn id:  ", lesson.encoder.end_of_turn_id)

# %%
parts = [("prompt", token) for token in prompt_ids] + [("response", token) for token in response_ids]
rows = [(at, token, repr(lesson.tokenizer.decode([token])), part) for at, (part, token) in enumerate(parts)]
near = len(prompt_ids)
shown = rows[max(near - 4, 0) : near + 4] + rows[-3:]
Table("Where the response begins, and its end", ["position", "id", "text", "part"], shown)

# %% [markdown]
# Three things to see:
#
# - The response ends with exactly one end-of-turn token. It is the model's word for "I have finished", and it is
#   learnt like any other.
# - Prompt and response are encoded apart and joined as ids. Encode the whole text instead and look for the seam
#   afterwards, and a merge across it moves the boundary. Count a prompt's length on the ids that enter the model,
#   never on the text without its template.
# - Where a template writes a begin-of-text token, the tokenizer must not add a second one.
#
# ## Which tokens count
#
# Rows of a batch have different lengths, so short ones are filled up with padding. Three kinds of token, then, and
# only one of them is the model's to answer for.

# %%
batch = lesson.batch(lesson.groups(pairs[:2]))
prompt_lengths = torch.tensor([len(g.prompt_ids) for g in lesson.groups(pairs[:2]) for _ in g.responses])
print("input_ids:", tuple(batch.input_ids.shape), "two rows a pair, the chosen answer first")
print("prompt lengths:", prompt_lengths.tolist())
print("real tokens:   ", batch.attention_mask.sum(dim=1).tolist())

# %% [markdown]
# **Predict:** how many response tokens has the first row?
#
# Write the mask from positions alone: after the prompt, and not padding.

# %% tags=["exercise"]
from solutions.answers import response_mask

# %%
check("response_mask", response_mask)

# %%
mine = lesson.use(response_mask=response_mask)
mask = mine.response_mask(prompt_lengths.to(batch.input_ids.device), batch.attention_mask).cpu()
responses = mask.sum(dim=1)
padding = mask.shape[1] - prompt_lengths - responses
plot = lesson.plot("batch", "Your mask: only the middle of each row is learnt from", "position", "row")
left = torch.zeros_like(responses)
parts = [("prompt", SKY, prompt_lengths), ("response", BLUE, responses), ("padding", GREY, padding)]
for label, colour, width in parts:
    plot.axes.barh(range(len(width)), width, left=left, label=label, color=colour, height=0.7)
    left = left + width
plot.axes.set_yticks(range(len(mask)))
plot.axes.invert_yaxis()
plot.axes.set_xlim(0, mask.shape[1] * 1.28)  # room for the legend
plot

# %% [markdown]
# A count is a position here because rows begin at column 0. For sampling they are padded on the *left*, so that every
# prompt ends in the last column, and there a count of prompt tokens says nothing about where the response begins.
#
# ### Why not simply `input_ids != pad_id`?
#
# Many tokenizers come without a padding token, and the usual advice is `tokenizer.pad_token = tokenizer.eos_token`.
# From then on the id of padding is the id of "I have finished".
#
# **Predict:** which response tokens does a mask by id lose?

# %%
stop = lesson.encoder.end_of_turn_id
filled = torch.where(batch.attention_mask.bool(), batch.input_ids, stop).cpu()  # padding has its id
by_id = mask & (filled != stop)
ends = filled == stop
counts = torch.stack([mask.sum(1), by_id.sum(1), (mask & ends).sum(1), (by_id & ends).sum(1)], dim=1)
rows = [(row, *numbers) for row, numbers in enumerate(counts.tolist())]
header = ["row", "tokens by position", "tokens by id", "end of turn by position", "end of turn by id"]
Table("A mask by id loses one token a row, always the same one", header, rows)

# %% [markdown]
# One token of a row, and the only one that says when to stop. Lesson 01 trains a model with this mask.
#
# ## How likely a token is
#
# For a row $x_0 \dots x_{T-1}$ the model returns logits of shape $(T, V)$. Those at position $t$ have seen
# $x_0 \dots x_t$, and predict what comes *next*:
#
# $$\log p(x_{t+1} \mid x_{\le t}) = \mathrm{logits}_t[x_{t+1}] - \log\sum_v \exp \mathrm{logits}_t[v]$$
#
# The last logits predict a token that is not there, and nothing predicts the first token. So $T$ tokens have
# $T - 1$ log-probabilities. Logarithms are natural, so their unit is the nat. Logits may come in half precision: compute
# in float32.
#
# Three traps: normalise over the vocabulary, not over the batch; subtract the log-sum-exp, as the logarithm of a
# softmax is minus infinity for an unlikely token; and keep the batch axis of a batch of one.

# %% tags=["exercise"]
from solutions.answers import token_logprobs

# %%
check("token_logprobs", token_logprobs)

# %% [markdown]
# The mask is aligned with the tokens, the log-probabilities begin at token 1. `mask[:, 1:]` lines them up; a mask
# that is moved the other way loses the first token of every response.
#
# Gradients are off below because we only look. While training they have to be on, or the loss is a constant.

# %%
answers = lesson.use(response_mask=response_mask, token_logprobs=token_logprobs)


def response_scores(batch):
    """Log-probabilities of the responses' tokens, row after row, by your two functions on full logits."""
    device = batch.input_ids.device
    with torch.no_grad():
        logits = lesson.model()(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    mask = answers.response_mask(prompt_lengths.to(device), batch.attention_mask)
    return answers.token_logprobs(logits, batch.input_ids)[mask[:, 1:]]


mine = response_scores(batch)
print(f"{len(mine)} response tokens, from {mine.min():.2f} to {mine.max():.5f}")

# %% [markdown]
# ## The same numbers without the logits
#
# Logits are large: with a vocabulary of 151,936, one row of 1,000 tokens takes 600 MB. The trainers never hold
# them. They take the hidden states at response positions through the last layer in pieces, and often put a prompt
# and its answers into *one* row, in which each answer sees the prompt and itself only.
#
# **Predict:** how close can the three ways come in float32?

# %%
for layout in ("padded", "packed"):
    again = lesson.batch(lesson.groups(pairs[:2]), layout)
    with torch.no_grad():
        theirs = response_logprobs(lesson.model(), again)
    difference = (mine - theirs.logprobs[theirs.mask]).abs().max()
    print(f"{layout}: {tuple(again.input_ids.shape)} ids, largest difference {difference:.1e}")

# %% [markdown]
# The packed rows are fewer and longer. What makes them right is the attention mask: without it, the second answer
# would read the first. Position ids restart after the prompt for the same reason.
#
# ## Padding must not matter
#
# Twenty more columns of another id change nothing, or something is wrong. This is worth a test in any code that
# handles batches.

# %%
import torch.nn.functional as F
from dataclasses import replace

wider = replace(
    batch,
    input_ids=F.pad(batch.input_ids, (0, 20), value=5),
    attention_mask=F.pad(batch.attention_mask, (0, 20), value=0),
)
print(f"largest difference with 20 columns more: {(response_scores(wider) - mine).abs().max():.1e}")

# %% [markdown]
# ## Does the base prefer the better answers?
#
# The mean log-probability per token says how natural an answer is to the model, whatever its length. The sum would
# favour short answers. (Lesson 03 sums all the same, and subtracts the reference's sum, which takes most of that out.)
#
# **Predict:** in what share of the pairs is the chosen answer likelier than the rejected one?

# %%
means = []
for start in range(0, len(pairs), 20):
    with torch.no_grad():
        found = response_logprobs(lesson.model(), lesson.batch(lesson.groups(pairs[start : start + 20])))
    means.append((found.logprobs.sum(dim=1) / found.mask.sum(dim=1)).view(-1, 2).cpu())
chosen, rejected = torch.cat(means).unbind(dim=1)
share = (chosen > rejected).float().mean()
print(f"chosen {chosen.mean():.2f}, rejected {rejected.mean():.2f} nats a token")
print(f"the chosen answer is the likelier one in {share:.0%} of {len(chosen)} pairs")

# %%
plot = lesson.plot("means", "Rejected answers reach further to the left", "nats a token", "answers")
bins = torch.linspace(-3, 0, 31).tolist()  # what lies below -3 is counted in the first
for label, colour, values in [("rejected", VERMILLION, rejected), ("chosen", BLUE, chosen)]:
    plot.axes.hist(values.clamp(min=-3), bins=bins, color=colour, alpha=0.5, label=label)
plot

# %% [markdown]
# Better than a coin, and far from sure. A model that merely imitates what it has read also imitates the bad part of
# it. Lessons 01 to 03 show three ways to change that.
#
# ## A broken run: logits read at the wrong place
#
# Nothing stops you from scoring token $t$ with the logits at $t$, or at $t - 2$. Shapes fit, no error appears.
#
# **Predict:** the logits at $t$ have already seen token $t$. Is it likelier there than at $t - 1$, or less likely?

# %%
with torch.no_grad():
    logits = lesson.model()(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
inner = mask & mask.roll(-1, dims=1)  # response tokens that another one follows
offsets = [-4, -3, -2, -1, 0, 1]
averages = []
for offset in offsets:
    moved = logits.roll(-1 - offset, dims=1)  # where your function reads t - 1
    averages.append(answers.token_logprobs(moved, batch.input_ids).cpu()[inner[:, 1:]].mean().item())
title = "Only the logits just before a token know it is coming"
plot = lesson.plot("offsets", title, "logits read at t + …", "nats a token")
plot.line(offsets, averages, marker="o")
plot.mark(-math.log(logits.shape[-1]), "guessing")

# %%
for offset, average in zip(offsets, averages, strict=True):
    print(f"logits at t{offset:+d}: {average:8.2f} nats a token")

# %% [markdown]
# Less likely: at $t$ the model is asked whether the token comes a *second* time, which it seldom does. That is worse
# than guessing among all ids, whose mean log-probability is $-\ln V$, and so are the other wrong places. A loss that
# starts above $\ln V$ is not a hard problem, it is a wrong shift.
#
# ## The same with transformers alone
#
# The library's convention: `labels` in the shape of the ids, -100 where nothing is to be learnt, and the model
# shifts by itself.

# %%
turns = [*pair.messages, {"role": "assistant", "content": pair.responses[0]}]
template = lesson.tokenizer.apply_chat_template
prompt = template(turns[:-1], add_generation_prompt=True, return_dict=True)["input_ids"]
whole = template(turns, return_dict=True)["input_ids"]
labels = [-100] * len(prompt) + whole[len(prompt) :]
print("the whole begins with the prompt:", whole[: len(prompt)] == prompt == prompt_ids)
print("behind our response it has:", repr(lesson.tokenizer.decode(whole[near + len(response_ids) :])))

# %%
device = lesson.model().device
ids = torch.tensor([prompt_ids + response_ids], device=device)
labels = torch.tensor([labels[: ids.shape[1]]], device=device)
with torch.no_grad():
    result = lesson.model()(input_ids=ids, labels=labels)
    twice = lesson.model()(input_ids=ids, labels=F.pad(labels[:, 1:], (0, 1), value=-100))
own = -answers.token_logprobs(result.logits, ids)[labels[:, 1:] != -100].mean()
print(f"loss by transformers          {result.loss.item():.6f}")
print(f"loss by your token_logprobs   {own.item():.6f}")
print(f"labels shifted once too often {twice.loss.item():.6f}")

# %% [markdown]
# The template writes a line end behind the end-of-turn token. It is not the model's to say: sampling has stopped by
# then. This course leaves it out; TRL, in lesson 01, learns it along.
#
# ## Questions
#
# 1. Which token of the rejected answer at the top was the surprise, and how probable was it, as a percentage?
# 2. How many nats a token does it cost to shift labels once too often, and which point of the last figure is that?
# 3. Which of the twelve answers of the base would you call harmful, which invented, which merely rude?
#
# ## To read
#
# - Ouyang et al., *Training language models to follow instructions with human feedback* (2022),
#   [arXiv 2203.02155](https://arxiv.org/abs/2203.02155): SFT, reward model and PPO, the course's first half.
# - Lambert, *Reinforcement Learning from Human Feedback* (2025), [arXiv 2504.12501](https://arxiv.org/abs/2504.12501):
#   a book on all of it.

# %%
lesson.finish()
