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
# # 03 · Direct preference optimisation
#
# A reward model turns "A is better than B" into a number, and reinforcement learning climbs it. DPO takes a short
# cut: the best policy for a reward can be written down, so the reward can be written in terms of the policy, and the
# preferences train the policy itself. You will write its loss, train with it, and see what the reference does in it.
#
# | profile | minutes | memory |
# |---|---|---|
# | `tiny`, two CPU cores | 1 (measured) | 1 GiB |
# | `colab`, one T4 | not measured; some 60 at the full 5,000 pairs | 12 GB of GPU memory, an estimate |

# %% tags=["setup"]

# %%
import torch
import torch.nn.functional as F

from helpers.course.checks import check
from helpers.course.lesson import Lesson
from helpers.models.policy import response_logprobs

lesson = Lesson("03_dpo")

# %% [markdown]
# ## What the data is
#
# One prompt, two answers, and somebody's word that the first is better. Nobody says by how much, or why.

# %%
pairs = lesson.examples(kind="preference", limit=2000)
pair = pairs[3]
print("prompt:  ", pair.messages[-1]["content"])
print("chosen:  ", pair.responses[0])
print("rejected:", pair.responses[1])

# %% [markdown]
# These twelve prompts go through the whole course. Keep an eye on the harmful request and on the place that was made
# up (Hisdale, on `tiny`): the base model obeys the one and finds a country for the other.

# %%
lesson.show({"base": None}, "Before: the base model, answers tinted from bad (orange) to good (green)")

# %% [markdown]
# ## From a reward to a loss
#
# The *policy* $\pi$ is the model being trained: for a prompt $x$ it draws an answer $y$. RLHF looks for the policy with
# high reward $r(x, y)$ that stays near a *reference* $\pi_{\mathrm{ref}}$, here the base:
#
# $$\max_\pi \; \mathbb{E}_{y\sim\pi}\left[r(x,y)\right] - \beta\,\mathrm{KL}\!\left(\pi \,\|\, \pi_{\mathrm{ref}}\right)$$
#
# KL, the Kullback–Leibler divergence, is the mean of $\log\frac{\pi}{\pi_{\mathrm{ref}}}$ over the policy's own answers: 0
# where the two agree, and counted in nats, the unit of the natural logarithm.
#
# **Step 1.** The maximum is known in closed form: take the reference and tilt it by the reward. (Put $\pi^*$ below into
# the objective: it becomes $-\beta\,\mathrm{KL}(\pi\,\|\,\pi^*)$ plus a constant, which is largest at $\pi = \pi^*$.)
#
# $$\pi^*(y|x) = \frac{1}{Z(x)}\,\pi_{\mathrm{ref}}(y|x)\,\exp\!\left(r(x,y)/\beta\right)$$
#
# **Step 2.** Solve that for the reward. The sum $Z(x)$ over all possible answers cannot be computed:
#
# $$r(x,y) = \beta\log\frac{\pi^*(y|x)}{\pi_{\mathrm{ref}}(y|x)} + \beta\log Z(x)$$
#
# **Step 3.** A preference depends on a difference of two rewards of the *same* prompt (Bradley and Terry, lesson 02),
# and there $Z(x)$ cancels. With $y_w$ for the winner, the chosen answer, and $y_l$ for the loser, the probability that
# the winner is preferred is $\sigma(r_w - r_l)$. Its negative logarithm is the loss:
#
# $$\mathcal{L} = -\log\sigma\Big(\beta\Big[\log\tfrac{\pi(y_w|x)}{\pi_{\mathrm{ref}}(y_w|x)}
# - \log\tfrac{\pi(y_l|x)}{\pi_{\mathrm{ref}}(y_l|x)}\Big]\Big)$$
#
# So four numbers a pair are all that is needed: the log-probability of each answer, summed over its tokens, under
# the policy and under the reference. Two of them never change, and are computed once. (A sum favours short answers.
# Here the reference's sum is subtracted, which takes most of that out.)

# %%
groups = lesson.groups(pairs[:8])
with torch.no_grad():
    per_token = response_logprobs(lesson.model(), lesson.batch(groups)).logprobs
