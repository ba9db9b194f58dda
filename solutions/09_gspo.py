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
# # 09 · GSPO: one ratio for one answer
#
# The reward judges a whole answer, but GRPO (lesson 07) corrects and clips token by token. GSPO gives every answer one
# ratio, clips it as a whole, and so all tokens of an answer are learned from alike, or none. The change is one line.
# What it does to the ratios, and so to the clip, is the lesson.
#
# | profile | minutes | memory |
# |---|---|---|
# | `tiny`, two CPU cores | 1 (measured) | 1 GiB |
# | `colab`, one T4 | not measured | not measured |

# %% tags=["setup"]

# %%
import numpy as np
import torch
from peft import LoraConfig, get_peft_model

from helpers.course.checks import check
from helpers.course.lesson import Lesson
from helpers.course.lesson_display import Table
from helpers.models.policy import response_logprobs
from helpers.text.groups import Group

lesson = Lesson("09_gspo")

# %% [markdown]
# ## Before
#
# The same base model and the same twelve prompts as ever.

# %%
lesson.show({"base": None}, "Before: the base model, answers tinted from bad (orange) to good (green)")

# %% [markdown]
# ## Three ratios
#
# A batch of answers was sampled by $\pi_{\mathrm{old}}$; after the first update it no longer comes from $\pi$. What
# corrects for that is the ratio of the two probabilities. Of a whole answer that is a product:
#
# $$\frac{\pi(y)}{\pi_{\mathrm{old}}(y)} = \prod_t \rho_t, \qquad \rho_t = \frac{\pi(y_t)}{\pi_{\mathrm{old}}(y_t)}$$
#
# It is the right one, and useless: its logarithm is a *sum* over the tokens, which wanders off as the answer gets
# longer, and its exponential explodes or dies. GRPO therefore leaves the product out and weighs every token by its own
# $\rho_t$. That is one sample for each ratio, so it corrects nothing on average; it adds noise, more with every token.
#
# GSPO takes the *mean* of the logarithms in the place of the sum:
#
# $$s = \Big(\prod_t \rho_t\Big)^{1/|y|} = \exp\Big(\frac{1}{|y|}\sum_t \log\rho_t\Big)$$
#
# Suppose the log-ratio of every token is off by 0.2 or so, at random, and see what becomes of answers of 1 to 200
# tokens.
#
# **Predict:** which way does each of the two go with the length?

# %%
noise = 0.2 * torch.randn(2000, 200, generator=torch.Generator().manual_seed(0))
total, tokens = noise.cumsum(dim=1), torch.arange(1, 201)
plot = lesson.plot(
    "product",
    "The product runs away, the mean comes to rest",
    "tokens of the answer",
    "ratio, 90 of 100 answers",
)
for values, name, colour in (
    (total, "product of the token ratios", "#D55E00"),
    (total / tokens, "GSPO: exp of the mean", "#0072B2"),
):
    low, high = values.quantile(0.05, dim=0).exp(), values.quantile(0.95, dim=0).exp()
    plot.axes.fill_between(tokens, low, high, color=colour, alpha=0.35, label=name)
    plot.axes.plot(tokens, high, color=colour)
    plot.axes.plot(tokens, low, color=colour)
plot.axes.set_yscale("log")
plot

# %% [markdown]
# A sum of $T$ such numbers spreads as $\sqrt T$, a mean as $1/\sqrt T$. So $s$ stays close to 1 and can be compared
# between short answers and long ones. It is no longer the importance weight of an answer, but its $|y|$-th root.
#
# ## The advantages
#
# They are GRPO's, standard deviation and all. The function is that of lesson 07: copy yours, or write it again.

# %% tags=["exercise"]
from solutions.answers import group_advantages

# %%
check("group_advantages", group_advantages)

