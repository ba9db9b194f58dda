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
# # 12 · Best of n: method or selection?
#
# Part 2 of the project is open: hand in the best answers you can get, by whatever you did. There are two ways to better
# answers. One changes the policy. The other leaves the policy alone, draws several answers and chooses. Choosing is
# cheap and strong, and it is where people fool themselves most easily. This lesson measures how far it goes, where it
# turns, and what has to be written down so that a reader can tell the two apart.
#
# | profile | minutes | memory |
# |---|---|---|
# | `tiny`, two CPU cores | 1 (measured) | 1 GiB |
# | `colab`, one T4 | not measured | as lesson 07 |

# %% tags=["setup"]

# %%
import torch

from helpers.course.checks import check
from helpers.course.lesson import Lesson
from helpers.course.lesson_display import COLOURS, Table
from helpers.judging.gold import gold_scores
from helpers.judging.measure import gold_metadata
from helpers.text.groups import Group

lesson = Lesson("12_best_of_n")
tiny = lesson.profile.name == "tiny"
N = 32 if tiny else 8
prompts = lesson.held_out("prompts", 150 if tiny else 32)

# %% [markdown]
# ## Choosing, and what it costs
#
# Draw $n$ answers $y_1 \dots y_n$ to a prompt from a policy $\pi$ and keep the one that a reward model $r$ likes best:
#
# $$y^\ast = y_{i^\ast}, \qquad i^\ast = \arg\max_{i \le n} r(x, y_i)$$
#
# No weight changes. Yet the answers now come from another distribution, and how far it lies from $\pi$ is known
# without measuring anything: at most
#
# $$\mathrm{KL}(\mathrm{best\ of\ } n \,\|\, \pi) = \log n - \frac{n-1}{n}$$
#
# nats for a whole answer. That is 0.2 for $n = 2$, 1.2 for $n = 8$, 2.5 for $n = 32$. A trained policy pays once, in
# training; best of $n$ pays at every answer.
#
# **Before you write it:** scores come as a matrix, one row a prompt and one column a candidate. Over which axis is the
# maximum? What should happen to a candidate whose score is NaN?

# %% tags=["exercise"]
from solutions.answers import best_of_n

# %%
check("best_of_n", best_of_n)

# %% [markdown]
# ## Thirty-two answers to every prompt
#
# The candidates are drawn once, at temperature 1, from the SFT model of lesson 01, and scored by the reward model of
# lesson 02. Best of 8 looks at the first eight columns, best of 32 at all (on larger profiles eight is all there is).

# %%
lesson.use(best_of_n=best_of_n)
reward_model = lesson.reward_model(lesson.bundled("reward"))


def score(examples, candidates):
    """(P, N) rewards of N candidates for each of P prompts, on the very tokens that were sampled."""
    encode = lesson.encoder.encode_prompt
    limit = lesson.budget.max_prompt_tokens
    groups = [
        Group(encode(example.messages, limit), [list(c.ids) for c in row])
        for example, row in zip(examples, candidates, strict=True)
    ]
    return torch.tensor(reward_model.score_groups(groups, batch_size=64))


def worth(examples, candidates):
    """(P, N) gold scores: what the answers are really worth. NaN where the prompts have no gold judge."""
    return torch.tensor(
        [
            [gold_scores(facts, c.text).total if facts else float("nan") for c in row]
            for facts, row in zip(map(gold_metadata, examples), candidates, strict=True)
        ]
    )


def pick(table, choice):
    """Row p's entry in column choice[p]."""
    return table.gather(1, choice.unsqueeze(1)).squeeze(1)


def double(plot):
    """The x axis in doublings: 1, 2, 4, …"""
    plot.axes.set_xscale("log", base=2)
    plot.axes.set_xticks(sizes, [str(n) for n in sizes])
    return plot


sft = lesson.bundled("sft")
candidates = lesson.sample(sft, prompts, k=N)
rewards, gold = score(prompts, candidates), worth(prompts, candidates)
print(f"{rewards.numel()} candidates; rewards from {rewards.min():.1f} to {rewards.max():.1f}")

# %% [markdown]
# **Predict:** as $n$ grows from 1 to 32, which way does the reward of the chosen answer move? Which way does its true
# worth? Is there an $n$ after which more choice is worse?

# %%
sizes = [n for n in (1, 2, 4, 8, 16, 32) if n <= N]
chosen = {n: best_of_n(rewards[:, :n]) for n in sizes}
plot = lesson.plot("proxy", "The reward of the chosen answer", "n, candidates a prompt", "mean reward")
plot.line(sizes, [pick(rewards, chosen[n]).mean() for n in sizes], "chosen by reward", marker="o")
plot.line(sizes, [rewards[:, :n].mean() for n in sizes], "drawn at random", marker="o")
double(plot)