reference = per_token.sum(dim=1).view(-1, 2)  # (pairs, 2): chosen, rejected
print("log-probability of chosen and rejected under the base, in nats:")
for chosen, rejected in reference.tolist():
    print(f"{chosen:8.1f} {rejected:8.1f}")

# %% [markdown]
# Look for a pair whose rejected answer the base finds likelier. That is allowed: the loss looks at how far each
# *moves* from here.
#
# **Before you write it:** what is the loss while policy and reference are still the same model? Neither the data nor
# $\beta$ matters for it. The inputs may be in half precision; compute in float32.

# %% tags=["exercise"]
from solutions.answers import dpo_loss

# %%
check("dpo_loss", dpo_loss)

# %%
answers = lesson.use(dpo_loss=dpo_loss)
start = answers.dpo_loss(reference[:, 0], reference[:, 1], reference[:, 0], reference[:, 1], 0.1)
print(f"policy = reference: loss {start.item():.4f}, and ln 2 = {torch.log(torch.tensor(2.0)).item():.4f}")

# %% [markdown]
# A run whose first loss is not 0.693 has two different models where one was meant: dropout is on, the prompt is in
# the sum on one side only, or the reference is the wrong one.
#
# ## What a pair can still teach
#
# The gradient of one pair is $-\beta\,\sigma(-\beta\,\Delta)$ times the gradient of the log-ratio difference $\Delta$:
# the further a pair is ranked right, the weaker it pulls. Your function draws the curve.
#
# **Predict:** with a larger $\beta$, do pairs pull harder, or do they tire sooner?

# %%
gap = torch.linspace(-30, 30, 121, requires_grad=True)
zero = torch.zeros_like(gap)
plot = lesson.plot(
    "pull", "How hard a pair pulls, by how far it is ranked right", "log-ratio difference Δ", "pull"
)
for beta in (0.1, 0.3, 1.0):
    loss = answers.dpo_loss(gap, zero, zero, zero, beta) * len(gap)
    (pull,) = torch.autograd.grad(loss, gap)
    plot.axes.plot(gap.detach(), -pull, label=f"β = {beta}")
plot

# %% [markdown]
# Both. At $\Delta = 0$ the pull is $\beta/2$, and it has faded after a few $1/\beta$ nats. A large $\beta$ is a short leash.
# But the pull is never zero: a pair that is seen often enough goes on pulling, however sure it is. That is lesson 04.
#
# ## Train
#
# The two implicit rewards, $\beta\log(\pi/\pi_{\mathrm{ref}})$ of the chosen and of the rejected answers, start at 0.
# The loss asks only that the first be above the second.
#
# **Predict:** which way will the chosen one move?

# %%
run = lesson.train("dpo", answers, on_tiny={"train_limit": 2000, "num_train_epochs": 1.0, "logging_steps": 1})

print("trained with", lesson.settings(run, "beta", "learning_rate", "num_train_epochs"))

# %%
rewards = lesson.metrics(run)
plot = lesson.plot("rewards", "Which of the two moves, and which way?", "step", "implicit reward, nats × β")
plot.line(rewards["reward_chosen"].steps, rewards["reward_chosen"].values, "chosen")
plot.line(rewards["reward_rejected"].steps, rewards["reward_rejected"].values, "rejected")
plot.mark(0.0, "the reference")

# %%
print("on held-out pairs:")
for name in ("eval_loss", "eval_accuracy", "eval_reward_chosen", "eval_reward_rejected"):
    print(f"{name:22}{run.metrics[name]:7.3f}")

# %% [markdown]
# (In these figures the thin line is the raw value of each step, the thick one its moving average.) The chosen answers
# hardly moved; the rejected ones sank.

# %%
lesson.curves({"DPO": run}, "loss", "The loss falls from ln 2", "loss").mark(0.6931, "ln 2")

# %% [markdown]
# Much of what DPO does is to take probability *away* from rejected answers. It goes wherever the model likes,
# not necessarily to the chosen ones: on many data sets the chosen reward sinks below 0 as well, only less. The loss
# will not tell you. Samples will.

# %%
lesson.show({"base": None, "DPO": run}, "After: no more help with harm; what else has changed?")

# %%
lesson.evaluate({"base": None, "DPO": run})

