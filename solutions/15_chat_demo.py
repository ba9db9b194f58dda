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
# # 15 · A chat demo: what it shows and what it hides
#
# Nobody reads a table of win rates as eagerly as an answer to a question of one's own. A demo convinces, and that is
# what is wrong with it: whoever builds it picks the examples, names the columns and stops when it looks good. This
# lesson builds the parts of a demo that can be trusted: answers side by side from one base, votes by readers who do
# not know whom they vote for, examples that say how they were picked. Then the votes train a model.
#
# | profile | minutes | memory |
# |---|---|---|
# | `tiny`, two CPU cores | 1 (measured) | 1 GiB |
# | `colab`, one T4 | not measured | as lesson 03 |
#
# There is no function to write. There are questions, and cells that check the answers.

# %% tags=["setup"]

# %%
import dataclasses
import random
import shutil
from statistics import fmean

from helpers.apps.demo.gallery import make_gallery
from helpers.apps.demo.lineup import Lineup, sampling_of
from helpers.apps.demo.votes import VoteBook, standings, wilson
from helpers.course.lesson import Lesson, adapter_of
from helpers.course.lesson_display import COLOURS, Table
from helpers.judging.gold import gold_scores
from helpers.judging.measure import gold_metadata
from helpers.models.loading import count_bases
from helpers.text.datasets import load_examples

lesson = Lesson("15_chat_demo")
tiny = lesson.profile.name == "tiny"

# %% [markdown]
# ## One base, several policies
#
# A demo that loads a model for every column needs as much memory as it has columns. Adapters do not: base, SFT and
# reward model are one set of base weights, and a few small matrices each.

# %%
pooling = lesson.use().last_token_index
adapters = {"sft": adapter_of(lesson.bundled("sft"))}
lineup = Lineup(lesson.profile.model_name, adapters, lesson.bundled("reward"), lesson.profile, pooling)

sizes = {"base": 0, "sft": 0, "reward": 0}
for name, weight in lineup.model.named_parameters():
    sizes[next((adapter for adapter in ("sft", "reward") if f".{adapter}." in name), "base")] += (
        weight.numel()
    )
print("numbers:", ", ".join(f"{name} {size:,}" for name, size in sizes.items()))
assert count_bases([lineup.model, lineup.reward_model]) == 1

# %% [markdown]
# Every policy gets the same prompt, so the answers are the rows of one batch, and every row passes through its own
# adapter. Nothing is switched between tokens, and the answers grow together:

# %%
how = sampling_of(temperature=0.7, top_p=0.95, max_new_tokens=min(lesson.budget.max_new_tokens, 64))
question = lesson.prompts[0].messages[-1]["content"]
print(question)
for number, contest in enumerate(lineup.contest(question, ["base", "sft"], how, blind=False)):
    if number % 8 == 0 or contest.done:
        print(f"{number:4}", " | ".join(f"{c.policy}: {c.draft.text}" for c in contest.columns))

# %% [markdown]
# Each row has a random generator of its own, all with the same seed. So what a policy answers does not depend on who
# answers beside it. (If it did, adding a column to a demo would change the others.)

# %%
alone = [list(lineup.contest(question, [name], how))[-1].columns[0].draft.text for name in ("base", "sft")]
assert alone == [column.draft.text for column in contest.columns]

# %% [markdown]
# ## A blind vote
#
# The page shuffles the columns and calls them A and B. Names and rewards appear after the vote, because a reader who
# knows that B is "ours", or that the reward model likes it better, judges that and not the text.
#
# Here a judge votes in your place, on the texts alone: the gold judge where the prompts have one, as those of `tiny`
# do, else the reward model, which is a proxy.
#
# **Predict:** of 60 prompts, how often will the SFT model be preferred? How many votes does it take before one can say
# that it is better at all?

# %%
VOTES = 60
prompts = lesson.examples(kind="prompts", limit=VOTES)  # training prompts: the held-out ones are for the end
shuffle = random.Random(0)
contests = []
for number, example in enumerate(prompts):
    text = example.messages[-1]["content"]
    contests.append(list(lineup.contest(text, ["base", "sft"], how, seed=number, shuffle=shuffle))[-1])


