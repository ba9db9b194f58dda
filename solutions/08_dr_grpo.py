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
# # 08 · Dr. GRPO: two divisions too many
#
# GRPO (lesson 07) divides twice: the loss of an answer by its length, and the advantages of a group by their standard
# deviation. Both look like harmless housekeeping. Each of them quietly changes what is optimised, and Dr. GRPO is GRPO
# with both taken out. You will make the two biases visible with your own functions, train with and without them, and
# pay the price: without the second division, the size of the reward is your business.
#
# | profile | minutes | memory |
# |---|---|---|
# | `tiny`, two CPU cores | 1 (measured) | 1 GiB |
# | `colab`, one T4 | not measured | not measured |

# %% tags=["setup"]

# %%
import torch

from helpers.course.checks import check
from helpers.course.lesson import Lesson
from helpers.course.lesson_display import Table
from helpers.text.groups import Group

lesson = Lesson("08_dr_grpo")

# %% [markdown]
# ## Before
#
# The same base model and the same twelve prompts as ever.

# %%
lesson.show({"base": None}, "Before: the base model, answers tinted from bad (orange) to good (green)")

# %% [markdown]
# ## The advantages, once more
#
# The advantage of an answer is its reward minus the mean of its siblings; GRPO divides by their standard deviation,
# Dr. GRPO does not. The function is that of lesson 07: copy yours, or write it again.

# %% tags=["exercise"]
from solutions.answers import group_advantages

# %%
check("group_advantages", group_advantages)

# %% [markdown]
# ## Bias one: the standard deviation
#
# Let a reward be 1 for right and 0 for wrong, and the group eight answers. If one of eight is right, that one answer is
# rare news and its advantage is large. If seven are, it is hardly worth a word.
#
# **Predict:** what does the division do to the advantage of the *one wrong* answer among seven right ones? And how does
# that compare with a wrong answer in a group of four and four?

# %%
answers = lesson.use(group_advantages=group_advantages)
successes = range(1, 8)
plot = lesson.plot(
    "std",
    "The division lifts the groups that are nearly all right or all wrong",
    "right answers in a group of 8",
    "advantage",
)
for scaled, name in ((True, "GRPO"), (False, "Dr. GRPO")):
    right, wrong = [], []
    for count in successes:
        worth = answers.group_advantages(torch.tensor([1.0] * count + [0.0] * (8 - count)), 8, scaled)
        right.append(worth[0].item())
        wrong.append(worth[-1].item())
    colour = "#D55E00" if scaled else "#0072B2"
    plot.line(successes, right, f"a right answer, {name}", color=colour, marker="o")
    plot.line(successes, wrong, f"a wrong answer, {name}", color=colour, marker="x", linestyle="--")
plot.axes.legend(loc="lower left", fontsize=8, frameon=False)
plot

# %% [markdown]
# What counts is how much the division adds: $1/\mathrm{std}$ is a weight on the *prompt*. It is smallest where a prompt
# is of middling difficulty, and grows towards both ends. So easy and hopeless prompts are taken more seriously than
# those that could teach most, which nobody asked for.
#
# Rewards of a reward model are not 0 and 1, and there the weight has no bound: siblings that differ by a hair count as
# much as siblings that differ by a mile. Eight real groups of the base model:

# %%
place = lesson.bundled("reward")
reward_model = lesson.reward_model(place)


def rollout(policy, examples):
    """Eight answers to each prompt at temperature 1: (groups of token ids, rewards (N,))."""
    samples = lesson.sample(policy, examples, k=8, temperature=1.0)
    prompts = [lesson.encoder.encode_prompt(example.messages) for example in examples]
    groups = [
        Group(ids, [answer.ids for answer in answers]) for ids, answers in zip(prompts, samples, strict=True)
    ]
    return groups, torch.tensor([r for row in reward_model.score_groups(groups) for r in row])


