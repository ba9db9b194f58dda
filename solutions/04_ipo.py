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
# # 04 · IPO: preferences that are too certain
#
# DPO believes every pair without limit: it is never satisfied, and pushes the two answers of a pair apart for as long
# as you let it. IPO says how far apart is enough. The loss is one line; the point of the lesson is to see the
# difference on pairs that are seen again and again.
#
# | profile | minutes | memory |
# |---|---|---|
# | `tiny`, two CPU cores | 1 (measured) | 1 GiB |
# | `colab`, one T4 | not measured | as lesson 03 |

# %% tags=["setup"]

# %%
import torch
import torch.nn.functional as F

from helpers.course.checks import check
from helpers.course.lesson import Lesson

lesson = Lesson("04_ipo")

# %% [markdown]
# ## What DPO asks for
#
# Write $h$ for the log-ratio difference of a pair, winner $y_w$ against loser $y_l$ of a prompt $x$, all four numbers summed
# over the tokens of an answer:
#
# $$h = \log\frac{\pi(y_w|x)}{\pi_{\mathrm{ref}}(y_w|x)} - \log\frac{\pi(y_l|x)}{\pi_{\mathrm{ref}}(y_l|x)}$$
#
# DPO minimises $-\log\sigma(\beta h)$. It rests on Bradley and Terry: if A beats B with probability $p$, the
# reward gap is $\log\frac{p}{1-p}$. A pair that was judged once was won with probability 1, as far as the data says,
# and $\log\frac{1}{0}$ is infinite. So the best $h$ for the data is infinite too, **whatever $\beta$ is**: the pull
# towards the reference has gone.
#
# IPO replaces the logarithm of the odds by the probability itself, which is bounded. Its optimum can then be written as
# a regression, with a finite target:
#
# $$\mathcal{L}_{\mathrm{IPO}} = \Big(h - \frac{1}{2\beta}\Big)^2$$
#
# The gap may grow to $1/(2\beta)$ nats, and is pulled back beyond. Now $\beta$ means something also for a pair that
# is certain.
#
# **Before you write it:** what is the loss while policy and reference are equal? What does it depend on?

# %% tags=["exercise"]
from solutions.answers import ipo_loss

# %%
check("ipo_loss", ipo_loss)

# %%
answers = lesson.use(ipo_loss=ipo_loss)
zero = torch.zeros(4)
for beta in (0.05, 0.1, 0.5):
    print(
        f"β = {beta}: first loss {answers.ipo_loss(zero, zero, zero, zero, beta).item():.1f}, target gap {0.5 / beta:.1f} nats"
    )

# %% [markdown]
# Both losses as functions of the gap. Your function draws the one, PyTorch the other.

# %%
gap = torch.linspace(-5, 30, 141)
still = torch.zeros(1)
one_by_one = [answers.ipo_loss(h.view(1), still, still, still, 0.05).item() for h in gap]
plot = lesson.plot(
    "shapes", "DPO keeps pulling, IPO has a place to stop", "gap h, nats", "loss, scaled to 1 at h = 0"
)
plot.axes.plot(gap, -F.logsigmoid(0.05 * gap) / 0.6931, label="DPO, β = 0.05")
plot.axes.plot(gap, torch.tensor(one_by_one) / 100.0, label="IPO, β = 0.05: stops at 10 nats")
plot

# %% [markdown]
# ## A few pairs, many times
#
# Thirty-two pairs, seen forty times, are enough to see it. Both runs have the same data, steps and learning rate.
#
# **Predict:** what will the mean gap do in the DPO run after every pair is ranked right? And in the IPO run?