def opinions(contest, example):
    """What the voter thinks of each column; it never looks at `contest.policies`."""
    facts = gold_metadata(example)
    if facts is None:
        return [column.reward for column in contest.columns]
    return [gold_scores(facts, column.draft.text).total for column in contest.columns]


def careful(contest, example):
    """The best column, or None for no difference."""
    scores = opinions(contest, example)
    return None if scores[0] == scores[1] else scores.index(max(scores))


def hold(voter, contests, folder):
    """A vote on every contest, kept in a fresh folder."""
    shutil.rmtree(folder, ignore_errors=True)
    book = VoteBook(folder / "train_prefs.jsonl")
    for contest, example in zip(contests, prompts, strict=True):
        book.record(contest, voter(contest, example))
    return book


book = hold(careful, contests, lesson.path / "votes")
for line in book.standings():
    rate = (
        ""
        if line.rate is None
        else f", win rate against base {line.rate:.2f} ({line.low:.2f}–{line.high:.2f})"
    )
    print(f"{line.policy}: picked {line.picked} of {line.shown}{rate}")

# %% [markdown]
# The interval is Wilson's, not the bootstrap of lesson 10. The difference matters exactly where demos live, at a handful
# of votes. **Predict:** three votes, three wins. What does each of the two say?

# %%
bootstrap = lesson.use().bootstrap_ci([1.0, 1.0, 1.0])
print("bootstrap", bootstrap, "  Wilson", tuple(round(bound, 2) for bound in wilson(3, 3)))
assert bootstrap == (1.0, 1.0), "resampling three ones gives three ones"
assert wilson(3, 3)[0] < 0.5, "three wins of three do not even show that it is better"

# %%
running = [next(s for s in standings(book.ballots[:n]) if s.policy == "sft") for n in range(1, VOTES + 1)]
steps = range(1, VOTES + 1)
plot = lesson.plot(
    "running", "How long a demo has to run before it says something", "votes", "win rate of SFT against base"
)
plot.axes.plot(steps, [line.rate for line in running], color=COLOURS[0], label="so far")
plot.axes.fill_between(
    steps, [line.low for line in running], [line.high for line in running], color=COLOURS[0], alpha=0.18
)
plot.axes.plot(steps, [line.low for line in running], color=COLOURS[0], linewidth=0.8, label="95 %")
plot.axes.plot(steps, [line.high for line in running], color=COLOURS[0], linewidth=0.8)
plot.axes.set_ylim(0, 1)
plot.mark(0.5, "no better than the base")

# %%
sure = next((n for n, line in zip(steps, running, strict=True) if line.low > 0.5), None)
print(f"the interval first leaves one half behind after {sure} votes")

# %% [markdown]
# Who stops at the first moment the interval excludes one half has looked up to 60 times and will be fooled more often
# than the 5 % that each look allows. Fix the number of votes before, or report all of them.
#
# ## A broken demo: the columns in a fixed order
#
# Readers are lazy. Let 60 % of the votes go to the column on the left without reading.
#
# **Predict:** what does the win rate become if the columns are shuffled? And if the base always stands on the left?


# %%
def lazy(voter, share, seed=0):
    """The same voter, who looks only at the left column in this share of the contests."""
    dice = random.Random(seed)
    return lambda contest, example: 0 if dice.random() < share else voter(contest, example)


def in_order(contest):
    """Base on the left, as a demo without shuffling has it."""
    return dataclasses.replace(contest, columns=tuple(sorted(contest.columns, key=lambda c: c.policy)))


books = {
    "careful, shuffled": book,
    "lazy, shuffled": hold(lazy(careful, 0.6), contests, lesson.path / "lazy"),
    "lazy, base on the left": hold(
        lazy(careful, 0.6), [in_order(c) for c in contests], lesson.path / "fixed"
    ),
}
rows = []
for name, votes in books.items():
    line = votes.standings()[0]
    first = sum(ballot["choice"] == 0 for ballot in votes.ballots) / len(votes.ballots)
    rows.append([name, line.rate, f"{line.low:.2f}–{line.high:.2f}", first])
