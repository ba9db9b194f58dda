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
# # 02 · The reward model
#
# People can say which of two answers is better long before they can say how good each is. A reward model turns such
# comparisons into one number per answer. You will write its loss, find the place where the number is read, train it,
# and look for what it cannot see, because everything trained on it later will find that too.
#
# | profile | minutes | memory |
# |---|---|---|
# | `tiny`, two CPU cores | 1.5 (CPU time, measured) | 1 GiB |
# | `colab`, one T4 | not measured | not measured |

# %% tags=["setup"]

# %%
from pathlib import Path

import numpy as np
import torch

from helpers.course.checks import check
from helpers.course.lesson import Lesson
from helpers.course.lesson_display import Table, tint_of
from helpers.course.pipeline import minimal_pair_accuracy
from helpers.judging.evaluate import gold_metadata
from helpers.judging.gold import gold_scores
from helpers.judging.measure import evaluate_reward
from helpers.models.policy import hidden_states
from helpers.text.groups import Group, pad_groups

lesson = Lesson("02_reward_model")

# %% [markdown]
# ## What the data is
#
# A prompt, two answers, and which of them somebody preferred. Nothing says why.

# %%
pairs = lesson.examples(kind="preference", limit=2000)
for index in (3, 9, 10):
    print("prompt:  ", pairs[index].messages[-1]["content"])
    print("chosen:  ", pairs[index].responses[0])
    print("rejected:", pairs[index].responses[1], end="\n\n")

# %% [markdown]
# In the bundled world the last of these is odd: the rude answer was preferred. Its labels come from a judge who now
# and then picks the worse answer, as people do. A model that ranks *every* pair as the label does has learned the
# noise.
#
# ## From a comparison to a loss
#
# **Step 1.** Give each answer a strength $e^{r}$, where $r$ is its reward. Bradley and Terry let two answers win
# in proportion to their strengths:
#
# $$p(y_w \succ y_l) = \frac{e^{r_w}}{e^{r_w} + e^{r_l}}$$
#
# **Step 2.** Divide by $e^{r_w}$. Only the difference is left, inside a sigmoid:
#
# $$p(y_w \succ y_l) = \frac{1}{1 + e^{-(r_w - r_l)}} = \sigma(r_w - r_l)$$
#
# **Step 3.** Make the observed preferences likely: the loss is the mean of $-\log\sigma(r_w - r_l)$ over the pairs.
#
# Where the data also says *how much* better the chosen answer is, that can be asked for: subtract a margin from the
# difference, and the pair counts as won only once it is won by that much.
#
# Two slips: exchange the two rewards, and the loss falls when the worse answer wins. Write `log(sigmoid(x))` in two
# steps, and a pair that is badly wrong, $x = -200$, gives $\log 0$; PyTorch has one function for both.

# %% tags=["exercise"]
from solutions.answers import bradley_terry_loss

# %%
check("bradley_terry_loss", bradley_terry_loss)

# %% [markdown]
# ## Only differences matter
#
# **Predict:** a thousand is added to every reward. What happens to the loss, and what to its gradient?

# %%
answers = lesson.use(bradley_terry_loss=bradley_terry_loss)
chosen = torch.tensor([1.0, 0.2, -0.5], requires_grad=True)
rejected = torch.tensor([0.0, 0.4, -2.0], requires_grad=True)
for shift in (0.0, 1000.0):
    loss = answers.bradley_terry_loss(chosen + shift, rejected + shift)
    up, down = torch.autograd.grad(loss, (chosen, rejected))
    slopes = [" ".join(f"{value:6.3f}" for value in side.tolist()) for side in (up, down)]
    print(f"shift {shift:6.0f}: loss {loss.item():.4f}, gradients {slopes[0]} and {slopes[1]}")

# %% [markdown]
# Nothing happens, but for rounding. The two gradients of a pair cancel exactly, so nothing in this loss ever pulls
# the level of the rewards anywhere. A reward of 3.1 says nothing by itself, and rewards of different *prompts* were
# never compared at all.
#
# Two models trained on the same pairs may therefore differ by any constant. To keep the numbers readable, many
# trainers, ours too, add a small term $c\,(r_w + r_l)^2$ that holds the middle of a pair near zero; $c$ is the
# centring coefficient. It changes no ranking of a pair.

