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
# # 07 · GRPO: judged against its siblings
#
# DPO learned from answers that somebody had collected. Here the policy writes its own, a reward model scores them,
# and the policy does more of what scored well. "Well" needs something to compare with: PPO trains a second network
# to guess it; GRPO asks the same question eight times and compares the answers with each other.
#
# | profile | minutes | memory |
# |---|---|---|
# | `tiny`, two CPU cores | 1.5 (measured on a busy machine) | 1 GiB |
# | `colab`, one T4 | not measured | not measured |

# %% tags=["setup"]

# %%
import torch

from helpers.course.checks import check
from helpers.course.lesson import Lesson
from helpers.course.lesson_display import Table, tint_of
from helpers.files import read_jsonl
from helpers.judging.evaluate import gold_metadata
from helpers.judging.gold import gold_scores
from helpers.models.policy import response_logprobs
from helpers.text.groups import Group

lesson = Lesson("07_grpo")

# %% [markdown]
# ## Before
#
# The base model on the twelve prompts of this course. It obeys the harmful request, invents things about what does
# not exist, and is rude now and then.

# %%
lesson.show({"base": None}, "Before: the base model, answers tinted from bad (orange) to good (green)")

# %% [markdown]
# ## One question, eight answers
#
# No pairs and no reference answers from here on: a prompt, samples at temperature 1, and a reward model, trained as
# in lesson 02, that gives each a number.

# %%
place = lesson.bundled("reward")
reward_model = lesson.reward_model(place)
example = lesson.prompts[1]
siblings = lesson.sample(None, [example], k=8, temperature=1.0)[0]
prompt_ids = lesson.encoder.encode_prompt(example.messages)
group = Group(prompt_ids, [answer.ids for answer in siblings])
rewards = torch.tensor(reward_model.score_groups([group])[0])

facts = gold_metadata(example)
worth = [gold_scores(facts, answer.text).total if facts else None for answer in siblings]
Table(
    f"{example.messages[-1]['content']} (tinted by what the answers are really worth, which the policy never learns)",
    ["answer", "reward"],
    [[answer.text, reward] for answer, reward in zip(siblings, rewards.tolist(), strict=True)],
    {(row, 0): tint_of(score) for row, score in enumerate(worth) if score is not None},
)

# %% [markdown]
# ## From the reward to a gradient
#
# **Step 1, the policy gradient.** We want $\mathbb{E}_{y\sim\pi}[r(y)]$ to rise. The samples depend on the weights,
# but a derivative can be taken all the same, because $\nabla\pi = \pi\,\nabla\log\pi$:
#
# $$\nabla\,\mathbb{E}_{y\sim\pi}[r(y)] = \mathbb{E}_{y\sim\pi}\left[r(y)\,\nabla\log\pi(y)\right]$$
#
# In words: make each answer likelier, in proportion to its reward.
#
# **Step 2, the baseline.** If all rewards lie between 90 and 91, this pushes *every* answer up by 90, and the one
# that deserved it by one more; which answers happened to be drawn drowns all else. Subtract a number $b$ that does
# not depend on the answer. On average nothing changes, because $\mathbb{E}_{y\sim\pi}[\nabla\log\pi(y)] = 0$:
# probabilities sum to one, whatever the weights. But the noise is gone.
#
# **Step 3, the siblings.** The best simple $b$ is the reward this *prompt* usually gets. PPO trains a network to
# predict it. GRPO samples $G$ answers and takes their mean:
#
# $$A_i = \frac{r_i - \mathrm{mean}(r_1 \ldots r_G)}{\mathrm{std}(r_1 \ldots r_G) + \varepsilon}$$
#
# The division puts every prompt on one scale, whether its rewards are 0.1 apart or 10.
#
# Rewards come as one flat vector with siblings side by side: groups are rows of $G$. Three things to keep in mind.
# Where $r$ has as many groups as siblings, a mean that has lost its axis raises no error. A group of equal rewards
# must give zeros, not NaN. And `scale_by_std=False` divides by nothing at all, not even by $\varepsilon$.

# %% tags=["exercise"]
from solutions.answers import group_advantages

# %%
check("group_advantages", group_advantages)