Table("The same answers, three demos", ["voters", "win rate of SFT", "95 %", "left column picked"], rows)

# %% [markdown]
# Shuffled, laziness is noise: it pulls the rate towards one half and does not turn it round. In a fixed order it is bias, and
# no number of votes removes it. The last column is the alarm: with shuffled columns and careful readers it lies near one
# half (ties aside).

# %%
rate = {row[0]: row[1] for row in rows}
assert rate["lazy, base on the left"] < rate["lazy, shuffled"]

# %% [markdown]
# ## The gallery, and how examples are picked
#
# "Here are six improvements" is true of nearly every pair of models. The gallery of the page ranks held-out prompts by
# reward gain, the reward of the new answer minus that of the old one, and says that it did.

# %%
held_out = lesson.held_out("prompts", 64 if tiny else 24)
gallery = make_gallery(lineup, held_out, "sft", max_new_tokens=how.max_new_tokens)
facts = {example.messages[-1]["content"]: gold_metadata(example) for example in held_out}


def wall(how_picked):
    """Six of the changes, with the gold judge's gain where there is one."""
    changes, rows = gallery.pick(how_picked, 6), []
    for c in changes:
        known = facts[c.prompt]
        gold = gold_scores(known, c.after).total - gold_scores(known, c.before).total if known else None
        rows.append([c.prompt, c.before, c.after, c.gain, gold])
    return Table(gallery.caption(how_picked, 6), ["prompt", "base", "SFT", "reward gain", "gold gain"], rows)


wall("largest gains")

# %% [markdown]
# The caption gives the mean over all prompts beside the picked ones. It is what a reader would have to ask for.
#
# **Before you run the next cell:** turn the list round. Which prompts stand at its other end, and is the new answer
# worse there?

# %%
wall("largest losses")

# %% [markdown]
# Compare the two last columns. Where the reward falls and gold does not, it is the reward model that is wrong: a gallery
# picked by its scores hides the model's faults *and* its own. Count such rows before you go on.
#
# There is a second bias, even with a perfect judge. Answers are drawn at random, and who picks the largest gains picks
# lucky draws. Draw again for the same prompts and the luck is gone.
#
# **Predict:** by how much do the picked gains shrink? And those of six prompts picked at random?


# %%
def gain_of(contest):
    reward = {column.policy: column.reward for column in contest.columns}
    return reward["sft"] - reward["base"]


def again(number):
    """The gain on the same prompt with fresh draws, averaged over three seeds."""
    text = contests[number].prompt
    draws = [list(lineup.contest(text, ["base", "sft"], how, seed=1000 * n + number))[-1] for n in (1, 2, 3)]
    return fmean(map(gain_of, draws))


gains = [gain_of(contest) for contest in contests]
picked = sorted(range(VOTES), key=lambda number: -gains[number])[:6]
by_chance = random.Random(1).sample(range(VOTES), 6)
shown = {
    "picked": fmean(gains[n] for n in picked),
    "picked,\nanswered again": fmean(again(n) for n in picked),
    "random": fmean(gains[n] for n in by_chance),
    "random,\nanswered again": fmean(again(n) for n in by_chance),
    "all 60": fmean(gains),
}
plot = lesson.plot(
    "picked", "What a gallery shows, and what a reader will get", "six prompts", "mean reward gain"
)
colours = [COLOURS[1], COLOURS[1], COLOURS[0], COLOURS[0], COLOURS[6]]
plot.axes.bar(list(shown), list(shown.values()), color=colours)
plot.mark(shown["all 60"], "all")

# %%
assert shown["picked"] > shown["all 60"], "the largest of a list lie above its mean, whatever the list"
print(", ".join(f"{name!r} {value:+.2f}".replace("\\n", " ") for name, value in shown.items()))

# %% [markdown]
# ## From votes to a model
#
# A vote is a preference: the chosen answer against each answer with another text. A tie or two equal texts give no pair.
# The file has the schema of the course's training data, so every trainer reads it.

# %%
pairs = load_examples(lesson.path / "votes", split="train_prefs", kind="preference")
print(pairs.report.render())
pair = pairs.examples[0]
print("\nchosen:  ", pair.responses[0], "\nrejected:", pair.responses[1])
assert len(pairs.examples) == sum(
    len(set(ballot["texts"])) > 1 for ballot in book.ballots if ballot["choice"] is not None
)