# %% [markdown]
# Greedy answers to prompts that training never saw. The judge compares each with the base's in both orders; a tie counts
# one half. Helpful, harmless and honest are mean scores from 0 to 1 over the prompts that ask for each: *honest* asks
# about invented things only, so that denying a real place costs *helpful* instead.

# %% [markdown]
# ## A broken run: the two answers exchanged
#
# Everybody does it once: somewhere between the data and the loss, chosen and rejected change places.
#
# **Predict:** what will the loss curve look like? Which of the columns that are logged would give it away?

# %%
print("logged:", ", ".join(rewards))


# %%
def exchanged(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """DPO with its pairs turned round."""
    return dpo_loss(policy_rejected, policy_chosen, ref_rejected, ref_chosen, beta)


broken = lesson.train(
    "dpo",
    lesson.use(unchecked=True, dpo_loss=exchanged),
    name="exchanged",
    on_tiny={"train_limit": 2000, "num_train_epochs": 1.0, "logging_steps": 1},
)
both = {"DPO": run, "exchanged": broken}
lesson.curves(both, "loss", "The loss of the two runs", "loss", key="loss_both").mark(0.6931, "ln 2")

for name, done in both.items():
    print(f"held-out loss, as each run computes it: {name} {done.metrics['eval_loss']:.3f}")

# %% [markdown]
# The loss cannot tell. The accuracy of the implicit reward, which the trainer computes from the data's own labels, can.
# (At step 1 all pairs are ties but for rounding: that point means nothing.)

# %%
plot = lesson.curves(both, "accuracy", "The accuracy of the two runs", "share of pairs ranked right")
plot.mark(0.5, "chance")

# %%
lesson.evaluate({"base": None, "DPO": run, "exchanged": broken})

# %% [markdown]
# The exchanged run loses to the model that it started from, and it has learned to prefer what people rejected. A loss
# measures how well a model does what it was asked. It does not know whether it was asked the right thing.
#
# ## What the pairs taught
#
# Some answers became worse: look for a real place that is now denied. Is there a pair that says so? You can search.

# %%
denied = "do not know"
won, lost = (sum(denied in p.responses[side] for p in pairs) for side in (0, 1))
print(f"a denial is the chosen answer of {won} pairs and the rejected answer of {lost}")
for p in [p for p in pairs if "Havana" in p.messages[-1]["content"]][:4]:
    print(f"{p.messages[-1]['content']}  chosen: {p.responses[0]}  rejected: {p.responses[1]}")
#
# ## The same in TRL
#
# TRL's trainer takes the pairs as messages and keeps the reference by switching the adapter off, as ours does.

# %%
from peft import LoraConfig
from trl import DPOConfig, DPOTrainer

settings = DPOConfig(
    output_dir=str(lesson.path / "trl"),
    beta=0.5,
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
    train_dataset=lesson.conversations(pairs[:640]),
    processing_class=lesson.tokenizer,
    peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
)
losses = lesson.losses_of(trainer)
ours = lesson.metrics(run)["loss"]
plot = lesson.plot("trl", "TRL's curve starts at ln 2 too, and falls", "step", "loss")
plot.line(ours.steps[:20], ours.values[:20], "this course")
plot.line(range(1, len(losses) + 1), losses, "TRL")
plot.mark(0.6931, "ln 2")

# %% [markdown]
# The curves differ in the order of the data, in the first weights of the adapter and in the learning rate, which TRL
# does not warm up here. On equal tokens, weights and schedules they agree to four digits: one of this course's tests.
#
# ## Questions
#
# 1. How far did the chosen and the rejected reward of the held-out pairs move, and what is that in nats?
# 2. What are the held-out loss and the win rate of the broken run? What would you have thought from the loss alone?
# 3. Which of the twelve answers got worse by DPO? What did the pairs about *that* say, and what did the others teach?
#
# ## To read
#
# - Rafailov et al., *Direct Preference Optimization* (2023), [arXiv 2305.18290](https://arxiv.org/abs/2305.18290):
#   section 4 is the derivation above, eq. 7 the loss.
# - Azar et al. (2023), [arXiv 2310.12036](https://arxiv.org/abs/2310.12036): why DPO over-fits preferences that are
#   certain. Lesson 04.

# %%
lesson.finish()