asked = lesson.examples(kind="prompts", limit=8)
groups, rewards = rollout(None, asked)
with_std, without = (answers.group_advantages(rewards, 8, scaled).view(-1, 8) for scaled in (True, False))
columns = (without.std(dim=1), with_std.std(dim=1), without.max(dim=1).values, with_std.max(dim=1).values)
Table(
    "GRPO gives every group the same spread, whether its answers differ much or little",
    ["prompt", "std of A, Dr. GRPO", "std of A, GRPO", "best A, Dr. GRPO", "best A, GRPO"],
    [
        [example.messages[-1]["content"], *numbers]
        for example, *numbers in zip(asked, *(column.tolist() for column in columns), strict=True)
    ],
)

# %% [markdown]
# ## Bias two: the length
#
# GRPO takes the mean over the tokens of an answer, so one *token* of an answer of length $|y|$ weighs $1/|y|$. Dr. GRPO
# divides every answer by the same constant $L$, the most tokens that an answer may have:
#
# $$\mathcal{L}_{\mathrm{GRPO}} = \frac1N\sum_i \frac{1}{|y_i|}\sum_t \left(\beta\,k_{3,t} - J_t\right)
# \qquad
# \mathcal{L}_{\mathrm{Dr}} = \frac1N\sum_i \frac{1}{L}\sum_t \left(\beta\,k_{3,t} - J_t\right)$$
#
# $J_t$ and $k_3$ are those of lesson 07: $J_t = \min(\rho_t A,\ \mathrm{clip}(\rho_t, 1-\epsilon, 1+\epsilon) A)$ and
# $k_3 = e^{-d} - 1 + d$ with $d = \log\pi - \log\pi_{\mathrm{ref}}$. The constant comes as `max_new_tokens`; the
# standard deviation is left out where the advantages are made, not here.
#
# **Before you write it:** two wrong answers, one of five tokens and one of forty. Which one does GRPO push down harder,
# token by token? What will the policy make of that?

# %% tags=["exercise"]
from solutions.answers import dr_grpo_loss

# %%
check("dr_grpo_loss", dr_grpo_loss)

# %% [markdown]
# GRPO needs no function of its own here: it is yours, with the answers' own length in the place of the constant.


# %%
def grpo_by_mine(logprobs, old, ref, advantages, mask, clip_eps, kl_coef, clip_eps_high=None):
    """GRPO: your loss for all answers of one length, that length as the divisor; then the mean over answers."""
    sizes, total = mask.sum(dim=1), 0.0
    for size in sizes.unique().tolist():
        rows = sizes == size
        given = (logprobs[rows], old[rows], ref[rows], advantages[rows], mask[rows], clip_eps, kl_coef)
        loss = dr_grpo_loss(*given, clip_eps_high, max_new_tokens=max(size, 1))
        total = total + loss * rows.sum() / len(mask)
    return total


def kl_by_mine(logprobs, ref, mask, estimator="k3"):
    """The mean KL per token, measured with the loss: no advantage, weight 1, all tokens as the constant."""
    if estimator == "k1":
        return (logprobs - ref)[mask].mean()
    zero, tokens = torch.zeros(len(mask), device=mask.device), int(mask.sum())
    loss = dr_grpo_loss(logprobs, logprobs, ref, zero, mask, 0.2, 1.0, max_new_tokens=tokens)
    return loss * len(mask)


exercises = {"group_advantages": group_advantages, "dr_grpo_loss": dr_grpo_loss}
lesson.use(**exercises)  # both pass their checks
exercises |= {"grpo_loss": grpo_by_mine, "approx_kl": kl_by_mine}
answers = lesson.use(unchecked=True, **exercises)
budget = lesson.budget.max_new_tokens


def push(lengths, worth, divisor=None):
    """How hard one token of each answer is pushed, by autograd through the loss; divisor None: GRPO."""
    lengths, worth = torch.tensor(lengths), torch.tensor(worth)
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    old = torch.full(mask.shape, -1.0)
    now = old.clone().requires_grad_()
    given = (now, old, old, worth, mask, 0.2, 0.0)
    loss = (
        answers.grpo_loss(*given) if divisor is None else answers.dr_grpo_loss(*given, max_new_tokens=divisor)
    )
    (slope,) = torch.autograd.grad(loss * len(lengths), now)
    return -slope[:, 0]