# %%
def dpo_for_comparison(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """DPO, from PyTorch's own parts."""
    return F.softplus(-beta * ((policy_chosen - policy_rejected) - (ref_chosen - ref_rejected))).mean()


few = {
    "train_limit": 32,
    "per_device_train_batch_size": 32,
    "gradient_accumulation_steps": 1,
    "num_train_epochs": 40.0,
    "learning_rate": 2e-3,
    "lr_scheduler_type": "constant",
    "beta": 0.05,
    "logging_steps": 1,
    "eval_steps": 20,
    "eval_limit": 64,
}
dpo = lesson.train("dpo", lesson.use(unchecked=True, dpo_loss=dpo_for_comparison), name="dpo_few", **few)
ipo = lesson.train("ipo", answers, name="ipo_few", **few)

# %%
plot = lesson.plot("gaps", "The gap of the thirty-two pairs in the two runs", "step", "mean gap h, nats")
for label, run in (("DPO", dpo), ("IPO", ipo)):
    margin = lesson.metrics(run)["margin"]
    plot.line(margin.steps, margin.values / 0.05, label)
plot.mark(10.0, "1/(2β) = 10")

# %% [markdown]
# What does the pull cost? The log-probability of the *chosen* answers is a good thermometer: nobody asked for it to
# fall.

# %%
plot = lesson.plot(
    "chosen", "What happens to the chosen answers themselves", "step", "mean log-ratio of chosen, nats"
)
for label, run in (("DPO", dpo), ("IPO", ipo)):
    chosen = lesson.metrics(run)["reward_chosen"]
    plot.line(chosen.steps, chosen.values / 0.05, label)
plot.mark(0.0, "the reference")

# %%
lesson.show({"base": None, "DPO, 40 times": dpo, "IPO, 40 times": ipo}, "Thirty-two pairs, learned by heart")

# %%
lesson.evaluate({"base": None, "DPO, 40 times": dpo, "IPO, 40 times": ipo})

# %% [markdown]
# ## Train on all pairs
#
# With many different pairs and one pass, over-fitting has no time to show.

# %%
run = lesson.train("ipo", answers, on_tiny={"train_limit": 2000, "num_train_epochs": 1.0, "logging_steps": 1})
lesson.curves({"IPO": run}, "loss", "The loss starts at (1/(2β))² and falls", "loss")

# %%
lesson.show({"base": None, "IPO": run}, "After IPO")

# %%
lesson.evaluate({"base": None, "IPO": run})

# %% [markdown]
# The broken run of this lesson was the DPO run over thirty-two pairs. By its loss it was the best run you ever had:

# %%
print(f"last loss of DPO, 40 times: {lesson.metrics(dpo)['loss'].values[-1]:.4f}")
print("IPO on all pairs was trained with", lesson.settings(run, "beta", "learning_rate", "num_train_epochs"))
lengths = [
    len(response) for group in lesson.groups(lesson.examples(limit=500)) for response in group.responses
]
print(f"mean length of an answer in the pairs: {sum(lengths) / len(lengths):.1f} tokens")

# %% [markdown]
#
# ## The sum and the mean
#
# Some libraries feed IPO the *mean* log-probability per token, TRL among them. That is a method of its own, with a
# $\beta$ of its own: $h$ is then smaller by about the length of an answer, and $1/(2\beta)$ is as far away as ever.
# With the $\beta$ of the paper's form the loss asks every *token* to move as far as a whole answer should.
#
# **Predict:** how far will this loss fall in the same number of steps?

# %%
averaged = lesson.train(
    "ipo",
    answers,
    name="averaged",
    length_average=True,
    on_tiny={"train_limit": 2000, "num_train_epochs": 1.0, "logging_steps": 1},
)
lesson.curves(
    {"sum, as in the paper": run, "mean, same β": averaged},
    "loss",
    "With the same β the averaged form hardly leaves its start",
    "loss",
    key="loss_both",
)

# %%
lesson.evaluate({"base": None, "IPO": run, "mean, same β": averaged})

# %%
lesson.show({"IPO": run, "mean, same β": averaged}, "The two forms with the same β")

# %% [markdown]
# Neither form is wrong. To carry a $\beta$ from one to the other without a word is: the run looks stuck, and all that
# holds it back from a target it could reach only by ruin is the number of steps.
#
# ## The same in TRL
#
# `loss_type="ipo"` is the averaged form, so its $\beta$ must be larger. Its first loss is $(1/(2\beta))^2$ as well.

# %%
from peft import LoraConfig
from trl import DPOConfig, DPOTrainer

settings = DPOConfig(
    output_dir=str(lesson.path / "trl"),
    loss_type="ipo",
    beta=1.0,
    learning_rate=2e-3,
    per_device_train_batch_size=32,
    max_steps=20,
    logging_steps=1,
    gradient_checkpointing=False,
    bf16=False,
    report_to="none",
    save_strategy="no",
    dataloader_pin_memory=False,
)
trainer = DPOTrainer(
    model=lesson.fresh_base(),
    args=settings,
    train_dataset=lesson.conversations(lesson.examples(limit=640)),
    processing_class=lesson.tokenizer,
    peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
)
losses = lesson.losses_of(trainer)
plot = lesson.plot("trl", "TRL's averaged IPO: first loss (1/(2·1))² = 0.25", "step", "loss")
plot.line(range(1, len(losses) + 1), losses, "TRL").mark(0.25, "(1/(2β))²")

# %% [markdown]
# ## Questions
#
# 1. Where did the mean gap of the DPO run end, and was it still rising?
# 2. Did the chosen answers gain or lose probability in the two runs over thirty-two pairs?
# 3. What $\beta$ would you give the averaged form to ask for about the same as the paper's form, given the mean length of
#    an answer that was printed?
#
# ## To read
#
# - Azar et al., *A General Theoretical Paradigm to Understand Learning from Human Preferences* (2023),
#   [arXiv 2310.12036](https://arxiv.org/abs/2310.12036): section 4.2 for why DPO over-fits, eq. 17 for the loss.

# %%
lesson.finish()
