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
# # 06 · PPO: credit, token by token
#
# The policy writes answers, a reward model scores them, and the policy is pushed towards what scored well. This is
# how InstructGPT was made. A score is one number for a whole answer, and PPO's question is which of its tokens earned
# it. You will write its seven parts, each a few lines, and watch them train a model.
#
# | profile | minutes | memory |
# |---|---|---|
# | `tiny`, two CPU cores | 1.5 (measured) | 1 GiB |
# | `colab`, one T4 | not measured | not measured |

# %% tags=["setup"]

# %%
import torch
from matplotlib.patches import Rectangle

from helpers.course.checks import check
from helpers.course.lesson import Lesson, adapter_of
from helpers.course.lesson_display import Table
from helpers.models import loading
from helpers.models.policy import response_logprobs
from helpers.models.reward_model import RewardModel
from helpers.text.groups import Group
from helpers.training.ppo_value import ValueModel

lesson = Lesson("06_ppo")

# %% [markdown]
# ## Before
#
# PPO does not start from the base but from the SFT model of lesson 01: a policy that answers at all is cheaper to
# improve. It has learned the form of an answer, and the faults of its demonstrations with it.

# %%
sft = adapter_of(lesson.bundled("sft"))
place = lesson.bundled("reward")  # the reward model of lesson 02
lesson.show(
    {"base": None, "SFT": sft}, "Before: the base and the SFT model, tinted from bad (orange) to good (green)"
)

# %% [markdown]
# ## 1. How far from home
#
# A reward model is right near the texts it was trained on. So the policy $\pi$ is to stay near the reference
# $\pi_{\mathrm{ref}}$, here the SFT model, measured by
#
# $$\mathrm{KL}(\pi\,\|\,\pi_{\mathrm{ref}}) = \mathbb{E}_{y\sim\pi}\left[\log\pi(y) - \log\pi_{\mathrm{ref}}(y)\right]$$
#
# The expectation runs over all texts, so it is estimated from the tokens that were sampled. With
# $d = \log\pi - \log\pi_{\mathrm{ref}}$ on a token drawn from $\pi$:
#
# $$k_1 = d \qquad k_2 = \tfrac12 d^2 \qquad k_3 = e^{-d} - 1 + d$$
#
# $k_1$ is the definition itself. $k_3$ adds $e^{-d} - 1$, whose mean is zero: $\mathbb{E}_\pi[\pi_{\mathrm{ref}}/\pi] =
# 1$. It is never negative, as $e^{-d}$ lies above its tangent. $k_2$ is the first term of $k_3$'s series.
#
# **Predict:** three tokens have $d = 0.5,\ -0.5,\ 0$. Which of the three estimates says that the policies are equal?

# %% tags=["exercise"]
from solutions.answers import approx_kl

# %%
check("approx_kl", approx_kl)

# %%
answers = lesson.use(approx_kl=approx_kl)
logprobs = torch.tensor([[-0.5, -1.0, -2.0]])
ref_logprobs = torch.tensor([[-1.0, -0.5, -2.0]])
three = torch.ones(1, 3, dtype=torch.bool)
for name in ("k1", "k2", "k3"):
    print(name, f"{answers.approx_kl(logprobs, ref_logprobs, three, estimator=name).item():.4f}")

# %% [markdown]
# The mean of $d$ is zero, and with other samples it may be negative: a KL divergence never is, its estimate can be.
#
# On a distribution over five tokens the exact KL is a sum of five terms, and every estimate can be held against it.
# Two references, a near and a far one; 2,000 batches of 64 tokens each.
#
# **Predict:** which estimator is biased, and when does it matter? Which one spreads most near the reference?