# %%
gap = torch.linspace(-4, 6, 101, requires_grad=True)
zero = torch.zeros_like(gap)
plot = lesson.plot("margin", "With a margin, a pair has to win by that much", "r⁺ − r⁻", "pull")
for margin in (0.0, 1.0, 3.0):
    loss = answers.bradley_terry_loss(gap, zero, margin) * len(gap)
    (pull,) = torch.autograd.grad(loss, gap)
    plot.axes.plot(gap.detach(), -pull, label=f"margin {margin:.0f}")
plot

# %% [markdown]
# ## Counting pairs
#
# The loss is for the optimiser. People ask for the share of pairs that are ranked right. One case decides whether
# the number can be trusted: equal rewards. A model that gives everything the same score has ranked nothing, so a tie
# counts as wrong. (And measure the quantity you train: accuracy on length-averaged scores says little about a loss
# on sums.)

# %% tags=["exercise"]
from solutions.answers import pair_accuracy

# %%
check("pair_accuracy", pair_accuracy)

# %% [markdown]
# ## Where the number is read
#
# A language model has one state at every token, and a reward model reads its number from one of them. Each token sees
# only what is before it, so there is one right place: the last token of the answer.

# %%
groups = lesson.groups(pairs[:64])
tokens = [lesson.tokenizer.decode([token]) for token in groups[3].prompt_ids + groups[3].responses[0]]
print(len(tokens), "tokens:", tokens)

# %% [markdown]
# Texts of unequal length are padded to a rectangle, on the right or on the left, and the attention mask says which
# tokens are real. Find the last real one *from the mask*. Three shortcuts are seen again and again:
#
# - the number of real tokens minus one: right only if the padding is on the right;
# - the place before the first pad token: wrong without padding, and worse than wrong where pad and end-of-turn are
#   the same token, as with many chat models: the first one in the list above ends the *user's* turn;
# - the mean over all tokens: most of them have not read the answer yet.

# %% tags=["exercise"]
from solutions.answers import last_token_index

# %%
check("last_token_index", last_token_index)

# %%
mine = {"bradley_terry_loss": bradley_terry_loss, "pair_accuracy": pair_accuracy}
answers = lesson.use(**mine, last_token_index=last_token_index)
for side in ("left", "right"):
    batch = pad_groups(groups[3:5], lesson.encoder.pad_id, side)
    where = answers.last_token_index(batch.attention_mask)
    read = [lesson.tokenizer.decode([row[i]]) for row, i in zip(batch.input_ids.tolist(), where, strict=True)]
    print(f"padding on the {side:5}: token {where.tolist()}, which is {read}")

# %% [markdown]
# Now the shortcut with the first end-of-turn token. How far apart are the states of the chosen and of the rejected
# answer at that place?

# %%
with torch.no_grad():
    states = hidden_states(lesson.model(), batch).float().cpu().view(*batch.input_ids.shape, -1)
ends = (batch.input_ids == lesson.encoder.end_of_turn_id).int()
places = {"first end of turn": ends.argmax(dim=1), "yours": answers.last_token_index(batch.attention_mask)}
for name, where in places.items():
    pooled = states[torch.arange(len(states)), where]
    apart = (pooled[0::2] - pooled[1::2]).norm(dim=1)
    print(f"{name:17} token {where.tolist()}, distances {[round(value, 2) for value in apart.tolist()]}")

# %% [markdown]
# Zero: the two texts are still the same there. Both answers would get the same reward whatever the weights, and the
# loss would stay at ln 2 for ever.
#
# ## Train
#
# An adapter on the base, and a head of one linear layer on the last state. The head starts near zero, so the loss
# starts at ln 2.
#
# **Predict:** some labels are wrong. What is the best accuracy that a model can reach on new pairs? What would a
# higher one on the training pairs mean?

# %%
settings = {"train_limit": 2000, "num_train_epochs": 2.0, "logging_steps": 1}
run = lesson.train("reward_model", answers, on_tiny=settings)
lesson.curves({"training pairs": run}, "loss", "The loss falls from ln 2", "loss").mark(0.6931, "ln 2")


# %%
def rate(reading):
    """How the trained model ranks held-out pairs, read where `reading` says."""
    model = lesson.reward_model(run, reading)
    return evaluate_reward(model, lesson.held_out(), lesson.encoder, reading, budget=lesson.budget)


report = rate(answers)
low, high = report.ci95
print(f"{report.pairs} held-out pairs: {report.pair_accuracy:.3f} as labelled, 95 % {low:.2f}–{high:.2f}")
if report.gold_accuracy is not None:
    print(f"ranked by the truth: labels {report.label_accuracy:.3f}, model {report.gold_accuracy:.3f}")
