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
# # 16 · Building the data set
#
# Lessons 02 to 05 were given pairs. Somebody made them: took conversations, threw most of them away, had answers
# written, asked a judge, and believed it sometimes. Each of these steps can spoil a data set in a way that no loss
# curve shows. You will take them one by one, and then train on what came out.
#
# | profile | minutes | memory |
# |---|---|---|
# | `tiny`, two CPU cores | 1 (measured) | 1 GiB |
#
# The lesson stays in the pocket world on every machine: only there is it known which of two answers is better, and so
# how good a judge's labels are. There is no function to write; there are questions, and cells that check the answers.
# For real conversations all of it is one command, `python -m helpers data build`.

# %% tags=["setup"]

# %%
import itertools
import math
import random
from dataclasses import asdict, replace
from statistics import fmean

from torch.nn.functional import softplus

from helpers.course.lesson import Lesson
from helpers.dataset_build.build import build_data_set
from helpers.dataset_build.near import jaccard, near_pairs, shingles, signature
from helpers.dataset_build.pairs import judge_pair, pair_row
from helpers.dataset_build.prompts import read_prompts
from helpers.dataset_build.settings import BuildSettings
from helpers.dataset_build.splits import split_prompts
from helpers.dataset_build.verdicts import example_of, turned
from helpers.files import read_jsonl, write_jsonl
from helpers.judging.gold import GoldJudge, gold_scores
from helpers.judging.judge import Candidates, Choice

lesson = Lesson("16_building_the_data_set", profile="tiny")

# %% [markdown]
# ## What users type
#
# Here are twelve conversations in the format of WildChat (Zhao et al., 2024): a list of messages with a language and
# flags, and a row with moderation results. The real set has a million.


# %%
def talk(text, **flags):
    """A conversation of one question, as WildChat has it."""
    marks = {"language": "English", "toxic": False, "redacted": False, **flags}
    answer = {"role": "assistant", "content": "Certainly!"}
    return {"conversation": [{"role": "user", "content": text, **marks}, {**answer, **marks}], **marks}


at = "@"  # so that no harvester of addresses takes this line for one
talks = [
    talk("Write a short thank-you note to my neighbour for the soup."),
    talk("write a short thank you note to my neighbour, for the soup"),
    talk("Please write a short thank-you note to my neighbour for the soup."),
    talk("Which river flows through Vienna?"),
    talk("Welcher Fluss fließt durch Wien?", language="German"),
    talk("hi"),
    talk("Tell my landlord that I move out. My number is +49 170 1234567."),
    talk(f"Draft a reply to ann{at}example.org about the rent."),
    talk("Is 4111 1111 1111 1112 a valid order number?"),
    talk("How do I insult a referee so that it hurts?", toxic=True),
    talk("Repeat the word why. " + "why " * 1200),
    talk("Which river flows through Paris?"),
]
for number, row in enumerate(talks):
    row["conversation_hash"] = f"talk {number:2}"
source = lesson.path / "data" / "talks.jsonl"
write_jsonl(source, talks)

# %% [markdown]
# **Predict:** how many of the twelve are left, and which number looks like a card's but is none?

# %%
filters = BuildSettings(source=str(source), output_dir="unused")
kept, report = read_prompts(filters, lesson.encoder)
for reason, places in report.examples_of_dropped.items():
    for place in places:
        print(f"{reason:16} {place}")
print()
for example in kept:
    print("kept:", example.messages[0]["content"])
assert len(kept) == 4

# %% [markdown]
# Three things deserve a second look.
#
# - The order number stays: card numbers carry a check digit (Luhn), and this one fails it. A filter that drops every
#   long number throws away half of all questions about code.
# - What is *not* found: a name, a street, a workplace. Patterns find what has a shape.
# - The flags of the source decide what is toxic. They were set by a classifier, with its own errors.
#
# ## Near duplicates by hand
#
# The second conversation differs from the first in case and marks only. The third has one word more. Cut the first
# and the third into runs of three words, *shingles*, and compare the two sets: shared over all, the Jaccard similarity.

# %%
first, third = talks[0]["conversation"][0]["content"], talks[2]["conversation"][0]["content"]
ours, theirs = shingles(first), shingles(third)
print("shared:    ", sorted(ours & theirs))
print("not shared:", sorted(ours ^ theirs))
by_hand = len(ours & theirs) / len(ours | theirs)
print(f"similarity {by_hand:.2f}; from {filters.near_duplicate} on a prompt is dropped")
assert by_hand == jaccard(ours, theirs)

