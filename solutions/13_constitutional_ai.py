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
# # 13 · Constitutional AI: feedback from the model itself
#
# So far somebody had to say which answers are harmful: a labeller, a demonstration, a reward model. Constitutional AI asks
# for a short list of principles instead, and lets the model criticise and rewrite its own answers by them. What people
# wrote is a page; what the model makes of it is a data set. The lesson takes a model that is helpful and does whatever it
# is told, and makes it harmless without making it useless.
#
# | profile | minutes | memory |
# |---|---|---|
# | `tiny`, two CPU cores | 1 (measured) | 1 GiB |
# | `colab`, one T4 | not measured | as lessons 01 and 03 |

# %% tags=["setup"]

# %%
import dataclasses
import random
from collections import Counter

from torch.nn.functional import softplus

from helpers.course.lesson import Lesson
from helpers.course.lesson_display import Table
from helpers.course.pipeline import pick_judge
from helpers.files import write_jsonl
from helpers.judging.gold import gold_scores
from helpers.judging.judge import Comparison
from helpers.judging.measure import gold_metadata

lesson = Lesson("13_constitutional_ai")
tiny = lesson.profile.name == "tiny"


def family(example):
    """What kind of prompt it is, in the bundled world: "harm", "lookalike", "colour", …"""
    return (gold_metadata(example) or {}).get("family", "")


# %% [markdown]
# ## A constitution
#
# Two principles are enough here. Each has a question for the critique and a request for the revision. Anthropic's first
# constitution had sixteen, and drew one at random for each critique.

# %%
CONSTITUTION = {
    "harm": ("Does that answer help to do harm?", "Write it again without that fault."),
    "truth": ("Does that answer make something up?", "Write it again without that fault."),
}
QUESTION, REQUEST = CONSTITUTION["harm"]

# %% [markdown]
# The chain has four steps, and two of them are training:
#
# 1. **Draft.** A helpful-only model answers prompts, harmful ones among them.
# 2. **Critique and revise.** The model is asked the question about its own answer; if it finds a fault, it rewrites it.
# 3. **Supervised.** Train on the revisions, *without* the critique in the context. This is SL-CAI.
# 4. **AI feedback.** Draw several answers from the new model, let a judge compare them by the constitution, and train on
#    the preferences. The paper trains a reward model and uses PPO; DPO takes the same pairs in one step.
#
# ## A helpful-only model
#
# SFT on demonstrations from which every harmful prompt was taken out, like a labeller who was told to be of use and
# nothing else.


# %%
def train_sft(name, rows, start=None, **settings):
    """SFT on (id, messages, answer) rows, from the base or from another policy."""
    place = lesson.path / "data" / name
    fields = ("row_id", "prompt_messages", "response_text")
    write_jsonl(place / "sft_train.jsonl", [dict(zip(fields, row, strict=True)) for row in rows])
    first = {"init_adapter": str(start.final / "adapter")} if start else {}
    return lesson.train("sft", lesson.use(), name=name, dataset_name=str(place), **first, **settings)


short = {"learning_rate": 2e-3, "num_train_epochs": 3.0} if tiny else {}
demonstrations = [e for e in lesson.examples(kind="sft", limit=1000) if family(e) != "harm"][
    : 600 if tiny else None
]
helpful = train_sft(
    "helpful", [(e.row_id, list(e.messages), e.responses[0]) for e in demonstrations], **short
)

# %%
lesson.evaluate({"base": None, "helpful only": helpful})

# %% [markdown]
# In the bundled world it has become better at everything but one: it does what it is told, whatever that is.
#
# ## Learning to criticise
#
# A model of 7 B parameters criticises when asked, with a few examples in its prompt. The bundled one has a million and has
# never met a critique; its few examples are put into the weights instead: answers from the pairs of lesson 02, some
# hundred of them harmful. The gold judge says which, in the place of a person who would write these examples by hand; the
# critiques and the refusals are sentences of ours. (On other profiles this cell is skipped; the model is asked as it is.)
#
# Note what the examples must contain: harmful answers, *refusals* of harmful requests, and answers to requests that only
# sound harmful. A critic who has seen "yes" only will always say yes.


# %%
def with_turns(example, *turns):
    """The conversation, continued: answer, question, critique, request, … in turn."""
    roles = ("assistant", "user") * len(turns)
    added = tuple({"role": role, "content": text} for role, text in zip(roles, turns, strict=False))
    return dataclasses.replace(example, messages=(*example.messages, *added), responses=())


REFUSALS = ("Sorry, I will not help with that.", "I cannot help with that because someone could get hurt.")
FAULT, NO_FAULT = "Yes. It helps to do harm.", "No."
rng = random.Random(0)
pairs = lesson.examples("train_prefs") if tiny else []
wanted = {"harm": 130, "lookalike": 60, "other": 40}
shots, seen = [], Counter()
for example in pairs:
    kind = family(example) if family(example) in wanted else "other"
    seen[kind] += 1
    if seen[kind] > wanted[kind]:
        continue
    for side, answer in enumerate(example.responses):
        harmful = gold_scores(gold_metadata(example), answer).harmless == 0
        asked, name = with_turns(example, answer, QUESTION), f"{example.row_id}-{side}"
        shots.append((name, list(asked.messages), FAULT if harmful else NO_FAULT))
        if harmful:
            again = with_turns(example, answer, QUESTION, FAULT, REQUEST)
            shots.append((f"{name}-revised", list(again.messages), rng.choice(REFUSALS)))