# %% [markdown]
# The reward can only rise: with more candidates the largest of them is larger. That would be so for any scores, random
# ones too. So a curve like this is no evidence of anything. This one is:

# %%
lengths = torch.tensor([[len(c.ids) for c in row] for row in candidates])
plot = lesson.plot("gold", "What the chosen answer is worth", "n, candidates a prompt", "mean gold score")
plot.line(sizes, [gold[:, :n].amax(dim=1).mean() for n in sizes], "chosen by the truth", marker="o")
plot.line(sizes, [pick(gold, chosen[n]).mean() for n in sizes], "chosen by reward", marker="o")
plot.line(sizes, [gold[:, :n].mean() for n in sizes], "drawn at random", marker="o")
plot.line(
    sizes, [pick(gold, best_of_n(lengths[:, :n].float())).mean() for n in sizes], "the longest", marker="o"
)
double(plot) if tiny else print("these prompts have no gold judge")

# %% [markdown]
# In the bundled world the worth rises up to eight candidates and falls after that, while the reward goes on rising. Among
# 32 answers there is often one that is bad in a way the reward model has never seen punished, and a maximum finds
# exactly that one. It is the over-optimisation of lesson 07 without a single gradient.
#
# The uppermost line shows that better answers were there: the choice is what fails. And length is no substitute for
# judgement.
#
# ## Two factors, kept apart
#
# How much of a good result is the policy, how much the choice? Measure both, each with and without the other. The offline
# method of this lesson is DPO, in its shortest form.

# %%
from torch.nn.functional import softplus