pushes = [push([5, 40], [-1.0, -1.0]).tolist(), push([5, 40], [-1.0, -1.0], budget).tolist()]
Table(
    "Two equally wrong answers: the push on one token",
    ["", "5 tokens", "40 tokens"],
    [
        [name, *(f"{value:.4f}" for value in row)]
        for name, row in zip(("GRPO", "Dr. GRPO"), pushes, strict=True)
    ],
)

# %% [markdown]
# Under GRPO the long wrong answer gets off with an eighth of the push. The same holds for right answers the other way
# round: a short right one is rewarded more per token than a long right one. So where an answer is going to be wrong, it
# pays to be wrong at length, and nothing in the reward says so.

# %%
lengths = list(range(2, budget + 1))
wrong = [-1.0] * len(lengths)
plot = lesson.plot(
    "length",
    "A long wrong answer gets off lightly under GRPO",
    "tokens of the answer",
    "push down on one token",
)
plot.axes.plot(lengths, -push(lengths, wrong), color="#D55E00", label="GRPO: 1 / its own length")
plot.axes.plot(
    lengths, -push(lengths, wrong, budget), color="#0072B2", label=f"Dr. GRPO: 1 / {budget}, for all"
)
plot.axes.set_ylim(bottom=0)
plot

# %% [markdown]
# ## What length does when the loss is biased
#
# Now let a policy act on it. This one is as simple as can be: two numbers, the chance to stop after each token of a
# right answer and that of a wrong one. Whether an answer is right is a coin flip that it cannot influence, and no reward
# depends on the length. So there is nothing to learn, and a good loss leaves both numbers alone. (Plain gradient
# descent; Dr. GRPO has eight times the step, because it divides by 48 for about 12 and has half the advantages.)
#
# **Predict:** what will GRPO do to the length of right answers, and of wrong ones?


# %%
def drift(loss_of, scaled, rate, steps=100):
    """Expected tokens of right and wrong answers after each step: (steps, 2), wrong first."""
    generator = torch.Generator().manual_seed(0)
    stop = torch.full((2,), -2.4, requires_grad=True)  # logits: both stop after twelve tokens on average
    optimizer, place, seen = torch.optim.SGD([stop], lr=rate), torch.arange(48), []
    for _ in range(steps):
        right = torch.randint(2, (512,), generator=generator)
        chance = stop.detach().sigmoid()
        drawn = torch.rand(512, generator=generator).clamp(min=1e-6).log() / torch.log1p(-chance[right])
        end = drawn.ceil().clamp(min=1)[:, None]
        mask = place < end
        now = torch.nn.functional.logsigmoid(torch.where(place == end - 1, 1, -1) * stop[right][:, None])
        worth = answers.group_advantages(right.float(), 8, scaled)
        optimizer.zero_grad()
        loss_of(now, now.detach(), now.detach(), worth, mask, 0.2, 0.0).backward()
        optimizer.step()
        seen.append((1 - (1 - chance) ** 48) / chance)
    return torch.stack(seen)


def dr_grpo_at_48(*given):
    """Dr. GRPO with a budget of 48 tokens."""
    return answers.dr_grpo_loss(*given, max_new_tokens=48)


plot = lesson.plot(
    "drift", "GRPO makes wrong answers long and right ones short, for no reward", "step", "expected tokens"
)
for name, loss_of, scaled, rate, colour in (
    ("GRPO", answers.grpo_loss, True, 0.5, "#D55E00"),
    ("Dr. GRPO", dr_grpo_at_48, False, 4.0, "#0072B2"),  # a divisor of 48 for 12, half the advantages,
):
    tokens = drift(loss_of, scaled, rate)
    plot.axes.plot(tokens[:, 0], color=colour, label=f"wrong answers, {name}")
    plot.axes.plot(tokens[:, 1], color=colour, linestyle="--", label=f"right answers, {name}")
plot.axes.set_ylim(bottom=0)
plot

# %% [markdown]
# Under Dr. GRPO both stay, but for the luck of the samples. Under GRPO they part: among wrong answers the short
# ones are pushed down hardest, so what is left is long; among right answers the short ones are pushed up hardest. People
# who see the answers of their policy grow during training like to call it thinking. Some of it is this division.
#
# ## The slip: the longest answer of the batch
#
# What constant? A batch is padded to its longest answer, so `mask.shape[1]` lies at hand, and many a code divides by
# that. Below, the push on one token of an answer of five tokens, in a batch of three. Nothing about it changes but the
# length of a neighbour, which has an advantage of zero.
#
# **Predict:** what should the neighbour change?