rng.shuffle(shots)
critic = train_sft("critic", shots, start=helpful, **{**short, "num_train_epochs": 5.0}) if tiny else helpful
print(Counter(row[2] for row in shots))

# %% [markdown]
# ## Critique and revise
#
# New prompts, none of which the critic was shown: harmful ones, look-alikes, and ordinary ones. The drafts are sampled.
#
# **Predict:** which mistake of the critic would cost more in the end: to miss a harmful answer, or to find fault with a good
# one?

# %%
shown = {row[1][0]["content"] for row in shots}
pool = {e.messages[-1]["content"]: e for e in [*lesson.examples("train_gen", "prompts"), *pairs]}
pool = [dataclasses.replace(e, responses=()) for text, e in pool.items() if text not in shown]
rng.shuffle(pool)
count = {"harm": 200, "lookalike": 180, "other": 300}
kinds = {e.row_id: family(e) if family(e) in count else "other" for e in pool}
red_team = [e for kind, most in count.items() for e in [e for e in pool if kinds[e.row_id] == kind][:most]]
drafts = [row[0].text for row in lesson.sample(helpful, red_team, seed=5)]


def ask(examples):
    """The critic's greedy answer to each conversation."""
    return [row[0].text for row in lesson.sample(critic, examples, greedy=True)]


critiques = ask([with_turns(e, draft, QUESTION) for e, draft in zip(red_team, drafts, strict=True)])
faulty = [i for i, text in enumerate(critiques) if text.lower().startswith("yes")]
rewritten = ask([with_turns(red_team[i], drafts[i], QUESTION, critiques[i], REQUEST) for i in faulty])
revisions = list(drafts)
for i, text in zip(faulty, rewritten, strict=True):
    revisions[i] = text
lines = [[red_team[i].messages[-1]["content"], drafts[i], critiques[i], revisions[i]] for i in faulty[:6]]
Table("Six of the answers that were rewritten", ["prompt", "draft", "critique", "revision"], lines)

# %% [markdown]
# How good is the critic? In the bundled world we can look.


# %%
def harmless(examples, answers):
    """(number, share) of harmless answers among those to harmful prompts."""
    scores = [
        gold_scores(gold_metadata(e), text).harmless
        for e, text in zip(examples, answers, strict=True)
        if family(e) == "harm"
    ]
    return len(scores), sum(scores) / max(len(scores), 1)


if tiny:
    found = Counter()
    for i, (example, draft) in enumerate(zip(red_team, drafts, strict=True)):
        bad = gold_scores(gold_metadata(example), draft).harmless == 0
        found[kinds[example.row_id], "harmful" if bad else "fine", i in set(faulty)] += 1
    table = [
        [kind, what, found[kind, what, True], found[kind, what, False]]
        for kind, what in [("harm", "harmful"), ("harm", "fine"), ("lookalike", "fine"), ("other", "fine")]
    ]
    print(Table("What the critic said", ["prompt", "draft is", "fault found", "none found"], table))
    print(
        f"harmless answers: {harmless(red_team, drafts)[1]:.2f} of the drafts, {harmless(red_team, revisions)[1]:.2f} after revision"
    )

# %% [markdown]
# ## Supervised on the revisions
#
# Every draft goes in, rewritten or not: the ordinary answers keep the model what it was.

# %%
rows = [
    (e.row_id, list(e.messages), text) for e, text in zip(red_team, revisions, strict=True) if text.strip()
]
sl_cai = train_sft("sl_cai", rows, start=helpful, **{**short, **({"num_train_epochs": 2.0} if tiny else {})})
lesson.evaluate({"base": None, "helpful only": helpful, "SL-CAI": sl_cai})

# %% [markdown]
# The critique is gone from the context, and its effect is in the weights: a model that had to be asked twice now answers
# right at once. Look at the other columns too. The drafts were *sampled*, nobody criticised what they made up, and
# training on them has taught just that: honesty fell in the bundled world.
#
# ## Broken: red-team prompts only
#
# Suppose only the harmful prompts had been revised and trained on. The harmlessness will be perfect.
#
# **Predict:** what does that model say to "I want to beat a hard level in a hurry. How?"

# %%
only = [
    (e.row_id, list(e.messages), text)
    for e, text in zip(red_team, revisions, strict=True)
    if kinds[e.row_id] == "harm" and text in REFUSALS
]
broken = train_sft(
    "refuser", only or rows[:100], start=helpful, **{**short, **({"num_train_epochs": 6.0} if tiny else {})}
)
policies = {"helpful only": helpful, "SL-CAI": sl_cai, "red team only": broken}
lesson.evaluate({"base": None, **policies})

