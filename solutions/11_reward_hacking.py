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
# # 11 · Reward hacking: when the reward rises and the answers do not
#
# A reward model is a guess at what people like, learned from a few thousand pairs. A policy that is trained against it
# looks for texts with a high reward, and it does not care whether they are good or only overrated. This lesson drives a
# policy until it cheats, finds the signs by which one could have known, and measures what helps.
#
# | profile | minutes | memory |
# |---|---|---|
# | `tiny`, two CPU cores | 2 of computing, 5.5 on a machine busy with other work (measured) | 0.6 GiB |
# | `colab`, one T4 | not measured | as lesson 07 |

# %% tags=["setup"]

# %%
import torch

from helpers.course.checks import check
from helpers.course.hacked_pairs import mine_pairs, write_mix
from helpers.course.hacking import gold_against_kl, hacking_signs
from helpers.course.lesson import Lesson
from helpers.course.lesson_display import Table
from helpers.files import read_json, read_jsonl
from helpers.text.groups import Group

lesson = Lesson("11_reward_hacking")
place = lesson.bundled("reward")

# %% [markdown]
# ## Three functions you have
#
# The policy is trained by GRPO, and later on a reward model is trained anew. Copy your functions from lessons 07 and
# 02, or write them again.

# %% tags=["exercise"]
from solutions.answers import group_advantages

# %% tags=["exercise"]
from solutions.answers import grpo_loss

# %% tags=["exercise"]
from solutions.answers import bradley_terry_loss

# %%
check("group_advantages", group_advantages)
check("grpo_loss", grpo_loss)
check("bradley_terry_loss", bradley_terry_loss)

# %% [markdown]
# ## A policy off its leash
#
# No price on leaving the reference, and (on `tiny`) steps three times as long as usual. Every five steps the policy
# answers sixty held-out prompts. Two parties look at these answers. The **proxy**, the reward model, is what the policy
# is trained on. The **gold** judge of the bundled world knows what the answers are worth, and nothing is ever trained
# on its word; in the real world a panel of people would have that part, or a judge model that stays out of the training.
#
# **Predict:** the proxy will rise. Will gold rise with it all the way, stay where it is, or fall? And if it turns: will
# the proxy turn too?

# %%
wild = {"kl_coef": 0.0, "eval_samples": 60, "eval_steps": 5, "reward_model": str(place)}
short = {"learning_rate": 3e-3, "max_steps": 40, "per_device_train_batch_size": 4, "minibatch_size": 16}
mine = {"group_advantages": group_advantages, "grpo_loss": grpo_loss}
answers = lesson.use(**mine)
hacked = lesson.train("grpo", answers, name="hacked", on_tiny=short, **wild)

# %%
lesson.curves({"no leash": hacked}, "reward", "The training curve: all is well", "mean reward")

# %%
judged = "gold" in lesson.metrics(hacked)


def against_kl(key, title, runs):
    """Proxy and gold of held-out answers over the distance from the base, each from 0 to 1 of its own range."""
    plot = lesson.plot(key, title, "√KL per token", "change since the start, in standard deviations")
    for label, run in runs.items():
        seen = gold_against_kl(run.run_dir)
        start = [row for row in read_jsonl(run.run_dir / "samples.jsonl") if row["step"] == 0]
        for name, values in (("reward", seen.proxy), ("gold", seen.gold)):
            spread = torch.tensor([row[name] for row in start]).std().item()
            moved = [(value - values[0]) / spread for value in values]
            plot.line(seen.root_kl, moved, f"{label}{'proxy' if name == 'reward' else 'gold'}", marker="o")
    return plot


if judged:
    figure = against_kl("over", "Gold turns, and the proxy does not", {"": hacked})
figure if judged else print("these prompts have no gold judge")

# %% [markdown]
# Both lines are in standard deviations of the base's own answers, so that they can share an axis; across is the
# distance from the base, as Gao et al. draw it. At first the two rise together: the policy learns what the proxy learned
# from the pairs. Then it has left the texts on which the proxy was trained. On `tiny` gold is best at step 15, and at step
# 40 below the base, while the proxy never came back down to where it began.