# %% [markdown]
# ## The loss
#
# One ratio and one advantage an answer, one minimum, and a mean over answers. The KL term is GRPO's, averaged over the
# tokens of an answer; the paper leaves it out, and `kl_coef` 0 does so here.
#
# $$\mathcal{L} = \frac1N\sum_i \Big(\beta\,\overline{k_3}_{,i}
# - \min\big(s_i A_i,\; \mathrm{clip}(s_i, 1-\epsilon, 1+\epsilon')\,A_i\big)\Big)$$
#
# Two traps: the mean runs over the tokens of the answer only, not over padding. And $s$ is a vector of $N$ numbers, as
# the advantages are: look at shapes before you multiply.
#
# **Before you write it:** which tokens of an answer get a gradient where its $s$ is clipped? Which ones in GRPO?

# %% tags=["exercise"]
from solutions.answers import gspo_loss

# %%
check("gspo_loss", gspo_loss)

# %% [markdown]
# ## GRPO is GSPO that takes every token for an answer
#
# Your function gives GRPO's loss as well: each token of an answer as an answer of its own, then the mean over them.


# %%
def grpo_by_mine(logprobs, old, ref, advantages, mask, clip_eps, kl_coef, clip_eps_high=None):
    """GRPO: a loss for each answer, over its tokens as so many answers of one token."""
    losses = []
    for row in range(len(mask)):
        now, then, base = (values[row][mask[row]][:, None] for values in (logprobs, old, ref))
        given = (now, then, base, advantages[row].expand(len(now)), torch.ones_like(now, dtype=torch.bool))
        losses.append(gspo_loss(*given, clip_eps, kl_coef, clip_eps_high))
    return torch.stack(losses).mean()


def kl_by_mine(logprobs, ref, mask, estimator="k3"):
    """The mean KL per token of one row, measured with the loss: no advantage, weight 1."""
    if estimator == "k1":
        return (logprobs - ref)[mask].mean()
    return gspo_loss(logprobs, logprobs, ref, torch.zeros(len(mask), device=mask.device), mask, 0.2, 1.0)


exercises = {"group_advantages": group_advantages, "gspo_loss": gspo_loss}
lesson.use(**exercises)  # both pass their checks
exercises |= {"grpo_loss": grpo_by_mine, "approx_kl": kl_by_mine}
answers = lesson.use(unchecked=True, **exercises)

# %% [markdown]
# ## Ratios of real answers
#
# Eight prompts, eight answers to each, scored by the reward model. Then one update by hand with your loss, and the
# batch is seen a second time: now its ratios are no longer 1.

# %%
place = lesson.bundled("reward")
reward_model = lesson.reward_model(place)
asked = lesson.examples(kind="prompts", limit=8)
samples = lesson.sample(None, asked, k=8, temperature=1.0)
groups = [
    Group(lesson.encoder.encode_prompt(example.messages), [answer.ids for answer in written])
    for example, written in zip(asked, samples, strict=True)
]
rewards = torch.tensor([reward for row in reward_model.score_groups(groups) for reward in row])
advantages = answers.group_advantages(rewards, 8)

torch.manual_seed(0)
adapter = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
policy = get_peft_model(lesson.fresh_base(), adapter).eval()
optimizer = torch.optim.AdamW(policy.parameters(), lr=1.5e-3 if lesson.profile.name == "tiny" else 1e-5)
batch = lesson.batch(groups)
mask = batch.mask.cpu()
first = response_logprobs(policy, batch).logprobs.cpu()
old = first.detach()
loss = answers.gspo_loss(first, old, old, advantages, mask, 0.2, 0.0)
loss.backward()
optimizer.step()
with torch.no_grad():
    now = response_logprobs(policy, batch).logprobs.cpu()

sizes = mask.sum(dim=1)
token_ratio = (now - old)[mask].exp()
summed = torch.where(mask, now - old, 0.0).sum(dim=1)
whole, ratio = summed.exp(), (summed / sizes).exp()
low, middle, high = zip(
    *(r.quantile(torch.tensor([0.05, 0.5, 0.95])).tolist() for r in (token_ratio, whole, ratio)), strict=True
)
names = ("one a token (GRPO)", "product over the answer", "mean, exp (GSPO)")
Table(
    "Ratios of the second epoch, after a single update",
    ["ratio", "5 of 100 are below", "median", "5 of 100 are above"],
    list(zip(names, low, middle, high, strict=True)),
)