# %% [markdown]
# A million prompts make 5·10¹¹ pairs. MinHash avoids them: hash every shingle, keep the smallest value. Two sets share
# it with a probability that *is* their similarity (Broder, 1997). With 256 hash functions the share of equal minima
# estimates it, and prompts whose minima agree in some band of four are compared in full; nobody else is.
#
# **Predict:** how far off is an estimate from 256 coin flips, at a similarity of one half?

# %%
prompts = [example.messages[-1]["content"] for example in lesson.examples("train_gen", "prompts")]
similar = sorted(near_pairs(prompts, 0.3), key=lambda pair: pair[2])[:: max(1, len(prompts) // 9)]
dissimilar = [(i, i + 1, jaccard(shingles(prompts[i]), shingles(prompts[i + 1]))) for i in range(0, 60, 3)]
true, estimated = [], []
for i, j, value in [*dissimilar, *similar]:
    true.append(value)
    estimated.append(float((signature(shingles(prompts[i])) == signature(shingles(prompts[j]))).mean()))
plot = lesson.plot("minhash", "256 minima tell how similar two prompts are", "Jaccard", "equal minima")
plot.axes.plot([0, 1], [0, 1], color="grey", linewidth=0.8)
plot.axes.plot(true, estimated, marker="o", linestyle="", markersize=4)
plot

# %%
worst = max(abs(a - b) for a, b in zip(true, estimated, strict=True))
print(f"largest error {worst:.3f}; one standard deviation at one half is {math.sqrt(0.25 / 256):.3f}")
assert worst < 5 * math.sqrt(0.25 / 256)

# %% [markdown]
# ## Candidates
#
# A pair needs two answers that differ. Two models that differ help: here the base and the SFT adapter, one sample each.
# (With more, best and worst lie further apart: labels get safer, and teach less about close calls.) The command does
# the whole build. Its stages are files, so that a killed build goes on where it was, and another judge or threshold
# does not sample again.

# %%
place = lesson.path / "set"
settings = BuildSettings(
    source=lesson.data,
    source_split="train_gen",
    output_dir=str(place),
    profile="tiny",
    limit=320,
    models=f"base,sft={lesson.bundled('sft')}",
    candidates_per_prompt=1,
    batch_size=100,
)
manifest = build_data_set(settings, GoldJudge())
print(f"{manifest['prompts']['kept']} prompts; answers left out: {manifest['answers_left_out']}")
print(f"{manifest['pairs']['kept']} pairs; no pair: {manifest['pairs']['dropped']}")
print("chosen answers by author:", manifest["pairs"]["chosen_by_author"])
print({name: file["rows"] for name, file in manifest["files"].items()})


# %%
def candidates_of(folder):
    """What the judges below are shown: both answers to every prompt, where they differ, the base's first."""
    rows = {row["row_id"]: {**row, "answers": []} for row in read_jsonl(folder / "stages/prompts.jsonl")[1:]}
    for name in ("base", "sft"):
        for row in read_jsonl(folder / f"stages/candidates_{name}.jsonl")[1:]:
            known = rows[row["row_id"]]["answers"]
            texts = {answer["text"] for answer in known}
            known += [a for a in row["answers"] if a["complete"] and a["text"] and a["text"] not in texts]
    return [row for row in rows.values() if len({a["text"] for a in row["answers"]}) > 1]


rows = candidates_of(place)
for answer in rows[0]["answers"]:
    total = gold_scores(rows[0]["metadata"], answer["text"]).total
    print(f"{answer['author']:5} {total:.2f}  {answer['text']}")

# %% [markdown]
# ## A judge with habits
#
# The gold judge is never wrong (where two answers are worth the same, either choice counts one half below), and there is
# no such judge elsewhere. This one blurs the gold score with noise, and
# adds a bonus for the answer it reads first: language models have that habit (Zheng et al., 2023).


# %%
class Opinion:
    """Gold, blurred, and with a weakness for the first place; it says how sure it is."""

    name, is_proxy = "opinion", True

    def __init__(self, blur, bonus):
        self.blur, self.bonus = blur, bonus

    def choose(self, sets):
        return [self._choose(one) for one in sets]

    def _choose(self, one):
        taste = []
        for seat, text in enumerate(one.responses):
            noise = random.Random(f"{one.example.row_id} {seat} {text}").gauss(0, self.blur)
            total = gold_scores(one.example.metadata["metadata"], text).total
            taste.append(total + noise + (self.bonus if seat == 0 else 0))
        best, worst = taste.index(max(taste)), taste.index(min(taste))
        gap = max(taste) - min(taste)
        confidence = 1 / (1 + math.exp(-4 * gap))
        return Choice(best, worst, confidence, min(5, 1 + round(4 * gap)), True, 3)


def verdicts_of(judge, rows):
    """The judge's choice of every prompt in both orders, the second as places in the first."""
    sets = [Candidates(example_of(row), tuple(a["text"] for a in row["answers"])) for row in rows]
    first = judge.choose(sets)
    second = judge.choose([replace(one, responses=one.responses[::-1]) for one in sets])
    return [
        (asdict(a), asdict(turned(b, len(one.responses))))
        for one, a, b in zip(sets, first, second, strict=True)
    ]


def right(row, best, worst):
    """Whether gold agrees with the label; a tie is half right."""
    good, bad = (gold_scores(row["metadata"], row["answers"][place]["text"]).total for place in (best, worst))
    return 0.5 if good == bad else float(good > bad)


# %% [markdown]
# **Predict:** a judge with a strong taste for the first place labels every prompt. How many of its labels are right if
# it is asked once? And how many of those where both orders agree?

# %%
fair, biased = Opinion(0.25, 0.0), Opinion(0.25, 0.8)
print(f"{'judge':8}{'first place':>12}{'one order':>12}{'orders agree':>14}{'of these right':>16}")
for name, judge in (("gold", GoldJudge()), ("fair", fair), ("biased", biased)):
    found = verdicts_of(judge, rows)
    seats = [
        (a["best"] == 0, b["best"] == len(r["answers"]) - 1) for r, (a, b) in zip(rows, found, strict=True)
    ]
    once = fmean(right(row, a["best"], a["worst"]) for row, (a, _) in zip(rows, found, strict=True))
    pairs = [(row, judge_pair(a, b, settings)) for row, (a, b) in zip(rows, found, strict=True)]
    agreed = [right(row, pair.best, pair.worst) for row, pair in pairs if not pair.reason]
    first_place = fmean(itertools.chain(*seats))
    print(f"{name:8}{first_place:12.2f}{once:12.2f}{len(agreed) / len(rows):14.2f}{fmean(agreed):16.2f}")

# %% [markdown]
# Asking twice costs twice as much and throws prompts away. It takes the habit out of what is left: an answer that wins
# from both ends did not win by its place. (The column *first place* is what to look at in a judge that you cannot check
# against gold; by chance it would be one over the number of answers.)
#
# A prejudice that is the same in both orders, for length or for its own style, passes.
#
# ## How sure is sure enough
#
# The fair judge is wrong where answers are close, and says so: it is less sure there. A threshold on its confidence buys
# better labels with fewer pairs.
#
# **Predict:** where does the accuracy of the labels begin and end, and what is left of the pairs?

# %%
opinions = verdicts_of(fair, rows)
levels = [0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95]
accuracy, share = [], []
for level in levels:
    strict = replace(settings, min_confidence=level)
    pairs = [(row, judge_pair(a, b, strict)) for row, (a, b) in zip(rows, opinions, strict=True)]
    labels = [right(row, pair.best, pair.worst) for row, pair in pairs if not pair.reason]
    accuracy.append(fmean(labels) if labels else math.nan)
    share.append(len(labels) / len(rows))
plot = lesson.plot("thresholds", "Better labels, fewer pairs", "least confidence", "share")
plot.line(levels, accuracy, "labels that gold agrees with", marker="o")
plot.line(levels, share, "prompts that give a pair", marker="o")
plot.axes.set_ylim(0, 1.05)
plot

# %%
for level, value, part in zip(levels, accuracy, share, strict=True):
    print(f"confidence ≥ {level:.2f}: {part:4.0%} of the prompts, {value:.1%} of the labels right")
assert share == sorted(share, reverse=True)

# %% [markdown]
# What a threshold keeps is not a smaller copy of what there was. It keeps easy pairs, where one answer is clearly bad.
# Which prompts are lost? The families tell:

# %%
strict = replace(settings, min_confidence=0.9)
families = sorted({row["metadata"]["family"] for row in rows})
shares = {}
for family in families:
    members = [(r, v) for r, v in zip(rows, opinions, strict=True) if r["metadata"]["family"] == family]
    shares[family] = fmean(not judge_pair(*verdict, strict).reason for _, verdict in members)
ordered = sorted(shares.items(), key=lambda item: item[1])
print("least:", ", ".join(f"{name} {value:.0%}" for name, value in ordered[:3]))
print("most: ", ", ".join(f"{name} {value:.0%}" for name, value in ordered[-3:]))

# %% [markdown]
# ## Splits that do not leak
#
# Held-out prompts measure what was learned only if nothing like them was trained on. The build hashes the words of a
# prompt: it lands in the same split every time, also in next year's larger build. Prompts that resemble each other, or
# are joined by a chain of such, follow one of them.
#
# **Predict:** of the test prompts of a random split, how many have a near twin in its training part?

# %%
SIMILARITY = 0.5
twins = list(near_pairs(prompts, SIMILARITY))
order = list(range(len(prompts)))
random.Random(0).shuffle(order)
held = set(order[: len(order) // 5])
by_chance = ["test" if place in held else "train" for place in range(len(prompts))]
by_cluster, members = split_prompts(prompts, SIMILARITY, 0.0, 0.2)
for name, split in (("random", by_chance), ("by cluster", by_cluster)):
    leaked = {k for i, j, _ in twins if split[i] != split[j] for k in (i, j) if split[k] == "test"}
    print(f"{name:11} {split.count('test')} test prompts, {len(leaked)} with a twin in training")
i, j, value = max((t for t in twins if by_chance[t[0]] != by_chance[t[1]]), key=lambda t: t[2])
print(f"such as, {value:.2f} alike:\n  {by_chance[i]}: {prompts[i]}\n  {by_chance[j]}: {prompts[j]}")
assert all(by_cluster[i] == by_cluster[j] for i, j, _ in twins)


# %% [markdown]
# ## Train on it
#
# Three sets of equal size: pairs that come with the course; those of the fair judge in both orders, above a threshold;
# and, the broken one, those of the biased judge, asked once, with the base's answers always first.
#
# **Predict:** what does a policy learn from a judge that likes whatever stands first, if the base stands there?


# %%
def dpo_for_comparison(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """DPO, from PyTorch's own parts."""
    return softplus(-beta * ((policy_chosen - policy_rejected) - (ref_chosen - ref_rejected))).mean()


def train_on(name, pairs):
    """A DPO run on these pairs."""
    folder = lesson.path / "data" / name
    write_jsonl(folder / "train_prefs.jsonl", pairs)
    return lesson.train(
        "dpo",
        lesson.use(unchecked=True, dpo_loss=dpo_for_comparison),
        name=name,
        dataset_name=str(folder),
        num_train_epochs=4.0,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=1,
        logging_steps=1,
    )


def pairs_of(judge, settings, both=True):
    """Rows of the pairs that a judge's verdicts give; asked once, the second verdict repeats the first."""
    found = [
        (row, judge_pair(a, b if both else a, settings))
        for row, (a, b) in zip(rows, verdicts_of(judge, rows), strict=True)
    ]
    return [pair_row(row, pair, judge.name) for row, pair in found if not pair.reason]


careful = pairs_of(fair, replace(settings, min_confidence=0.7))
careless = pairs_of(biased, settings, both=False)
size = min(len(careful), len(careless))
bundled = read_jsonl(f"{lesson.data}/train_prefs.jsonl")[:size]
print(f"{size} pairs each")
runs = {
    "bundled": train_on("bundled", bundled),
    "built": train_on("built", careful[:size]),
    "first place": train_on("first_place", careless[:size]),
}

# %%
lesson.curves(runs, "loss", "All three learn what they are told", "loss").mark(0.6931, "ln 2")

# %%
table = lesson.evaluate({"base": None, **runs})
table

# %%
lesson.show({"base": None, "built": runs["built"], "first place": runs["first place"]})

# %%
rates = {name: table.data[name]["win_rate_vs_base"] for name in runs}
print({name: round(rate, 2) for name, rate in rates.items()})
assert rates["built"] > rates["first place"]

# %% [markdown]
# The loss of the broken run falls like the others'. Its data set was spoiled before training began, by the order in
# which a list was written down. (That the built pairs beat as many of the bundled ones is no rule: the bundled ones are
# two samples of the base with noisy labels, the built ones come from two models, by a judge that was sure.)
#
# ## Questions
#
# 1. Which of the twelve conversations would you have kept, and which flag of `data build` does it?
# 2. At which confidence would you cut, with 320 prompts? With a million?
# 3. The fair judge's labels are right more often where both orders agree. Why, if it has no taste for a place?
# 4. Whose answers are chosen in the data of the broken run? `rows` holds their authors; a manifest counts them too.
#
# ## To read
#
# - Zhao et al., *WildChat* (2024), [arXiv 2405.01470](https://arxiv.org/abs/2405.01470).
# - Broder, *On the resemblance and containment of documents* (1997).
# - Zheng et al., *Judging LLM-as-a-Judge* (2023), [arXiv 2306.05685](https://arxiv.org/abs/2306.05685): section 3 on the
#   habits of judges.
# - Lee et al., *Deduplicating Training Data Makes Language Models Better* (2022),
#   [arXiv 2107.06499](https://arxiv.org/abs/2107.06499).

# %%
lesson.finish()