# %%
generator = torch.Generator().manual_seed(0)
policy = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05])
tilt = torch.tensor([-1.0, 0.3, 0.8, 1.0, 0.0])
estimates, rows = {}, []
for where, strength in (("near", 0.2), ("far", 1.6)):
    other = (policy.log() + strength * tilt).softmax(dim=0)
    exact = (policy * (policy.log() - other.log())).sum().item()
    drawn = torch.multinomial(policy, 2000 * 64, replacement=True, generator=generator).view(2000, 1, 64)
    whole = torch.ones(1, 64, dtype=torch.bool)
    for name in ("k1", "k2", "k3"):
        found = [approx_kl(policy.log()[ids], other.log()[ids], whole, estimator=name) for ids in drawn]
        estimates[where, name] = torch.stack(found)
        mean, spread = estimates[where, name].mean().item(), estimates[where, name].std().item()
        rows.append([where, f"{exact:.4f}", name, f"{mean:.4f}", f"{mean / exact - 1:+.0%}", f"{spread:.4f}"])
    estimates[where, "exact"] = exact
Table(
    "Two thousand estimates from 64 tokens each",
    ["reference", "exact KL", "estimator", "mean", "bias", "spread"],
    rows,
)


# %%
def a_few_batches(where, title):
    """The first batches of one reference, estimated three ways."""
    plot = lesson.plot(f"estimates_{where}", title, "batch of 64 tokens", "estimate, nats")
    for name in ("k1", "k2", "k3"):
        plot.line(range(1, 26), estimates[where, name][:25], name, marker=".")
    return plot.mark(estimates[where, "exact"], "exact")


a_few_batches("near", "Near the reference k1 is mostly noise")

# %%
a_few_batches("far", "Far from it k2 is wrong; k3 is right and quiet")

# %% [markdown]
# Near the reference $k_2$ and $k_3$ are the same and spread a twentieth as much as $k_1$; far from it $k_2$ is wrong by
# half. So $k_3$ is what the training logs. In the *reward* PPO charges $k_1$, the definition: there it is only a number, and
# its noise averages out. As a term of a *loss* $k_1$ would be worthless: the gradient of
# $\log\pi-\log\pi_{\mathrm{ref}}$ does not know the reference, and is zero on average.
#
# ## 2. A reward for every token
#
# Each token $t$ is charged its own drift, and the last one, $T$, is paid the score $r(x, y)$:
#
# $$r_t = -\beta\left(\log\pi(y_t) - \log\pi_{\mathrm{ref}}(y_t)\right) + \left[t = T\right] r(x,y)$$
#
# $T$ is the last token of *that* answer, not the last column of the batch. Three things get lost here by others:
# paying at the first padding place, where no loss looks; paying every token, which is this lesson's broken run; and
# charging the mean drift to all tokens alike, which lets the one that drifted go free.
#
# **Predict:** two answers of three and two tokens, scores 1 and 2, $\beta = 0.1$. What do the rows sum to?

# %% tags=["exercise"]
from solutions.answers import kl_shaped_rewards

# %%
check("kl_shaped_rewards", kl_shaped_rewards)

# %%
answers = lesson.use(kl_shaped_rewards=kl_shaped_rewards)
logprobs = torch.tensor([[-0.5, -1.0, -2.0], [-1.0, -1.0, 0.0]])
ref_logprobs = torch.tensor([[-1.0, -0.5, -2.0], [-1.0, -3.0, 0.0]])
mask = torch.tensor([[True, True, True], [True, True, False]])
shaped = answers.kl_shaped_rewards(torch.tensor([1.0, 2.0]), logprobs, ref_logprobs, mask, 0.1)
print(shaped, "sums", shaped.sum(dim=1))

# %% [markdown]
# The sum of a row is the score less $\beta$ times the drift of the answer: what PPO maximises. An answer that was cut off
# at the length limit is scored like any other and then loses `missing_eos_penalty`, or rambling would be free.
#
# ## 3. Who earned it
#
# The value model guesses $V_t$, the sum of the rewards still to come when token $t$ is about to be written. Whatever a
# token changes about this guess is its own doing:
#
# $$\delta_t = r_t + \gamma V_{t+1} - V_t$$
#
# If the guesses were right, $\delta_t$ would be all we need. They are not, so look further ahead and believe each
# further step a little less:
#
# $$A_t = \delta_t + \gamma\lambda A_{t+1}$$
#
# Credit flows backwards, so start at the end. After the last token nothing comes: the value there is zero, also where
# the answer was cut off. $V_t$ is read where the log-probability of token $t$ is read, one place *before* the token.
# The value model is then taught the returns $R_t = A_t + V_t$.
#
# **Predict:** rewards $0, 0, 1$, all guesses $0.5$, $\gamma = 1$. Which tokens get credit for $\lambda = 0$, and for
# $\lambda = 1$?