# %%
lookalikes = [e for e in lesson.held_out("prompts") if family(e) == "lookalike"]
answered = {
    name: [row[0].text for row in lesson.sample(policy, lookalikes, greedy=True)]
    for name, policy in policies.items()
}
for name, texts in answered.items():
    refused = sum(
        "refuses a harmless request" in gold_scores(gold_metadata(e), t).reasons
        for e, t in zip(lookalikes, texts, strict=True)
    )
    print(f"{name}: refuses {refused} of {len(texts)} harmless requests that sound harmful")

# %%
Table(
    "Requests that only sound harmful",
    ["prompt", *answered],
    [
        [e.messages[-1]["content"], *[texts[i] for texts in answered.values()]]
        for i, e in enumerate(lookalikes[:5])
    ],
)

# %% [markdown]
# In the bundled world the broken model leads in all three scores: harmless, honest, and even more helpful. The requests it
# refuses without need are one kind of prompt among fifteen, and its other answers have become shorter. No average
# shows what is wrong. You have to know where a refusal would hurt, and ask there.
#
# ## Preferences from a judge
#
# Four answers of SL-CAI to each prompt; a judge says which is best and which worst. In the bundled world that is the gold
# judge. Elsewhere it is a language model that is shown the constitution (lesson 10 says how to name one, and what its
# verdict is worth); without one this step is left out.

# %%
judge = pick_judge(red_team)
drawn = [[c.text for c in row] for row in lesson.sample(sl_cai, red_team, k=4, seed=9)] if judge else []
preferences = []
for example, texts in zip(red_team, drawn, strict=False):
    verdicts = judge.compare([Comparison(example, text, texts[0]) for text in texts])
    scores = [verdict.score_a for verdict in verdicts]
    best, worst = max(range(4), key=scores.__getitem__), min(range(4), key=scores.__getitem__)
    if scores[best] > scores[worst] and texts[best].strip() and texts[worst].strip():
        fields = {"row_id": example.row_id, "prompt_messages": list(example.messages)}
        preferences.append({**fields, "chosen_text": texts[best], "rejected_text": texts[worst]})
print(f"{len(preferences)} pairs from {len(drawn)} prompts; on the others all four answers were equal")


# %%
def dpo_for_comparison(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """DPO, from PyTorch's own parts."""
    return softplus(-beta * ((policy_chosen - policy_rejected) - (ref_chosen - ref_rejected))).mean()


cai = sl_cai
if preferences:
    place = lesson.path / "data" / "preferences"
    write_jsonl(place / "train_prefs.jsonl", preferences)
    cai = lesson.train(
        "dpo",
        lesson.use(unchecked=True, dpo_loss=dpo_for_comparison),
        name="cai",
        dataset_name=str(place),
        init_adapter=str(sl_cai.final / "adapter"),
        on_tiny={"num_train_epochs": 1.0, "learning_rate": 2e-3, "beta": 0.5},
    )

# %% [markdown]
# **Predict:** in the bundled world harmlessness is nearly perfect already. What will the preferences change, then?

# %%
final = lesson.evaluate({"base": None, "helpful only": helpful, "SL-CAI": sl_cai, "CAI": cai})
final

# %%
if tiny:
    names = ["helpful only", "SL-CAI", "CAI"]
    plot = lesson.plot("tradeoff", "What was gained, and at what price", "helpful", "harmless")
    for name in names:
        plot.line(
            [final.data[name]["helpful"]], [final.data[name]["harmless"]], name, marker="o", linestyle=""
        )
    plot.axes.set_xlim(0.4, 1.0)
    plot.axes.set_ylim(-0.05, 1.1)
plot if tiny else None

# %%
lesson.show({"helpful only": helpful, "SL-CAI": sl_cai, "CAI": cai})

# %% [markdown]
# No demonstration of a refusal was given for any of the prompts it was trained on. They came from a question, from examples
# of critique on other prompts, and from the model that had learned to criticise by them.
#
# What did it *not* do? The critic can only find what it understands. The second principle of the constitution above was
# never used, and SL-CAI paid for it; what honesty came back, the judge of the last step put there. That judge is trusted
# completely.
#
# ## In other tools
#
# There is no new trainer here: the files under `data/` in the results are plain SFT and preference rows, and TRL's
# `SFTTrainer` and `DPOTrainer` (lessons 01 and 03) take them. The work is in the prompts of the critique.
#
# ## Questions
#
# 1. How many harmful drafts did the critic miss, and what became of those prompts in SL-CAI's training data?
# 2. Which column of the table would have told you about the broken model?
# 3. What would you have to write to use the second principle, and how would you see that it works?
#
# ## To read
#
# - Bai et al., *Constitutional AI: harmlessness from AI feedback* (2022),
#   [arXiv 2212.08073](https://arxiv.org/abs/2212.08073): figure 1 is the chain above.
# - Lee et al., *RLAIF vs. RLHF* (2023), [arXiv 2309.00267](https://arxiv.org/abs/2309.00267): AI labels against people's.
# - Röttger et al., *XSTest* (2023), [arXiv 2308.01263](https://arxiv.org/abs/2308.01263): requests that only sound harmful.

# %%
lesson.finish()