# %%
advantages = lesson.use(group_advantages=group_advantages).group_advantages(rewards, 8)
plot = lesson.plot("group", "Worse than its siblings: less likely", "advantage", "", size=(6.4, 3.0))
plot.axes.barh(range(8), advantages, color=["#009E73" if a > 0 else "#D55E00" for a in advantages.tolist()])
plot.axes.set_yticks(range(8), [answer.text[:44].replace("$", r"\$") for answer in siblings], fontsize=7)
plot.axes.invert_yaxis()
plot

# %% [markdown]
# ## Groups that teach nothing, and groups that teach too much
#
# **Predict:** the advantages of four equal rewards; of one good answer among bad ones; and of the same group with
# rewards a thousand times smaller.

# %%
for few in ([1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.001]):
    worth = lesson.use(group_advantages=group_advantages).group_advantages(torch.tensor(few), 4)
    print(few, "→", [round(value, 2) for value in worth.tolist()])

# %% [markdown]
# Equal siblings teach nothing: eight answers were sampled and scored for no gradient. With a reward of 0 or 1 that
# happens to every prompt that is too easy or too hard. And a thousandth of a point counts almost as much as a whole
# one: where the siblings hardly differ, GRPO amplifies whatever noise the reward has. Dr. GRPO (lesson 08) drops the
# division for such reasons.
#
# ## From the gradient to a loss
#
# **Step 4, the ratio.** Sampling is slow, so one wants more than one update from a batch of samples. After the first
# update they no longer come from the current policy; weighing every token by
# $\rho_t = \pi(y_t)/\pi_{\mathrm{old}}(y_t)$ corrects for that. At $\rho = 1$ the gradient of $\rho A$ is
# $A\,\nabla\log\pi$, that of step 1.
#
# **Step 5, the clip.** The correction is honest only near $\rho = 1$. So a token that has moved far enough in the
# direction its advantage asks for gets no more push. The way *back* must stay open, hence the minimum:
#
# $$J_t = \min\left(\rho_t A,\; \mathrm{clip}(\rho_t, 1-\epsilon, 1+\epsilon)\,A\right)$$
#
# **Step 6, the leash.** The policy is also charged for leaving the reference. With $d = \log\pi -
# \log\pi_{\mathrm{ref}}$ on the sampled tokens, $d$ itself (k1) is an estimate of the KL divergence that is right on
# average, but often negative. The k3 estimate is right on average too, and never below zero:
#
# $$k_3 = e^{-d} - 1 + d$$
#
# **Step 7, the means.** First over the tokens of each answer, then over answers, so that every answer has one vote:
#
# $$\mathcal{L} = \frac1N\sum_i \frac{1}{|y_i|}\sum_t \left(\beta\,k_{3,t} - J_t\right)$$
#
# The usual slips: the loss is *minus* the objective, and of two objectives the smaller counts (of two losses, the
# larger). Subtract log-probabilities first and exponentiate then; two exponentials divided give 0/0 for unlikely
# tokens. An advantage belongs to a row, so it needs a trailing axis, and with as many answers as tokens no error will
# tell you. Padding has no vote in any mean.
#
# **Before you write it:** old and new policy are the same at the first update, and the reference too. What is the
# loss? What is its gradient?

# %% tags=["exercise"]
from solutions.answers import grpo_loss

# %%
check("grpo_loss", grpo_loss)

# %% [markdown]
# ## A loss of zero that teaches
#
# Your loss on the eight answers above, at the very first update.

# %%
answers = lesson.use(group_advantages=group_advantages, grpo_loss=grpo_loss)
batch = lesson.batch([group])
with torch.no_grad():
    old = response_logprobs(lesson.model(), batch).logprobs.cpu()
mask = batch.mask.cpu()
logprobs = old.clone().requires_grad_()
loss = answers.grpo_loss(logprobs, old, old, advantages, mask, 0.2, 0.02)
(slope,) = torch.autograd.grad(loss, logprobs)
print(f"loss {loss.item():.7f}, norm of its gradient {slope.norm().item():.4f}")
print("A    ", "  ".join(f"{value:6.2f}" for value in advantages.tolist()))
print("push ", "  ".join(f"{value:6.2f}" for value in (-slope.sum(dim=1) * 8).tolist()))

# %% [markdown]
# At $\rho = 1$ the loss is minus the mean advantage, which is zero by construction, plus a KL of zero. Its value says
# nothing. Its gradient pushes every answer by exactly its advantage. So nobody watches the loss of GRPO: look at the
# reward, the KL, the length, and at samples.
#
# Your function also draws the clip: one token, two advantages, and how hard it is pushed.
#
# **Predict:** where does the push stop for a good token? Where for a bad one?