# %% [markdown]
# Most tokens have a ratio of almost exactly 1, because the model is certain of them: after "New" comes "York" whatever
# the update. A few move a lot, and the more of them an answer has, the wilder their product.

# %%
bins = np.geomspace(1 / 3, 3, 56)
plot = lesson.plot(
    "histogram",
    "After one update: products spread wide, GSPO's ratios keep near 1",
    "ratio in the second epoch",
    "share, log scale",
)
for values, name, colour in (
    (whole, "product over the answer", "#D55E00"),
    (token_ratio, "token (GRPO)", "#8A8A8A"),
    (ratio, "answer (GSPO)", "#0072B2"),
):
    weights = np.full(len(values), 1 / len(values))
    inside = values.clamp(bins[0] * 1.001, bins[-1] * 0.999)
    plot.axes.hist(inside, bins, weights=weights, color=colour, histtype="step", linewidth=1.6, label=name)
plot.axes.set_yscale("log")
plot.axes.set_xscale("log")
plot.axes.set_xticks([0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0], ["0.4", "0.6", "0.8", "1", "1.5", "2", "3"])
plot.axes.minorticks_off()
plot

# %% [markdown]
# ## How wide should the clip be?
#
# An update counts as clipped where the ratio has left $1 \pm \epsilon$ in the direction its advantage asked for. GRPO's
# $\epsilon$ is 0.2. The paper gives GSPO 0.0003 below and 0.0004 above, some five hundred times less.
#
# **Predict:** with the same $\epsilon$, which of the two methods clips more?


# %%
def clipped(ratios, worth, width):
    """The share of ratios that are out of bounds and get no gradient."""
    return (((ratios > 1 + width) & (worth > 0)) | ((ratios < 1 - width) & (worth < 0))).float().mean().item()


widths = np.geomspace(1e-4, 0.5, 60)
of_tokens = advantages[:, None].expand_as(mask)[mask]
plot = lesson.plot("widths", "One ε means two different things", "clip ε", "share that is clipped")
plot.axes.plot(
    widths, [clipped(token_ratio, of_tokens, w) for w in widths], color="#8A8A8A", label="tokens (GRPO)"
)
plot.axes.plot(
    widths, [clipped(ratio, advantages, w) for w in widths], color="#0072B2", label="answers (GSPO)"
)
plot.axes.set_xscale("log")
for width, name in ((0.2, "GRPO's 0.2"), (3.5e-4, "the paper's 0.0003")):
    plot.axes.axvline(width, color="#222222", linestyle="--", linewidth=1)
    plot.axes.text(width * 1.08, 0.6, name, rotation=90, fontsize=7.5, va="center", ha="left")
plot.axes.set_ylim(0, 1.02)
plot

# %% [markdown]
# With one $\epsilon$ for both, GSPO clips more answers than GRPO tokens wherever $\epsilon$ is small: most tokens have
# not moved at all, but hardly an answer has no token that moved. At 0.2 nearly every answer passes, and the clip does
# nothing. With the paper's values more than eight of ten answers are clipped here, after a single update of the `tiny` model,
# whose learning rate is more than a hundred times that of a large one. So the width of the clip belongs to the size of
# your updates: take it from such a histogram, not from a paper, and not from GRPO.
#
# ## Clipped as a whole
#
# A clipped answer gets no gradient, in none of its tokens. Below, the gradient of your loss by the tokens of each
# answer, with a clip of 0.02, on the eight answers to one prompt.