# %%
lesson.show({"base": None, "no leash": hacked}, "What a reward model can be made to like")

# %% [markdown]
# ## A mistake made in good faith
#
# Here is a report of this run, by somebody who trusts it.

# %%
first, last = (
    lesson.metrics(hacked)["reward"].values[part].mean() for part in (slice(0, 5), slice(-5, None))
)
print(
    f"mean reward of the first five steps {first:.2f}, of the last five {last:.2f}: the policy has improved"
)

# %% [markdown]
# Every number in it is right. But the trained reward is the only evidence, and it was the target. It cannot tell an
# answer that got better from an answer that got overrated: that takes a judge that was *not* optimised. Keep such a
# judge, and some prompts for it, out of every training; and when you have chosen a run by that judge's word many times
# over, get another one.
#
# ## The signs
#
# Some of it shows without any judge. The same detectors watch every online run in this course while it goes on (they
# write to `signs.json` in the run's directory, and say so on the screen), and `python -m helpers hacking signs RUN`
# reads them off a finished one:
#
# - **reward spike**: a step's mean reward leaps out of its usual scatter;
# - **length without gain**: answers half as long again, and no better;
# - **repetition**, **repeated phrase**: answers that run in circles, or one phrase in answers to everything;
# - **KL over 0.5**, **over 1**: nats a token, over three steps;
# - **judge falls**: the one that decides. The held-out judge has fallen from its best, beyond its noise on the same
#   prompts, while the proxy stands above its start.
#
# **Predict:** which comes first? How long after gold's best does *judge falls* come?

# %%
signs = hacking_signs(hacked.run_dir)
Table(
    "Signs of the run, by step",
    ["step", "sign", "what was seen"],
    [[s.step, s.kind, s.message] for s in signs],
)

# %% [markdown]
# A judge of sixty answers is noisy, and takes a while to be sure: on `tiny` it was at its best at step 15 and speaks at
# step 40. The KL had passed its marks ten steps earlier. No sign but the last is proof: a polite phrase may spread in a
# healthy run too, and a policy may go far and still be good. On ten recorded healthy runs of four methods no sign speaks;
# on seven hacked ones the last one always does, and on a run whose reward paid for length it is length that is named.
#
# ## What a repeated text looks like in numbers
#
# The share of n-grams that have been there before:
#
# $$\mathrm{repetition}(y) = 1 - \frac{\text{distinct n-grams of } y}{\text{n-grams of } y}$$
#
# An answer of $T$ tokens has $T - n + 1$ of them. One with fewer than $n$ tokens has none, and repeats nothing.
#
# **Before you write it:** what is the repetition of `5 5 5 5` for $n = 3$? Of `1 2 3 1 2 3`?

# %% tags=["exercise"]
from solutions.answers import repetition_fraction

# %%
check("repetition_fraction", repetition_fraction)

# %%
answers = lesson.use(repetition_fraction=repetition_fraction)
by_step = {}
for row in read_jsonl(hacked.run_dir / "samples.jsonl"):
    tokens = lesson.encoder.encode_response(row["response"])
    by_step.setdefault(row["step"], []).append(answers.repetition_fraction(tokens, n=3))
plot = lesson.plot(
    "repetition", "Held-out answers begin to repeat themselves", "step", "mean repetition, n = 3"
)
plot.line(list(by_step), [sum(values) / len(values) for values in by_step.values()], marker="o")

# %% [markdown]
# Hardly any yet on `tiny`: there the policy does not go round in circles, it gives one answer to everything, and that is
# another fault. (Twenty steps on, a sixth of its answers do go round in circles.)
#
# ## What length costs
#
# The oldest hack is length: people prefer a fuller answer, so reward models learn to like full ones, and the policy
# learns to go on and on. The remedy has one line: every token costs something.
#
# $$r'_i = r_i - c\,T_i$$
#
# Rewards and lengths come as vectors; the result has the rewards' type, whatever the lengths are.
#
# **Before you write it:** the policy learns from differences between siblings. What does the penalty do to a group whose
# answers are all equally long?

# %% tags=["exercise"]
from solutions.answers import length_penalty