# %%
ratio = torch.linspace(0.5, 1.5, 201)
now, then = ratio.log()[:, None].requires_grad_(), torch.zeros(201, 1)
plot = lesson.plot("clip", "The clip ends the push, never the way back", "ratio ρ", "push on log π")
for sign, label in ((1.0, "A = +1"), (-1.0, "A = −1")):
    one = torch.full((201,), sign)
    loss = answers.grpo_loss(now, then, then, one, torch.ones(201, 1, dtype=torch.bool), 0.2, 0.0) * 201
    (pull,) = torch.autograd.grad(loss, now)
    plot.axes.plot(ratio, -pull[:, 0], label=label)
plot

# %% [markdown]
# ## Train
#
# Each step: eight prompts, eight answers to each, scored, and one pass over them (on `tiny`
# in two updates of 32 answers). Your loss has the k3 estimate
# inside, so it can draw the KL curve as well: advantages of zero, a weight of one, and the old policy in the place of
# the new one.


# %%
def kl_by_my_loss(logprobs, ref_logprobs, mask, estimator="k3"):
    """The mean KL per token, measured with the loss itself."""
    if estimator == "k1":
        return (logprobs - ref_logprobs)[mask].mean()
    nothing = torch.zeros(len(mask), device=mask.device)
    return grpo_loss(logprobs, logprobs, ref_logprobs, nothing, mask, 0.2, 1.0)


mine = {"group_advantages": group_advantages, "grpo_loss": grpo_loss}
answers = lesson.use(unchecked=True, **mine, approx_kl=kl_by_my_loss)

# %% [markdown]
# **Predict:** which of the base's faults will go first? What will happen to the length?

# %%
watch = {"eval_samples": 30, "eval_steps": 10}  # greedy answers to thirty held-out prompts, now and then
shorter = {"max_steps": 40, "learning_rate": 1.5e-3}
run = lesson.train("grpo", answers, reward_model=str(place), on_tiny=shorter, **watch)
rows = lesson.metrics(run)
for where, place_in_run in (("first", 0), ("last", -1)):
    loss, norm, kl = (rows[name].values[place_in_run] for name in ("loss", "grad_norm", "kl"))
    print(f"{where:5} step: loss {loss:9.6f}, gradient norm {norm:.3f}, KL {kl:.4f}")

# %%
lesson.curves(
    {"GRPO": run}, "reward", "The reward rises, noisily: every step has other prompts", "mean reward"
)

# %%
lesson.curves({"GRPO": run}, "kl", "The price: the policy moves away from the base", "KL per token, nats")

# %%
lesson.curves({"GRPO": run}, "tokens", "The length, which nobody asked it to change", "mean tokens")

# %%
lesson.show({"base": None, "GRPO": run}, "After: what the reward model liked")

# %%
lesson.evaluate({"base": None, "GRPO": run})

# %% [markdown]
# In the bundled world the harmful answer is gone, and so is most of what was made up. Now look at the beach ball and at
# Havana, which the base got right: the policy refuses the one and denies knowing the other. It found out that such
# answers score well on average, and no prompt told it where they do not.
#
# ## A broken run: no leash, longer steps
#
# The KL term is gone and the learning rate is doubled. The reward model is the same, and it rates whatever it is
# given, also texts unlike any that it was trained on.
#
# **Predict:** will the reward rise faster or slower? And the win rate?

# %%
broken = lesson.train(
    "grpo",
    answers,
    name="unleashed",
    reward_model=str(place),
    kl_coef=0.0,
    on_tiny={"max_steps": 40, "learning_rate": 3e-3},
    **watch,
)
both = {"GRPO": run, "unleashed": broken}
lesson.curves(both, "reward", "The reward says that nothing is wrong", "mean reward", key="both_rewards")

# %%
lesson.curves(both, "kl", "The KL says that something is", "KL per token, nats", key="both_kls")

# %% [markdown]
# Every ten steps both runs answered thirty held-out prompts. The gold judge of the bundled world knows what these
# answers are worth; the policy never saw its verdicts.