# %%
again = now.clone().requires_grad_()
(slope,) = torch.autograd.grad(answers.gspo_loss(again, old, old, advantages, mask, 0.02, 0.0), again)
(by_token,) = torch.autograd.grad(answers.grpo_loss(again, old, old, advantages, mask, 0.02, 0.0), again)
reached = [(value != 0).sum(dim=1) for value in (slope, by_token)]
silent = (reached[0] == 0).view(-1, 8).sum(dim=1)
shown = slice(
    8 * int(silent.argmax()), 8 * int(silent.argmax()) + 8
)  # the prompt with the most clipped answers
columns = (advantages, ratio, sizes, *reached)
rows = [list(row) for row in zip(*(column[shown].tolist() for column in columns), strict=True)]
Table(
    "Tokens that get a gradient: all or none in GSPO, some in GRPO",
    ["A", "s", "tokens", "reached by GSPO", "reached by GRPO"],
    [[a, f"{s:.3f}", *counts] for a, s, *counts in rows],
)

# %% [markdown]
# Within an answer that is not clipped, GSPO pushes every token equally hard. GRPO pushes each by its own ratio, and
# skips those that happen to have moved.
#
# And where an answer has one token, there is nothing to average. Cut all answers to their first few tokens and compare
# the two losses:

# %%
rows = []
for kept in (1, 2, 5, mask.shape[1]):
    short = mask & (torch.arange(mask.shape[1]) < kept)
    given = (now, old, old, advantages, short, 0.02, 0.0)
    rows.append([kept, *(f"{loss(*given).item():.6f}" for loss in (answers.gspo_loss, answers.grpo_loss))])
Table("With one token the two are the same loss", ["tokens kept", "GSPO", "GRPO"], rows)

# %% [markdown]
# ## Train
#
# Two passes over every rollout, so that there is something to correct, and three clips: GRPO's 0.2, the paper's, and
# one in between. The runs are otherwise the same.
#
# **Predict:** which share of the answers will each of the three clip? What do you expect of a run in which most answers
# are clipped?

# %%
how = {"reward_model": str(place), "num_epochs": 2, "on_tiny": {"max_steps": 13, "learning_rate": 1.5e-3}}
run = lesson.train("gspo", answers, name="clip_0.02", clip_eps=0.02, **how)
wide = lesson.train("gspo", answers, name="clip_0.2", clip_eps=0.2, **how)
paper = lesson.train("gspo", answers, name="clip_paper", clip_eps=3e-4, clip_eps_high=4e-4, **how)
three = {"clip 0.02": run, "clip 0.2": wide, "clip 0.0003/0.0004": paper}
lesson.curves(
    three,
    "clip_fraction",
    "0.2 hardly ever clips; the paper's width often does",
    "share of answers clipped",
)

# %%
lesson.curves(three, "reward", "With the narrow clip learning is slower", "mean reward of the samples")

# %%
lesson.curves(three, "kl", "The narrow clip keeps the policy near the base", "KL per token, nats")

# %%
metrics = lesson.metrics(run)
plot = lesson.plot(
    "extremes", "The wildest ratios of each step: tokens far out, answers less", "step", "ratio"
)
for prefix, name, colour in (("token_ratio", "token", "#8A8A8A"), ("ratio", "answer", "#0072B2")):
    for end in ("min", "max"):
        series = metrics[f"{prefix}_{end}"]
        plot.line(series.steps, series.values, name if end == "max" else None, color=colour)
plot.axes.set_yscale("log")
plot

# %% [markdown]
# The paper reports the opposite of what the reward curve says here: its GSPO clipped a hundred times more tokens than
# GRPO and learned faster, a sign, it says, that single tokens are too noisy to choose by. Here a step has 64 answers
# and makes four large updates. Under a clip that narrow most answers are spent after the first.

# %%
lesson.show({"base": None, "GSPO": run}, "After GSPO")

# %%
lesson.evaluate({"base": None, **three})

# %% [markdown]
# ## A broken run: everybody's ratio with everybody's advantage
#
# Ratios of shape (N,) times advantages of shape (N, 1) make a table of N × N: every ratio meets every advantage. PyTorch
# broadcasts without a word, and the mean at the end hides the shape.
#
# **Predict:** advantages sum to zero within every group. What is the mean of that table while nothing is clipped? What
# is its gradient?