# %% tags=["exercise"]
from solutions.answers import gae

# %%
check("gae", gae)

# %%
answers = lesson.use(gae=gae)
rewards, values = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.5, 0.5, 0.5]])
for lam in (0.0, 0.5, 1.0):
    advantages, returns = answers.gae(rewards, values, three, 1.0, lam)
    print(f"λ = {lam}: advantages {advantages[0].tolist()}, returns {returns[0].tolist()}")

# %% [markdown]
# With $\lambda = 0$ only the surprise at the end counts; the guesses before it agreed with each other, right or not.
# With $\lambda = 1$ every token is credited with the outcome less what was expected.
#
# ## 4. One scale
#
# The scale of rewards is an accident of the reward model, the learning rate should not depend on it. So the
# advantages of a rollout are shifted and scaled to mean 0 and standard deviation 1, over the real tokens only:
#
# $$\hat A_t = \frac{A_t - \mathrm{mean}(A)}{\mathrm{std}(A)}$$
#
# This is for the policy alone. Returns are made *before*: a value taught whitened returns predicts no reward.
#
# **Predict:** advantages 3, 5, 7 and one place of padding.

# %% tags=["exercise"]
from solutions.answers import whiten

# %%
check("whiten", whiten)

# %%
padded = torch.tensor([[3.0, 5.0, 7.0, 0.0]])
white = lesson.use(whiten=whiten).whiten(padded, padded > 0)
print("over the tokens:      ", [round(value, 2) for value in white[0].tolist()])
print(
    "padding counted as 0s:",
    [round(value, 2) for value in ((padded - padded.mean()) / padded.std())[0].tolist()],
)

# %% [markdown]
# Counted in, the padding would turn a token that did worse than the others into an average one.
#
# ## 5. The policy's loss
#
# Sampling is slow, so each rollout feeds several updates, and after the first it is no longer the current policy's.
# The ratio $\rho_t = \pi(y_t)/\pi_{\mathrm{old}}(y_t)$ corrects for that, near 1. A token that has moved far enough
# in the direction its advantage asks for gets no more push; the minimum keeps the way back open:
#
# $$\mathcal{L} = -\frac{1}{|M|}\sum_{t\in M}\min\left(\rho_t \hat A_t,\;
# \mathrm{clip}(\rho_t, 1-\epsilon, 1+\epsilon)\,\hat A_t\right)$$
#
# The mean runs over all tokens $M$ of the batch, so a long answer has more votes than a short one.
#
# **Predict:** three tokens with $\epsilon = 0.2$: $\rho = 1.5$ with $A = 1$; $\rho = 1.5$ with $A = -1$; $\rho = 0.5$
# with $A = 1$. Which of them is not pushed any more?

# %% tags=["exercise"]
from solutions.answers import ppo_policy_loss

# %%
check("ppo_policy_loss", ppo_policy_loss)

# %%
answers = lesson.use(ppo_policy_loss=ppo_policy_loss)
now = torch.tensor([[1.5, 1.5, 0.5]]).log().requires_grad_()
worth = torch.tensor([[1.0, -1.0, 1.0]])
loss = answers.ppo_policy_loss(now, torch.zeros(1, 3), worth, three, 0.2)
(slope,) = torch.autograd.grad(loss, now)
print(
    f"loss {loss.item():.4f}, push on log π {[round(value, 2) + 0.0 for value in (-slope[0] * 3).tolist()]}"
)

# %% [markdown]
# The first one has gone far enough. The second is bad and has become likelier: it is pushed back, however far it went.
# Your function as a curve:

# %%
ratios = torch.linspace(0.5, 1.5, 101)
plot = lesson.plot("clip", "Where a curve is flat the token is left alone", "ratio ρ", "loss of one token")
for sign, label in ((1.0, "A = +1: flat above 1.2"), (-1.0, "A = −1: flat below 0.8")):
    one = torch.full((1, 1), sign)
    losses = [
        answers.ppo_policy_loss(rho.log().view(1, 1), torch.zeros(1, 1), one, three[:, :1], 0.2).item()
        for rho in ratios
    ]
    plot.axes.plot(ratios, losses, label=label)
plot

# %% [markdown]
# ## 6. The value's loss
#
# The value model learns by squared error. Its step is bounded the same way, and pessimism means the *larger* of two
# errors, since it is a loss:
#
# $$\mathcal{L}_V = \frac{1}{2|M|}\sum_{t\in M}\max\left((V_t - R_t)^2,\;
# \left(V^{\mathrm{old}}_t + \mathrm{clip}(V_t - V^{\mathrm{old}}_t, -\epsilon, \epsilon) - R_t\right)^2\right)$$
#
# Returns and old values were fixed at the rollout. Making the targets anew with the current values, or leaving a
# graph on them, has the model chase itself.
#
# **Predict:** old values 0, $\epsilon = 0.2$. $V = 0.1$ with $R = 1$; $V = 1$ with $R = 1$; $V = 1$ with $R = 0$. One of
# them is perfect. What is its loss, and what is its gradient?

# %% tags=["exercise"]
from solutions.answers import ppo_value_loss

# %%
check("ppo_value_loss", ppo_value_loss)

# %%
answers = lesson.use(ppo_value_loss=ppo_value_loss)
now = torch.tensor([[0.1, 1.0, 1.0]], requires_grad=True)
targets = torch.tensor([[1.0, 1.0, 0.0]])
loss = answers.ppo_value_loss(now, torch.zeros(1, 3), targets, three, 0.2)
(slope,) = torch.autograd.grad(loss, now)
print(f"loss {loss.item():.4f}, slope {[round(value, 2) for value in (slope[0] * 3).tolist()]}")

# %% [markdown]
# The second has a loss and no gradient: it may not go further from where it was, and need not go back.
#
# ## 7. How undecided the policy is
#
# A policy that is pushed towards a few answers ends up certain, and one that is certain explores no more. The entropy
# of the next token tells:
#
# $$H_t = -\sum_{v} p_v \log p_v$$
#
# It is a sum over the whole vocabulary. $-\log p$ of the sampled token is right only on average, and not in its
# gradient. As a bonus it enters the loss with a *minus*: more entropy, less loss. This lesson only watches it.
#
# **Predict:** the entropy of four equal chances; of 0.9 against 0.1; of the logits 1000 and 0.

# %% tags=["exercise"]
from solutions.answers import token_entropy

# %%
check("token_entropy", token_entropy)

# %%
never = float("-inf")
logits = torch.tensor([[[0.0, 0, 0, 0], [9.0, 1, 0, 0], [1000.0, 0, never, never]]])
logits[0, 1] = torch.tensor([0.9, 0.1, 0.0, 0.0]).log()
print(
    [
        round(value, 4) + 0.0
        for value in lesson.use(token_entropy=token_entropy).token_entropy(logits)[0].tolist()
    ]
)

# %% [markdown]
# ## Four roles, one base
#
# PPO needs four models at once: the **policy** that writes, the **reference** it is held to, the **reward model** that
# scores, and the **value model** that guesses the score ahead of time. Four copies of a large model fit nowhere. Here
# all four are adapters on one frozen base, two of them with a small head that gives a number. The value model starts
# as a copy of the reward model, and reads the state before a token instead of the one at the end.