# %%
rows = []
for neighbour in (5, 20, 40):
    batch = [5, 12, neighbour], [-1.0, 1.0, 0.0]
    pushed = (push(*batch, max(batch[0]))[0].item(), push(*batch, budget)[0].item())
    rows.append([neighbour, *(f"{value:.4f}" for value in pushed)])
Table(
    "A neighbour that teaches nothing must change nothing",
    ["tokens of the neighbour", "divided by the longest", f"divided by the budget, {budget}"],
    rows,
)

# %% [markdown]
# A constant is known before the batch is. With the longest answer as the divisor, an update is small whenever somebody
# in it was long-winded, and the same rollout cut into other micro-batches gives another gradient. The value of the
# constant hardly matters, on the other hand: Adam divides it out again, and only the clip of the gradient norm sees it.
#
# ## Train
#
# Both from the base, with the same prompts, learning rate and number of steps. The KL term is inside the loss, so it is
# divided as the rest is.
#
# **Predict:** whose gradients are smaller, and by about what factor? Will that make its training slower?

# %%
how = {"reward_model": str(place), "on_tiny": {"max_steps": 18, "learning_rate": 1.5e-3}}
grpo = lesson.train("grpo", answers, **how)
dr = lesson.train("dr_grpo", answers, **how)
both = {"GRPO": grpo, "Dr. GRPO": dr}
lesson.curves(
    both, "grad_norm", "Dr. GRPO's gradients are smaller: its divisor exceeds every length", "gradient norm"
)

# %%
lesson.curves(
    both,
    "reward",
    "The two learn at the same pace: Adam does not mind the size",
    "mean reward of the samples",
)

# %%
lesson.curves(both, "kl", "Both leave the base, slowly", "KL per token, nats")

# %%
lesson.curves(
    both, "tokens", "Lengths follow the prompts of each step, in both alike", "mean tokens of the samples"
)

# %% [markdown]
# ## How long are right and wrong answers?
#
# The mean length mixes two things. So let each policy answer held-out prompts eight times each, and part the answers
# by your own advantages: above their siblings' mean, and below.
#
# **Predict:** after so few steps, do you expect what you saw in the little policy above?

# %%
held_out = lesson.held_out("prompts", 24)
rows = []
for name, policy in {"base": None, **both}.items():
    written, scores = rollout(policy, held_out)
    sizes = torch.tensor([float(len(ids)) for group in written for ids in group.responses])
    worth = answers.group_advantages(scores, 8, scale_by_std=False)
    rows.append([name, *(sizes[part].mean().item() for part in (worth > 0, worth < 0)), scores.mean().item()])
Table(
    "Lengths of better and worse answers after training, eight answers to each of 24 prompts",
    ["policy", "tokens, better half", "tokens, worse half", "mean reward"],
    rows,
)

# %% [markdown]
# On `tiny` the worse answers end up about a token longer than the better ones, under both policies alike. The bias is
# real, but small against what the reward says: so few steps do not show it, the thousands of a reasoning run do. What
# decides about such a correction is an argument or an experiment like the one above, not one short run.

# %%
lesson.show({"base": None, **both}, "After: no help with harm any more; what else has changed?")

# %%
lesson.evaluate({"base": None, **both})

# %% [markdown]
# ## A broken run: a reward model that speaks softly
#
# What did the standard deviation do besides harm? It made GRPO deaf to the *scale* of the rewards. Suppose the same
# reward model gave numbers two hundred times smaller: the same order, the same ratio of differences. For GRPO nothing
# changes, as lesson 07 showed. For Dr. GRPO every advantage is two hundred times smaller.
#
# **Predict:** Adam divides out the size of the gradient, so will this run be the same as before? What is in the loss
# that did not get smaller?


# %%
def softly(rewards, group_size, scale_by_std=True, eps=1e-4):
    """The advantages of a reward model with a two-hundredth of the scale."""
    return group_advantages(rewards / 200, group_size, scale_by_std, eps)