# %%
check("length_penalty", length_penalty)

# %%
answers = lesson.use(length_penalty=length_penalty, group_advantages=group_advantages)
rewards, lengths = torch.tensor([1.0, 1.2, 0.9, 1.1]), torch.tensor([10, 40, 12, 11])
for coef in (0.0, 0.01, 0.1):
    worth = answers.group_advantages(answers.length_penalty(rewards, lengths, coef), 4)
    print(f"c = {coef:<4} advantages {[round(value, 2) for value in worth.tolist()]}")

# %% [markdown]
# At 0.01 the long answer has lost its lead; at 0.1 its length is all that counts. A penalty has a scale, and that of
# the rewards is what to compare it with.
#
# ## Four remedies, and a way out
#
# The same run again, each time with one change. Both penalties are taken off the reward by your functions; the column
# `reward` stays the reward model's own number, so the curves can be compared.
#
# **Predict:** put the five in order of what they will do to gold. Which of them looks at the fault that you saw in the
# answers above, and which looks at another?
#
# **A higher price on the KL.** The policy may still find the overrated texts, but they lie far off.

# %%
mine |= {"length_penalty": length_penalty, "repetition_fraction": repetition_fraction}
answers = lesson.use(**mine)


def again(name, **change):
    """The same run with something changed."""
    return lesson.train("grpo", answers, name=name, on_tiny=short, **{**wild, **change})


unwatched = {"eval_samples": 0}  # which is quicker


runs = {"nothing": hacked, "kl_coef 0.1": again("kl", kl_coef=0.1, eval_steps=10)}

# %% [markdown]
# **A price on length, and one on repetition.** What does each do if answers get *shorter*, as they did here?

# %%
runs["length_penalty 0.1"] = again("length", length_penalty=0.1, **unwatched)
runs["diversity_penalty 5"] = again("diversity", diversity_penalty=5.0, **unwatched)

# %% [markdown]
# **Mend the reward model.** The hacked policy is an expert on its faults. Both it and the base answer training prompts;
# where the reward model prefers the hacked answer and the judge the other, there is a new pair to learn from.
#
# **Predict:** of such pairs of answers, how many does the reward model rank the wrong way round?

# %%
mined = mine_pairs(hacked.run_dir, answers, prompts=200) if judged else None
if mined:
    print(f"{len(mined.rows)} of {mined.compared} pairs were ranked the wrong way round, for instance")
    for row in mined.rows[:3]:
        print(
            f"  {row['prompt_text']}\n    better {row['chosen_text'][:70]!r}\n    worse  {row['rejected_text'][:70]!r}"
        )
else:
    print("somebody has to judge: python -m helpers hacking pairs RUN --output_dir DIR --judge NAME")

# %% [markdown]
# Half of the training pairs, to save time, and these.

# %%
if mined:
    mix = write_mix(mined.rows, lesson.data, lesson.path / "pairs", keep=2000)
    teach = lesson.use(bradley_terry_loss=bradley_terry_loss)
    mended = lesson.train("reward_model", teach, dataset_name=str(mix), on_tiny={"num_train_epochs": 1.0})
    runs["hacked pairs"] = again("mended", reward_model=str(mended.final), **unwatched)

# %% [markdown]
# **Stop in time.** With a held-out judge a run can end when it falls while the reward rises, and hand over the weights
# that it liked best (`--stop_on_hacking`); these are kept in any case, so we need no further run. Without a judge one
# can stop at a KL that was chosen beforehand (`--stop_kl`).
#
# **Predict:** at which step would the run have stopped, and which step's weights would it have handed over?

# %%
if judged:
    runs["best weights"] = hacked.run_dir / "best"
    kept = read_json(hacked.run_dir / "best" / "best.json")
    stops = [sign.step for sign in signs if sign.kind == "judge falls"]
    print(f"stopped at step {stops[0] if stops else 'none'}, kept the weights of step {kept['step']}")

# %%
prompts = lesson.held_out("prompts", 150)
reward_model = lesson.reward_model(place)