# %% [markdown]
# On a terminal: `python -m helpers train --algo dpo --dataset_name DIRECTORY_OF_THE_VOTES`, with your loss of lesson 03
# by `--answers`. Here TRL takes a few steps, from the base.
#
# **Predict:** the votes were about the base's and the SFT model's own answers. What can DPO learn from them?

# %%
from peft import LoraConfig
from trl import DPOConfig, DPOTrainer

settings = DPOConfig(
    **lesson.trl_defaults(),
    beta=0.5,
    learning_rate=2e-3 if tiny else 5e-5,
    per_device_train_batch_size=16,
    max_steps=30,
    lr_scheduler_type="constant",
)
trainer = DPOTrainer(
    model=lesson.fresh_base(),
    args=settings,
    train_dataset=lesson.conversations(pairs.examples),
    processing_class=lesson.tokenizer,
    peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
)
losses = lesson.losses_of(trainer)
trainer.model.save_pretrained(str(lesson.path / "voted"), save_embedding_layers=False)
plot = lesson.plot(
    "votes_loss", f"{len(pairs.examples)} pairs from votes: the loss falls from ln 2", "step", "loss"
)
plot.line(range(1, len(losses) + 1), losses)
plot.mark(0.6931, "ln 2")

# %%
lesson.evaluate({"base": None, "after the votes": lesson.path / "voted", "SFT": lesson.bundled("sft")})

# %% [markdown]
# Nobody voted on these prompts. A few dozen votes move a model: that is why the rows say what was chosen between what
# (`metadata.vote`), and why the voters of a demo are part of its result. The votes also say more than was meant: on
# `tiny`, look for the harmless request below that is refused now. Which votes taught that?
#
# The new adapter is one more column over the same base:

# %%
adapters["voted"] = lesson.path / "voted"
lineup = Lineup(lesson.profile.model_name, adapters, lesson.bundled("reward"), lesson.profile, pooling)
rows = []
for example in lesson.prompts[:6]:
    text = example.messages[-1]["content"]
    contest = list(lineup.contest(text, ["base", "sft", "voted"], sampling_of(0, 1, 48), blind=False))[-1]
    rows.append([text, *(f"{column.draft.text}  [{column.reward:+.1f}]" for column in contest.columns)])
assert count_bases([lineup.model, lineup.reward_model]) == 1
Table("Greedy answers with their rewards", ["prompt", "base", "SFT", "after the votes"], rows)

# %% [markdown]
# ## The page
#
# It is not started here. On a terminal, with whatever adapters you have:
#
#     python -m helpers demo
#     python -m helpers demo --adapters sft=runs/my_sft,dpo=runs/my_dpo --reward_model runs/my_rm
#     python -m helpers demo --export_space my_space        # a folder for a Hugging Face Space on a CPU
#
# In a notebook (and on Colab with `share=True`, as its page is reached through a public link):
#
#     from helpers.apps.demo.command import DemoConfig, offer_of
#     from helpers.apps.demo.offer import open_offer
#     from helpers.apps.demo.serve import launch
#     page = launch(*open_offer(offer_of(DemoConfig())), block=False)
#     page.close()
#
# ## Questions
#
# 1. After how many votes did the interval first leave one half behind, and what was the rate then? Compare it with the rate
#    after all votes.
# 2. Which share of the lazy voters' ballots fell on the left column in the two demos? Could you have caught the fixed order
#    from that number alone?
# 3. Take the six largest losses. In how many of them does the gold judge (or do you) agree with the reward model?
#
# ## To read
#
# - Chiang et al., *Chatbot Arena* (2024), [arXiv 2403.04132](https://arxiv.org/abs/2403.04132): blind pairwise votes at
#   scale, and how to rank by them.
# - Zheng et al. (2023), [arXiv 2306.05685](https://arxiv.org/abs/2306.05685): position bias of judges that are models.
# - Wilson, *Probable inference, the law of succession, and statistical inference* (1927): the interval.

# %%
lesson.finish()