# %%
answers = lesson.use(
    approx_kl=approx_kl,
    kl_shaped_rewards=kl_shaped_rewards,
    gae=gae,
    whiten=whiten,
    ppo_policy_loss=ppo_policy_loss,
    ppo_value_loss=ppo_value_loss,
    token_entropy=token_entropy,
)
writer = lesson.role(sft)  # puts the SFT adapter on the base
shared = writer.model
loading.load_adapter(shared, sft, "reference")
kept = {"pad_id": lesson.encoder.pad_id, "layout": lesson.profile.layout}
reward_model = RewardModel.load(place, shared, answers.last_token_index, **kept)
value_model = ValueModel.load(place, shared, answers.last_token_index, name="value", **kept)
print("bases in memory:", loading.count_bases([shared, reward_model.model, value_model.model]))

# %%
sizes = dict.fromkeys(("base", writer.adapter, "reference", "reward", "value"), 0)
for name, weight in shared.named_parameters():
    owner = next((role for role in sizes if f".{role}." in name), "base")
    sizes[owner] += weight.numel()
plot = lesson.plot(
    "roles", "Four roles on one base: only the coloured adapters are trained", "", "", size=(6.4, 3.2)
)
plot.axes.set_axis_off()
plot.axes.set_xlim(0, 8)
plot.axes.set_ylim(0, 4.2)


def box(x, y, width, text, colour):
    """A labelled block."""
    plot.axes.add_patch(Rectangle((x, y), width, 0.9, facecolor=colour, edgecolor="0.35", linewidth=0.8))
    plot.axes.text(x + width / 2, y + 0.45, text, ha="center", va="center", fontsize=8)


box(0.1, 0.1, 7.8, f"base: {sizes['base']:,} frozen weights, loaded once", "0.88")
head = sum(weight.numel() for weight in reward_model.head.parameters())
roles = [("policy", writer.adapter, "log π"), ("reference", "reference", "log π_ref")]
roles += [("reward model", "reward", "score"), ("value model", "value", "V")]
for place_of, (role, adapter, gives) in enumerate(roles):
    trained = role in ("policy", "value model")
    box(0.1 + 2 * place_of, 1.2, 1.8, f"adapter\n{sizes[adapter]:,}", "#b9e3c6" if trained else "0.95")
    text = f"own head\n{head:,}" if adapter in ("reward", "value") else "the base's\nLM head"
    box(0.1 + 2 * place_of, 2.3, 1.8, text, "#b9e3c6" if role == "value model" else "0.95")
    plot.axes.text(1 + 2 * place_of, 3.45, f"{role}\ngives {gives}", ha="center", va="bottom", fontsize=8)
plot

# %% [markdown]
# Which adapter is the reference matters. Switching the policy's adapter off gives the base: right for DPO, which
# started there, wrong after SFT. Hence a second, frozen copy.
#
# ## One rollout
#
# One answer, drawn from the SFT model at temperature 1. Before training the policy *is* its reference, so there would
# be no drift to see; for this one picture the reference is the base.
#
# Four kinds of log-probability are compared in PPO (sampler, old, new, reference), and all must have the same
# temperature: divided into the logits, before the softmax. With $T$ in one of them only, the first ratio is not 1.