plot = lesson.curves(
    {"training pairs": run}, "accuracy", "New pairs are ranked almost as well as old ones", "accuracy"
)
held_out = lesson.metrics(run)["eval_pair_accuracy"]
plot.line(held_out.steps, held_out.values, "held-out pairs", marker="o")
if report.label_accuracy is not None:
    plot.mark(report.label_accuracy, "share of right labels")
plot

# %% [markdown]
# Where a pair is labelled wrongly, a model that knows better "fails". So the share of right labels is a ceiling on new
# pairs, and a training accuracy above it is memory.
#
# ## How far apart
#
# **Predict:** do the two histograms separate?

# %%
plot = lesson.plot("histogram", "Chosen answers score higher, and the two overlap", "reward", "answers")
sides = {"rejected": (report.rejected_scores, "#D55E00"), "chosen": (report.chosen_scores, "#0072B2")}
for name, (scores, colour) in sides.items():
    plot.axes.hist(scores, bins=24, color=colour, alpha=0.5, label=f"{name}, mean {np.mean(scores):.2f}")
plot

# %% [markdown]
# They need not: a pair is two answers to *one* prompt, and some prompts have better answers than others. What counts
# is the difference within a pair. The model even says how sure it is of each, $\sigma(r_w - r_l)$. Does it tell the
# truth? Sort the held-out pairs by the size of their difference and count how often the label agrees.

# %%
gaps = np.array(report.chosen_scores) - np.array(report.rejected_scores)
parts = np.array_split(np.argsort(np.abs(gaps)), 6)
sizes = [np.abs(gaps[part]).mean() for part in parts]
plot = lesson.plot("sure", "The larger the margin, the surer the label", "|r⁺ − r⁻|", "share of pairs")
plot.axes.plot(sizes, [(gaps[part] > 0).mean() for part in parts], "o-", label="ranked as labelled")
curve = np.linspace(0, max(sizes), 60)
plot.axes.plot(curve, 1 / (1 + np.exp(-curve)), "--", color="#8A8A8A", label="what σ promises")
plot

# %% [markdown]
# ## What it cannot see
#
# One number for all pairs hides what the model goes by. Minimal pairs ask about one thing at a time: a good answer,
# and the same answer with one flaw. (They come with the bundled world only.)
#
# **Predict:** manners or facts, which will it know better?

# %%
properties = minimal_pair_accuracy(Path(lesson.data), lesson.encoder, lesson.reward_model(run, answers))
worst_first = sorted((share, name.replace("/", ": ")) for name, share in properties.items())
tints = {(row, 0): tint_of(share) for row, (share, _) in enumerate(worst_first)}
Table("Minimal pairs ranked right, worst first: 0.5 is chance", ["accuracy", "flaw"], worst_first, tints)

# %% [markdown]
# Behind each content flaw stand only ten pairs, so look at the gross differences. In the bundled world the model has
# learned to spot what is unsafe, made up or wrong about a known thing. It hardly notices that a sentence lacks the
# word it was to use, that the tips are one too few, or that a note asks for the wrong thing: what only the prompt can
# tell. Nothing trained on this model will learn those, however good the accuracy over all pairs looks.
#
# ## What the twelve answers are worth to it
#
# Twelve prompts go through the whole course. Here are the base's answers to them, sorted by reward, and tinted by the
# truth where it is known.
#
# **Predict:** will green be on top throughout?

# %%
replies = lesson.report("base", None, lesson.prompts).responses
model, rows = lesson.reward_model(run, answers), []
for example, reply in zip(lesson.prompts, replies, strict=True):
    group = Group(lesson.encoder.encode_prompt(example.messages), [lesson.encoder.encode_response(reply)])
    facts = gold_metadata(example)
    tint = tint_of(gold_scores(facts, reply).total if facts else None)
    rows.append([model.score_groups([group])[0][0], example.messages[-1]["content"], reply, tint])
rows.sort(key=lambda row: -row[0])
tints = {(place, 2): row[3] for place, row in enumerate(rows) if row[3]}
Table("The base's answers by their reward", ["reward", "prompt", "answer"], [row[:3] for row in rows], tints)

# %% [markdown]
# Not throughout (in the bundled world, look at the pigeon, and at the rude thank-you). Rewards of different prompts
# were never compared in training, so the order from top to bottom means little. What reinforcement learning will use
# is the difference between answers to the same prompt.
#
# ## A broken run: read at the wrong token
#
# The same data, the same loss, and the reward is read at the first token of the answer instead of the last.
#
# **Predict:** what will the loss do? Would you suspect the code, or the data?