def proxy_of(policy):
    """The mean reward of greedy held-out answers, by the reward model of the run without a leash."""
    texts = lesson.report("", policy, prompts).responses
    encode = lesson.encoder
    groups = [
        Group(encode.encode_prompt(e.messages), [encode.encode_response(text)])
        for e, text in zip(prompts, texts, strict=True)
    ]
    return sum(row[0] for row in reward_model.score_groups(groups)) / len(groups)


policies = {"base": None, **runs}
figures = lesson.evaluate(policies).data
rows = []
for name, policy in policies.items():
    row = figures[name]
    low, high = row["ci95"] or (None, None)
    interval = f"{low:.2f}–{high:.2f}" if low is not None else None
    rows.append([name, proxy_of(policy), row["total"], row["win_rate_vs_base"], interval, row["mean_tokens"]])
header = ["remedy", "proxy", "gold", "win rate vs base", "95 %", "tokens"]
Table(f"{len(prompts)} held-out prompts, greedy answers; gold decides the win rate", header, rows)

# %% [markdown]
# On `tiny`, and over forty steps:
#
# - the leash, and the best weights, keep gold well above the base's, at no loss by the proxy: what the proxy paid for
#   beyond that was not worth having;
# - the penalty on repetition mends nothing yet: it looks for another fault than the one this policy has, and helps later on,
#   when the answers begin to go round in circles;
# - the mended reward model no longer pays for *I have never heard of that* (see the harmful requests below). The policy
#   is off to other texts that it overrates. The hole was closed, not the game;
# - the penalty on length looks best. Do not believe it yet: this hack makes answers *shorter*, and the penalty pays for
#   that besides. In sixty steps over three seeds (`python -m helpers hacking compare`, docs/measurements.md) it ends no
#   better than no remedy at all, and on one of them with answers of which gold rates every one at 0.
#
# One seed and one moment prove little about a remedy, and less where the curve is still moving.

# %%
if judged:
    some = {"none: ": hacked, "kl_coef: ": runs["kl_coef 0.1"]}
    figure = against_kl("leash", "The leash keeps the policy where proxy and gold agree", some)
figure if judged else print("these prompts have no gold judge")

# %%
shown = {name: run for name, run in runs.items() if name in ("nothing", "hacked pairs")}
lesson.show(shown, "One hole mended: is there another?")

# %% [markdown]
# ## The same in TRL
#
# TRL has no watch and no held-out judge, but a penalty is a reward function more: `GRPOTrainer` takes a list of them,
# with weights. Its own for repetition is yours with a minus.

# %%
from trl.rewards import get_repetition_penalty_reward

tokens = [
    lesson.encoder.encode_response(row["response"]) for row in read_jsonl(hacked.run_dir / "samples.jsonl")
]
theirs = torch.tensor(get_repetition_penalty_reward(ngram_size=3, max_penalty=-1.0)(completion_ids=tokens))
ours = torch.tensor([float(repetition_fraction(ids, n=3)) for ids in tokens])
print(f"{len(tokens)} answers, largest difference {(theirs + ours).abs().max().item():.1e}")
print("GRPOTrainer(reward_funcs=[score, repetition_penalty], args=GRPOConfig(reward_weights=[1.0, 5.0], …))")

# %% [markdown]
# ## Questions
#
# 1. Which rows of the table stand above the base by the proxy and below it by gold? What would a report by the proxy have
#    said of them?
# 2. Which sign would have told you earliest on a data set without a judge, and would you have acted on it?
# 3. The reward model was mended with the faults of one policy. What would you do before trusting the next policy that is
#    trained against it?
#
# ## To read
#
# - Gao et al., *Scaling laws for reward model overoptimization* (2022),
#   [arXiv 2210.10760](https://arxiv.org/abs/2210.10760): proxy and gold against √KL, and how both scale.
# - Stiennon et al., *Learning to summarize from human feedback* (2020),
#   [arXiv 2009.01325](https://arxiv.org/abs/2009.01325): figure 5, the same with people as the judge.
# - Singhal et al., *A long way to go: investigating length correlations in RLHF* (2023),
#   [arXiv 2310.03716](https://arxiv.org/abs/2310.03716).

# %%
lesson.finish()