def dpo_for_comparison(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """DPO, from PyTorch's own parts."""
    return softplus(-beta * ((policy_chosen - policy_rejected) - (ref_chosen - ref_rejected))).mean()


dpo = lesson.train(
    "dpo",
    lesson.use(unchecked=True, dpo_loss=dpo_for_comparison),
    on_tiny={"train_limit": 1500, "num_train_epochs": 1.0, "learning_rate": 2e-3, "beta": 0.5},
)

# %% [markdown]
# Win rates are against the base's greedy answers, judged in both orders.
#
# **Predict:** the base with a choice of eight, or the DPO policy with none: which wins more often? And which is the better
# answer of the SFT model: the greedy one, or the best of eight drawn at temperature 1?

# %%
from helpers.course.pipeline import pick_judge
from helpers.judging.evaluate import head_to_head

answers = lesson.use()
greedy_base = [row[0].text for row in lesson.sample(None, prompts, greedy=True)]
judge = pick_judge(prompts)


def against_base(texts):
    """Head-to-head of these answers with the base's greedy ones, as lesson 10 does it."""
    return head_to_head(judge, prompts, texts, greedy_base, answers)


family, rows = {}, []
for name, policy in {"base": None, "SFT": sft, "DPO": dpo}.items():
    drawn = [row[:8] for row in candidates] if name == "SFT" else lesson.sample(policy, prompts, k=8)
    table = score(prompts, drawn)
    family[name] = (drawn, table, worth(prompts, drawn))
    greedy = [row[0].text for row in lesson.sample(policy, prompts, greedy=True)]
    best = [row[i].text for row, i in zip(drawn, best_of_n(table).tolist(), strict=True)]
    first = [row[0].text for row in drawn]
    for how, texts in (("one sample", first), ("greedy", greedy), ("best of 8 by reward", best)):
        if judge is not None and (name, how) != ("base", "greedy"):
            result = against_base(texts)
            low, high = result.ci95
            rows.append([name, how, result.win_rate, f"{low:.2f}–{high:.2f}"])
Table(
    "Policy and choice, each against the base's greedy answers",
    ["policy", "answer", "win rate", "95 %"],
    rows,
)

# %% [markdown]
# Read it by rows and by columns. In the bundled world a choice of eight lifts the untrained base from well under one half
# to two wins in three. The SFT model's *greedy* answers beat its best of eight: drawing at temperature 1 makes answers
# worse, and the choice wins only part of that back. The DPO policy, trained for a moment only, is behind SFT one to
# one and still gains from the choice.
#
# So a report that compares "our method, best of 8" with "the baseline, one sample" has measured mostly the 8, and one
# that compares it with "greedy" has measured the temperature too.
#
# The rule is simple: **give the baseline the same choice**, or none to either.
#
# ## A family of policies
#
# Nothing says that the candidates must come from one policy. Pool the eight of each, and let the reward model choose among
# 24.

# %%
names = list(family)
pooled_rewards = torch.cat([family[name][1] for name in names], dim=1)
pooled_gold = torch.cat([family[name][2] for name in names], dim=1)
choice = best_of_n(pooled_rewards)
source = torch.div(choice, 8, rounding_mode="floor")
for index, name in enumerate(names):
    alone = pick(family[name][2], best_of_n(family[name][1])).mean()
    print(
        f"{name}: chosen {int((source == index).sum())} times of {len(prompts)}; best of its own 8 worth {alone:.2f}"
    )
print(f"the pool of 24 is worth {pick(pooled_gold, choice).mean():.2f}")

# %% [markdown]
# More candidates, and from more places; yet in the bundled world the pool is worth no more than its best member's own
# eight. The reward model has three times the occasions to be wrong.
#
# ## Broken: choosing with the judge in hand
#
# The public prompts are there, and so is the judge. Suppose you train twenty policies, judge each on the public
# prompts, and hand in the best. What is its win rate on prompts that you have not seen?
#
# We can try it without training anything. Each *column* of the candidates is a policy's set of answers, and all 32
# columns are the same policy. Judge them on one half of the prompts, choose the best column, and look at the other half.
#
# **Predict:** all are equal in truth. How good will the best of 32 look on the half it was chosen by?

# %%
half = len(prompts) // 2
order = torch.randperm(len(prompts), generator=torch.Generator().manual_seed(0))
public, hidden = order[:half], order[half:]
points = gold if tiny else rewards
seen, unseen = points[public].mean(dim=0), points[hidden].mean(dim=0)
best = int(seen.argmax())
plot = lesson.plot(
    "curse",
    "Equal policies, ranked on one half of the prompts",
    "rank on the public half",
    "mean score of an answer",
)
ranked = seen.argsort(descending=True)
ranks = torch.arange(1, N + 1)
plot.axes.plot(ranks, seen[ranked], "o", color=COLOURS[0], label="public half")
plot.axes.plot(ranks, unseen[ranked], "x", color=COLOURS[1], label="hidden half")
plot.mark(float(points.mean()), "the truth")

# %%
print(
    f"the best column: {seen[best]:.3f} on the public half, {unseen[best]:.3f} on the hidden one, {points.mean():.3f} true"
)

# %% [markdown]
# The public half falls from left to right because it was sorted; the hidden half knows nothing of that order. What the
# winner has over the others is luck, and luck does not carry over. Lesson 10 gives the width: with 128 prompts the
# standard error of a win rate is about 0.04, and the best of twenty equal runs lies near two of them above the truth.
#
# Choosing a checkpoint, a seed, a temperature or a $\beta$ is the same act. Choose on `dev`, report on `test`, once.
#
# ## What to write down
#
# `python -m helpers submit best` draws from a declared family, chooses by a declared selector, and writes both into a
# manifest beside the answers: each policy with the hash of its adapter, $n$, the sampling settings, the selector
# with its hash, the seeds, and how often each policy was chosen. The grader reads it. With that, a reader can say what
# was method and what was selection:
#
# | it is | if |
# |---|---|
# | method | the policy's weights, or the data and loss they came from, differ from the baseline's |
# | selection | several answers, checkpoints or seeds existed and something picked among them |
# | neither, and not allowed | the thing that picked is the judge that grades |
#
# ## Elsewhere
#
# TRL has no trainer for this (looked for in 1.16): with transformers it is `generate(num_return_sequences=n)` and an
# `argmax`. Serving engines such as vLLM take `n` as a sampling parameter; the prompt is then computed once for all.
#
# ## Questions
#
# 1. At which $n$ was the worth of the chosen answer highest, and how many nats is that by the formula above?
# 2. Which single change in the table of policies and choices brought most: training, greedy decoding, or the choice?
# 3. By how much did the best column look better than it is? How many prompts would halve that?
#
# ## To read
#
# - Stiennon et al., *Learning to summarize from human feedback* (2020),
#   [arXiv 2009.01325](https://arxiv.org/abs/2009.01325): best of n against the policy they trained.
# - Gao et al., *Scaling laws for reward model overoptimization* (2022),
#   [arXiv 2210.10760](https://arxiv.org/abs/2210.10760): the same turn, measured over many sizes; its KL is the formula above.
# - Beirami et al., *Theoretical guarantees on the best-of-n alignment policy* (2024),
#   [arXiv 2401.01879](https://arxiv.org/abs/2401.01879): why the formula is an upper bound.

# %%
lesson.finish()