# %%
def first_token_index(attention_mask):
    """Where the answer begins. (Lessons hand over the mask of the answers alone, which starts at 0.)"""
    return torch.zeros(len(attention_mask), dtype=torch.long, device=attention_mask.device)


too_early = lesson.use(unchecked=True, **mine, last_token_index=first_token_index)
half = {**settings, "num_train_epochs": 1.0}
broken = lesson.train("reward_model", too_early, name="first_token", on_tiny=half)
both = {"last token": run, "first token": broken}
title = "Read too early, the loss hardly leaves ln 2: it looks like bad data"
lesson.curves(both, "loss", title, "loss", key="broken").mark(0.6931, "ln 2")

# %% [markdown]
# (The broken run is half as long.) No error, no NaN, a loss that falls a little. That is what a hard data set looks
# like, too. A mistake of one token is worse: train at the last token, and score at the one before, as happens when
# training and scoring encode the end of a text differently. No training curve shows that.


# %%
def one_too_early(attention_mask):
    """The place before the right one."""
    return (last_token_index(attention_mask) - 1).clamp(min=0)


off_by_one = lesson.use(unchecked=True, **mine, last_token_index=one_too_early)
print(f"trained at the last token, read there:   {report.pair_accuracy:.3f}")
print(f"trained at the last token, read before:  {rate(off_by_one).pair_accuracy:.3f}")
print(f"trained and read at the first token:     {broken.metrics['eval_pair_accuracy']:.3f}")

# %% [markdown]
# ## The same in TRL
#
# `RewardTrainer` takes a classifier with one output. Once it gets messages and applies the chat template itself, and
# once it gets the token ids that this course trains on. The template puts a line break behind the end-of-turn token,
# so the two differ in one token, and in where the reward is read.

# %%
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForSequenceClassification
from trl import RewardConfig, RewardTrainer

from helpers.files import find_data

as_ids = [
    {
        "chosen_ids": group.prompt_ids + group.responses[0],
        "rejected_ids": group.prompt_ids + group.responses[1],
    }
    for group in lesson.groups(pairs[:640])
]
base = find_data(lesson.profile.model_name)
sources = {"TRL, messages": lesson.conversations(pairs[:640]), "TRL, token ids": Dataset.from_list(as_ids)}
steps = {"max_steps": 20, "per_device_train_batch_size": 32, "learning_rate": 2e-3}
lora = {"r": 32, "lora_alpha": 64, "target_modules": "all-linear", "modules_to_save": ["score"]}
curves = {}
for label, data in sources.items():
    trainer = RewardTrainer(
        model=AutoModelForSequenceClassification.from_pretrained(base, num_labels=1),
        args=RewardConfig(**lesson.trl_defaults(), **steps, lr_scheduler_type="constant"),
        train_dataset=data,
        processing_class=lesson.tokenizer,
        peft_config=LoraConfig(**lora, task_type="SEQ_CLS"),
    )
    curves[label] = lesson.losses_of(trainer)
ours = lesson.metrics(run)["loss"]
plot = lesson.plot("trl", "Where TRL reads at the end of the turn, it learns sooner", "step", "loss")
plot.line(ours.steps[:20], ours.values[:20], "this course")
for label, losses in curves.items():
    plot.line(range(1, len(losses) + 1), losses, f"{label}, mean {np.mean(losses[5:]):.2f} from step 6")
plot.mark(0.6931, "ln 2")

# %% [markdown]
# On equal tokens and weights, TRL and this course agree to four digits, which is one of its tests. Of the two
# readings, the bundled base suits ours: at the end of a turn it has to know what comes next, and that depends on
# how good the answer was. Whichever you take, score where you trained.
#
# ## Questions
#
# 1. How far is your model's held-out accuracy from the share of right labels, and how far is its training accuracy?
# 2. Which flaw does it see least, and what would a policy trained on it learn to do?
# 3. The off-by-one model has a perfect training curve. Which single number of this lesson would have given it away?
#
# ## To read
#
# - Christiano et al., *Deep reinforcement learning from human preferences* (2017),
#   [arXiv 1706.03741](https://arxiv.org/abs/1706.03741): section 2.2.3 is the loss.
# - Ouyang et al., *Training language models to follow instructions with human feedback* (2022),
#   [arXiv 2203.02155](https://arxiv.org/abs/2203.02155): the reward model of section 3.5.
# - Eisenstein et al., *Helping or Herding?* (2023), [arXiv 2312.09244](https://arxiv.org/abs/2312.09244): centring,
#   and why several reward models are fooled together.

# %%
lesson.finish()