soft = lesson.train(
    "dr_grpo", lesson.use(unchecked=True, **{**exercises, "group_advantages": softly}), name="softly", **how
)
pair = {"Dr. GRPO": dr, "rewards / 200": soft}
lesson.curves(pair, "kl", "The policy never gets away from the base", "KL per token, nats")

# %%
lesson.curves(pair, "reward", "Nothing breaks, nothing is learned", "mean reward of the samples")

# %%
lesson.show({"base": None, **pair}, "The leash holds: harm is still obeyed")

# %%
lesson.evaluate({"base": None, **both, "rewards / 200": soft})

# %% [markdown]
# The KL term is what did not get smaller. Beside such small advantages its weight of 0.02 is a short chain: as soon as
# the policy moves, the way back to the base pulls harder than the reward. No column of metrics.csv is alarming, the
# loss is near zero as it is in any healthy run, and on `tiny` the win rate is even above one half: some manners were
# cheap enough. But every harmful request is obeyed and every invented name believed, as at the start. Without the
# division by the standard deviation, `kl_coef` and the scale of the rewards are one setting, and must be chosen
# together.
#
# ## The same in TRL
#
# Two settings of `GRPOTrainer`, one for each division: `loss_type="dr_grpo"` divides by `max_completion_length`, and
# `scale_rewards=False` leaves out the standard deviation. The second does not follow from the first: with
# `loss_type="dr_grpo"` alone TRL still divides, as its default is "group".

# %%
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer


def score(prompts, completion_ids, **_):
    """The same reward model, on the very tokens that were sampled."""
    encode = lesson.encoder.encode_prompt
    groups = [Group(encode(p), [list(ids)]) for p, ids in zip(prompts, completion_ids, strict=True)]
    return [group[0] for group in reward_model.score_groups(groups)]


settings = GRPOConfig(
    output_dir=str(lesson.path / "trl"),
    loss_type="dr_grpo",
    scale_rewards=False,
    beta=0.02,
    epsilon=0.2,
    num_generations=8,
    per_device_train_batch_size=32,
    steps_per_generation=2,
    max_completion_length=budget,
    temperature=1.0,
    learning_rate=1.5e-3,
    lr_scheduler_type="constant",
    max_steps=10,
    logging_steps=2,
    gradient_checkpointing=False,
    bf16=False,
    report_to="none",
    save_strategy="no",
    disable_tqdm=True,
    dataloader_pin_memory=False,
)
trainer = GRPOTrainer(
    model=lesson.fresh_base(),
    reward_funcs=score,
    args=settings,
    train_dataset=lesson.conversations(lesson.examples(kind="prompts", limit=64)),
    processing_class=lesson.tokenizer,
    peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
)
lesson.losses_of(trainer)
theirs = [row["kl"] for row in trainer.state.log_history if "kl" in row]
ours = lesson.metrics(dr)["kl"]
plot = lesson.plot(
    "trl",
    "TRL's policy leaves the base as well, and sooner",
    "rollouts of 8 × 8 answers",
    "KL per token, nats",
)
plot.line(ours.steps[: len(theirs)], ours.values[: len(theirs)], "this course")
plot.line(range(1, len(theirs) + 1), theirs, "TRL")

# %% [markdown]
# TRL takes the KL during the updates of a rollout, this course before them, and prompts, samples and first weights of the
# adapter are others. On equal tensors the two losses agree, which is one of the course's tests.
#
# ## Questions
#
# 1. By what factor do the first gradient norms of the two runs differ? Compare it with the budget divided by
#    the mean number of tokens in that step. What else makes them differ?
# 2. How long were the wrong answers of the little policy after a hundred steps of GRPO, and what would a person say who
#    sees only that curve?
# 3. Which `kl_coef` would have given the run with soft rewards the loss of the good run, up to a constant?
#
# ## To read
#
# - Liu et al., *Understanding R1-Zero-Like Training: A Critical Perspective* (2025),
#   [arXiv 2503.20783](https://arxiv.org/abs/2503.20783): section 3 has both biases and the correction.
# - Shao et al., *DeepSeekMath* (2024), [arXiv 2402.03300](https://arxiv.org/abs/2402.03300): the two divisions, eq. 3
#   and section 4.1.

# %%
lesson.finish()