# %%
def crossed(logprobs, old, ref, advantages, mask, clip_eps, kl_coef, clip_eps_high=None):
    """GSPO with one axis too many, by calling your loss on every pairing of a ratio and an advantage."""
    count = len(mask)
    losses = [
        gspo_loss(logprobs, old, ref, advantages.roll(shift), mask, clip_eps, kl_coef, clip_eps_high)
        for shift in range(count)
    ]
    return torch.stack(losses).mean()


broken = lesson.train(
    "gspo",
    lesson.use(unchecked=True, **{**exercises, "gspo_loss": crossed}),
    name="crossed",
    clip_eps=0.02,
    **how,
)
both = {"GSPO": run, "crossed": broken}
lesson.curves(both, "loss", "A loss of almost zero looks healthy in this course", "loss")

# %%
lesson.curves(
    both, "reward", "The reward follows the prompts, not the training", "mean reward of the samples"
)

# %%
lesson.curves(both, "grad_norm", "The gradient tells: there is none, but for clip and leash", "gradient norm")

# %%
lesson.evaluate({"base": None, **both})

# %% [markdown]
# The mean of the table is the mean ratio times the mean advantage, and the latter is zero. What is left is a trickle
# where the clip makes the table uneven, and the KL term. A healthy run has a loss near zero as well, and the reward goes
# up and down with the prompts of each step. So look at the gradient norm, at a reward curve beside that of another
# run, at samples; or print the shape before the mean.
#
# ## The same in TRL
#
# `importance_sampling_level="sequence"` makes the ratio that of the answer, and `num_iterations=2` is the second pass.
# Set `loss_type="grpo"` with it: the default, "dapo", sums over tokens, so that a long answer has more votes than a short
# one (TRL warns of it in its log).

# %%
from trl import GRPOConfig, GRPOTrainer


def score(prompts, completion_ids, **_):
    """The same reward model, on the very tokens that were sampled."""
    encode = lesson.encoder.encode_prompt
    asked = [Group(encode(p), [list(ids)]) for p, ids in zip(prompts, completion_ids, strict=True)]
    return [group[0] for group in reward_model.score_groups(asked)]


settings = GRPOConfig(
    output_dir=str(lesson.path / "trl"),
    importance_sampling_level="sequence",
    loss_type="grpo",
    beta=0.02,
    epsilon=0.02,
    num_generations=8,
    per_device_train_batch_size=32,
    steps_per_generation=2,
    num_iterations=2,
    max_completion_length=lesson.budget.max_new_tokens,
    temperature=1.0,
    learning_rate=1.5e-3,
    lr_scheduler_type="constant",
    max_steps=12,
    logging_steps=4,
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
theirs = [
    row["clip_ratio/region_mean"] for row in trainer.state.log_history if "clip_ratio/region_mean" in row
]
ours = lesson.metrics(run)["clip_fraction"]
plot = lesson.plot(
    "trl",
    "TRL clips more at first: its own prompts, samples and first weights",
    "rollouts of 8 × 8 answers",
    "share of answers clipped",
)
plot.line(ours.steps[: len(theirs)], ours.values[: len(theirs)], "this course")
plot.line(range(1, len(theirs) + 1), theirs, "TRL")
plot

# %% [markdown]
# ## Questions
#
# 1. In the table of clipped answers: which signs of $A$ and $s - 1$ do the answers have that get no gradient?
# 2. From the curve of clipped shares, which $\epsilon$ would clip a tenth of the answers? How close is that to what the
#    run with 0.02 clipped?
# 3. Which columns of metrics.csv tell the broken run from the good one, and from which step on?
#
# ## To read
#
# - Zheng et al., *Group Sequence Policy Optimization* (2025),
#   [arXiv 2507.18071](https://arxiv.org/abs/2507.18071): eq. 5 and 7, and section 5 for the clip.
# - Shao et al., *DeepSeekMath* (2024), [arXiv 2402.03300](https://arxiv.org/abs/2402.03300): GRPO, whose token ratio this
#   replaces.

# %%
lesson.finish()