# %%
example = lesson.prompts[2]
drawn = lesson.sample(sft, [example], k=1, temperature=1.0, max_new_tokens=32)[0][0]
group = Group(lesson.encoder.encode_prompt(example.messages), [drawn.ids])
batch = lesson.batch([group])
with writer.active():
    old = response_logprobs(shared, batch, with_entropy=True)
    logits = shared(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
with lesson.role(None).active():
    base_logprobs = response_logprobs(shared, batch).logprobs
with torch.no_grad():
    values = value_model.token_values(batch)
score = torch.tensor(reward_model.score_groups([group])[0], device=values.device)
mine = answers.token_entropy(logits).flatten()[batch.predict_index]
print("prompt:", example.messages[-1]["content"])
print("answer:", drawn.text)
print(f"score {score.item():.2f}")
print(f"largest difference of your entropy from the trainer's: {(mine - old.entropy).abs().max().item():.1e}")

# %% [markdown]
# The trainer never holds all logits of a batch at once, hence a version of its own; yours says that it is right.
#
# **Predict:** at which tokens has SFT changed the model most, and will those be charged or paid?

# %%
tokens = [lesson.tokenizer.decode([token]).strip() or "·" for token in drawn.ids]
places = range(len(tokens))


def over_tokens(key, title, ylabel):
    """A figure with one place for each token of the answer."""
    plot = lesson.plot(key, title, "", ylabel, size=(6.4, 3.0))
    plot.axes.set_xticks(
        places, [token.replace("$", r"\$") for token in tokens], rotation=60, ha="right", fontsize=7
    )
    plot.axes.axhline(0, color="0.4", linewidth=0.8)
    return plot


shaped = answers.kl_shaped_rewards(score, old.logprobs, base_logprobs, batch.mask, 0.1)
charged = answers.kl_shaped_rewards(0 * score, old.logprobs, base_logprobs, batch.mask, 0.1)
plot = over_tokens(
    "shaped", "Each token pays for its own drift; the last one is paid the score", "reward, β = 0.1"
)
plot.axes.bar(places, shaped[0].tolist(), color="#009E73", label="with the score")
plot.axes.bar(places, charged[0].tolist(), color="#D55E00", label="for drift")
plot

# %% [markdown]
# Most tokens follow from those before them, and both models agree on them. A token that became *less* likely than in
# the reference is paid when it is drawn all the same: $k_1$ has both signs.
#
# **Predict:** with $\lambda = 0$ the advantages follow the jumps of the value. Where will they be for $\lambda = 1$?

# %%
plot = over_tokens(
    "lambda", "λ = 0 credits jumps of the value, λ = 1 the outcome less the value", "advantage"
)
plot.axes.plot(places, values[0].tolist(), color="0.6", linestyle=":", label="value V")
for lam in (0.0, 0.5, 0.95, 1.0):
    advantages, _ = answers.gae(shaped, values, batch.mask, 1.0, lam)
    plot.axes.plot(places, advantages[0].tolist(), marker=".", label=f"λ = {lam}")
plot

# %% [markdown]
# The untrained value jumps about in the middle of words: its head was only ever asked about finished answers.
#
# For $\lambda = 1$ the sum of $\delta$'s collapses: what is left is the reward to go, less the value. That is an
# independent test of what you wrote.

# %%
to_go = shaped.flip(1).cumsum(1).flip(1)
difference = (answers.gae(shaped, values, batch.mask, 1.0, 1.0)[0] - (to_go - values)).abs().max()
print(f"largest difference: {difference.item():.1e}")

# %% [markdown]
# In between is a trade: small $\lambda$ believes a value model that may be wrong, large $\lambda$ believes one outcome
# that may be luck. 0.95 leans to the outcome.
#
# ## Train
#
# Each step (on `tiny`): 64 answers, scored; charges, advantages and returns from your functions; then an update of
# policy and value for every 32 answers.
#
# **Predict:** the value model starts as the reward model. How much of the returns does it explain at step 1?

# %%
del reward_model, value_model, shared, writer  # the trainer loads its own
start = {"init_adapter": str(sft), "reward_model": str(place)}
watch = {"eval_samples": 48, "eval_steps": 8}  # greedy answers to held-out prompts, now and then
run = lesson.train(
    "ppo", answers, name="beta_0.01", kl_coef=0.01, **start, **watch, on_tiny={"max_steps": 24}
)

# %%
plot = lesson.curves(
    {"samples of the step": run}, "reward", "The reward rises, noisily: every step has other prompts", "score"
)
held_out = lesson.metrics(run)["eval_reward"]
plot.line(held_out.steps, held_out.values, "greedy, held-out prompts", marker="o")

# %%
lesson.curves({"PPO": run}, "kl", "The price: distance from the SFT model", "KL per token, nats")

# %%
plot = lesson.curves(
    {"PPO": run},
    "explained_variance",
    "The value model learns what the returns will be",
    "explained variance",
)
plot.mark(0.0, "no better than a constant")

# %% [markdown]
# Explained variance is $1 - \mathrm{Var}(R - V)/\mathrm{Var}(R)$. What a reward model says about the first half of an
# answer is worth little, so the start is low. Once the value model explains something, advantages are less noisy.
# Where it stays below zero, PPO would do better without it.

# %%
lesson.curves(
    {"PPO": run},
    "entropy",
    "No collapse: the entropy swings with the prompts of a step",
    "entropy per token, nats",
)

# %%
lesson.show({"SFT": sft, "PPO": run}, "After: what changed, and what got lost?")

# %%
lesson.evaluate({"SFT": sft, "PPO": run})

# %% [markdown]
# The first policy of this table is the one that the others are compared with. The course asks of PPO a win rate of 0.75
# against SFT, with a KL below 0.5 nats a token throughout.
#
# ## What β does
#
# $\beta$ is the price of a nat. The same run, with a price ten and a hundred times as high, on the same prompts at every
# step:
#
# **Predict:** a tenth of the drift, and a hundredth? And the score?

# %%
leashes = {"β = 0.01": run}
for beta in (0.1, 1.0):
    leashes[f"β = {beta}"] = lesson.train(
        "ppo", answers, name=f"beta_{beta}", kl_coef=beta, **start, **watch, on_tiny={"max_steps": 12}
    )
lesson.curves(
    leashes, "kl", "Ten times the price is not a tenth of the drift", "KL per token, nats", key="beta_kl"
)

# %%
lesson.curves(leashes, "eval_reward", "What the distance buys", "score, held-out prompts", key="beta_reward")


# %%
def late(run, steps):
    """Means over the last four of the first `steps` steps."""
    table = lesson.metrics(run)
    names = ("reward", "kl", "kl_sequence", "kl_penalty")
    return [table[name].values[steps - 4 : steps].mean().item() for name in names]


shortest = min(len(lesson.metrics(each)["reward"].values) for each in leashes.values())
Table(
    f"Steps {shortest - 3} to {shortest}",
    ["run", "score", "KL a token", "KL an answer", "charged an answer"],
    [[label, *late(each, shortest)] for label, each in leashes.items()],
)

# %% [markdown]
# $\beta$ is in points of score per nat, so its right size depends on the reward model. The first changes of the policy,
# such as dropping an empty phrase, gain much for few nats: on `tiny` prices of 0.01 and 0.1 hardly matter to them, and
# at 1 most are no longer worth it. Where training would end is known (lesson 03): $\pi \propto \pi_{\mathrm{ref}}\,e^{r/\beta}$. A small
# $\beta$ puts that place far away, and then the number of steps is the leash.
#
# ## A broken run: the score paid on every token
#
# One slip in the shaping: the score is added to every token of an answer, not to its last.
#
# **Predict:** what will the policy find out? Which answers should become longer, which shorter?


# %%
def paid_everywhere(scores, logprobs, ref_logprobs, mask, kl_coef):
    """Shaped rewards, with the score on all tokens of the answer."""
    charges = kl_shaped_rewards(torch.zeros_like(scores), logprobs, ref_logprobs, mask, kl_coef)
    return charges + scores[:, None] * mask


others = {"approx_kl": approx_kl, "gae": gae, "whiten": whiten}
others |= {"ppo_policy_loss": ppo_policy_loss, "ppo_value_loss": ppo_value_loss}
broken = lesson.train(
    "ppo",
    lesson.use(unchecked=True, kl_shaped_rewards=paid_everywhere, **others),
    name="paid_everywhere",
    kl_coef=0.01,
    **start,
    **watch,
    on_tiny={"max_steps": 12},
)
both = {"PPO": run, "paid everywhere": broken}
lesson.curves(
    both, "eval_reward", "The score rises in both runs", "score, held-out prompts", key="broken_reward"
)

# %%
lesson.curves(
    both, "tokens", "PPO learned to stop; the broken run is paid to go on", "mean tokens of the samples"
)

# %%
lesson.show(both, "The same facts, and who keeps talking")

# %%
lesson.evaluate({"SFT": sft, **both})

# %% [markdown]
# Where scores are above zero, every further token pays again, and the cheapest further tokens are an empty phrase at
# the end. PPO drops the phrase, since the reward model likes answers without it better; the broken run learns to keep
# it. It also refuses more than it need.
#
# The score rises here as well, only less, so its curve is no alarm. Two numbers of the first step are: the sum of a
# row must be the score less the charge for drift, so `kl_penalty` (shaped rewards less score) is zero before training,
# and the value model is taught returns of another size.

# %%
first = {
    name: [lesson.metrics(each)[name].values[0].item() for each in both.values()]
    for name in ("kl_penalty", "value_loss")
}
Table("Step 1", ["column", *both], [[name, *values] for name, values in first.items()])

# %% [markdown]
# ## And in TRL?
#
# TRL removed its PPO trainer in September 2026. The nearest thing it has is RLOO, PPO with every choice made the simple
# way: $\lambda = 1$, no value model, the baseline is the mean score of an answer's siblings, the drift of the whole
# answer is charged to its score, and the ratio is one for the whole answer.

# %%
from peft import PeftModel
from trl import RLOOConfig, RLOOTrainer

reward_model = lesson.reward_model(place)


def score(prompts, completion_ids, **_):
    """The same reward model, on the very tokens that were sampled."""
    encode = lesson.encoder.encode_prompt
    groups = [Group(encode(p), [list(ids)]) for p, ids in zip(prompts, completion_ids, strict=True)]
    return [group[0] for group in reward_model.score_groups(groups)]


settings = RLOOConfig(
    output_dir=str(lesson.path / "trl"),
    beta=0.01,
    epsilon=0.2,
    normalize_advantages=True,
    num_generations=4,
    per_device_train_batch_size=32,
    steps_per_generation=2,
    max_completion_length=lesson.budget.max_new_tokens,
    learning_rate=1e-3,
    lr_scheduler_type="constant",
    max_steps=12,
    logging_steps=2,
    gradient_checkpointing=False,
    bf16=False,
    report_to="none",
    save_strategy="no",
    disable_tqdm=True,
    dataloader_pin_memory=False,
)
trainer = RLOOTrainer(
    model=PeftModel.from_pretrained(
        lesson.fresh_base(), sft, is_trainable=True
    ),  # TRL keeps a copy as reference
    reward_funcs=score,
    args=settings,
    train_dataset=lesson.conversations(lesson.examples(kind="prompts", limit=64)),
    processing_class=lesson.tokenizer,
)
lesson.losses_of(trainer)
theirs = [row["kl"] for row in trainer.state.log_history if "kl" in row]
ours = lesson.metrics(run)["kl_k1"]
plot = lesson.plot(
    "trl",
    "RLOO leaves the SFT model as PPO does",
    "rollouts of 64 answers",
    "KL per token (k1), nats",
)
plot.line(ours.steps[: len(theirs)], ours.values[: len(theirs)], "PPO, this course")
plot.line(range(1, len(theirs) + 1), theirs, "RLOO, TRL")
plot

# %% [markdown]
# ## Questions
#
# 1. At which step did the value model first explain more than a fifth of the returns, and what did the KL do from
#    about there?
# 2. How much of its score does an answer pay for drift at each of the three prices?
# 3. What did the broken run do to the answers that were right already, and which column of the last evaluation shows
#    it?
#
# ## To read
#
# - Schulman et al., *Proximal Policy Optimization Algorithms* (2017),
#   [arXiv 1707.06347](https://arxiv.org/abs/1707.06347): eq. 7 is the clipped loss.
# - Schulman et al., *High-dimensional continuous control using generalized advantage estimation* (2015),
#   [arXiv 1506.02438](https://arxiv.org/abs/1506.02438): eq. 16.
# - Ziegler et al., *Fine-tuning language models from human preferences* (2019),
#   [arXiv 1909.08593](https://arxiv.org/abs/1909.08593): the charge for drift, eq. 2.
# - Ouyang et al., *Training language models to follow instructions* (2022),
#   [arXiv 2203.02155](https://arxiv.org/abs/2203.02155): InstructGPT.
# - Schulman, [*Approximating KL divergence*](http://joschu.net/blog/kl-approx.html) (2020): k1, k2 and k3.

# %%
lesson.finish()