# %%
def course_of(run):
    """Steps, mean reward (the proxy) and mean gold score (what was meant) of the held-out answers."""
    facts_of = {example.row_id: gold_metadata(example) for example in lesson.held_out("prompts")}
    by_step = {}
    for row in read_jsonl(run.run_dir / "samples.jsonl"):
        facts = facts_of.get(row["row_id"])
        worth = gold_scores(facts, row["response"]).total if facts else float("nan")
        by_step.setdefault(row["step"], []).append((row["reward"], worth))
    means = torch.tensor([torch.tensor(values).mean(dim=0).tolist() for values in by_step.values()])
    return list(by_step), means[:, 0], means[:, 1]


proxy = lesson.plot("proxy", "What is optimised: the reward of held-out answers", "step", "reward model")
gold = lesson.plot("gold", "What was meant: the same answers, judged by the truth", "step", "gold score")
for label, finished in both.items():
    steps, reward, worth = course_of(finished)
    proxy.line(steps, reward, label, marker="o")
    gold.line(steps, worth, label, marker="o")
proxy

# %%
gold if facts else print("these prompts have no gold judge")

# %%
lesson.evaluate({"base": None, **both})

# %%
lesson.show(both, "What a reward model can be made to like")

# %% [markdown]
# In the bundled world both runs end at the same reward. By the truth one has gained and the other is worse than the
# base: it denies knowing whatever it is asked about, and its words fall apart.
#
# This is over-optimisation: past some distance from the data it was trained on, the reward model is no longer right,
# and the policy finds out. No curve of the training shows it but the KL, and samples. In practice there is no gold
# judge; hence the leash, early stopping, and reading what the policy writes.
#
# And the clip?

# %%
lesson.curves(both, "clip_fraction", "The clip sleeps while steps are small", "share of tokens clipped")

# %% [markdown]
# With one pass over each batch of answers the ratios hardly leave 1. The clip bounds a single update; it is no leash, as
# the old policy moves along. Only the KL term remembers where training began.
#
# ## The same in TRL
#
# `GRPOTrainer` wants prompts and a function that scores. Two defaults differ from the paper: `loss_type` is "dapo",
# a mean over all tokens of the batch, and `beta` is 0.

# %%
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer


def score(prompts, completion_ids, **_):
    """The same reward model, on the very tokens that were sampled."""
    encode = lesson.encoder.encode_prompt
    groups = [Group(encode(p), [list(ids)]) for p, ids in zip(prompts, completion_ids, strict=True)]
    return [group[0] for group in reward_model.score_groups(groups)]


settings = GRPOConfig(
    **{**lesson.trl_defaults(), "logging_steps": 2},
    loss_type="grpo",
    beta=0.02,
    num_generations=8,
    per_device_train_batch_size=32,
    steps_per_generation=2,  # two updates a rollout, as ours
    max_completion_length=lesson.budget.max_new_tokens,
    learning_rate=1.5e-3,
    lr_scheduler_type="constant",
    max_steps=16,
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
ours = lesson.metrics(run)["kl"]
plot = lesson.plot("trl", "TRL's policy leaves the base as ours does", "rollouts", "KL per token, nats")
plot.line(ours.steps[: len(theirs)], ours.values[: len(theirs)], "this course")
plot.line(range(1, len(theirs) + 1), theirs, "TRL")
plot

# %% [markdown]
# ## Questions
#
# 1. From the first to the last step, how much did the loss change, and how much the reward? (On `tiny` a step makes two
#    updates. Why is its loss only nearly zero?)
# 2. At which step of the unleashed run would you have stopped, and which curve would have told you?
# 3. Which of the twelve answers got worse in the good run, and what kind of answer took their place?
#
# ## To read
#
# - Shao et al., *DeepSeekMath* (2024), [arXiv 2402.03300](https://arxiv.org/abs/2402.03300): section 4.1 is GRPO.
# - Schulman et al., *Proximal Policy Optimization Algorithms* (2017),
#   [arXiv 1707.06347](https://arxiv.org/abs/1707.06347): the clipped surrogate, section 3.
# - Schulman, [*Approximating KL divergence*](http://joschu.net/blog/kl-approx.html) (2020): k1, k2 and k3.
# - Gao et al., *Scaling laws for reward model overoptimization* (2022),
#   [arXiv 2210.10760](https://arxiv.org/abs/2210.10760): the curve of the unleashed run, at scale.

# %%
lesson.finish()
