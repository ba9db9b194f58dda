"""Lesson 06: proximal policy optimisation with a learned value (Schulman et al. 2017; Ouyang et al. 2022)."""

import torch


def gae(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Generalised advantage estimation (Schulman et al., 2015, arXiv 1506.02438, eq. 16).

    delta_t = r_t + gamma V_(t+1) - V_t and A_t = delta_t + gamma lam A_(t+1); a response ends with its last
    token, so the value after it is 0, also where the response was cut off.

    Args:
        rewards: (B, T), one a token.
        values: (B, T), V of the state that predicts the token.
        mask: (B, T) bool, true on response tokens. Masked-out places may hold NaN: select, do not multiply.
        gamma: discount; 1 is usual for text.
        lam: 0 trusts the values (TD errors), 1 the rewards (return-to-go less the value).

    Returns:
        Advantages (B, T) and returns A + V (B, T), float32, zeros outside the mask.
    """
    keep = mask.bool()
    rewards = torch.where(keep, rewards, 0.0).float()
    values = torch.where(keep, values, 0.0).float()
    next_value = next_advantage = rewards.new_zeros(len(rewards))
    columns = []
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * lam * next_advantage
        columns.append(torch.where(keep[:, t], advantage, 0.0))
        # A place outside the mask is no state: what follows is carried past it.
        next_advantage = torch.where(keep[:, t], advantage, next_advantage)
        next_value = torch.where(keep[:, t], values[:, t], next_value)
    advantages = torch.stack(columns[::-1], dim=1) if columns else torch.zeros_like(rewards)
    return advantages, torch.where(keep, advantages + values, 0.0)


def whiten(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Shift and scale the masked entries of `x`, all together, to mean 0 and unbiased standard deviation 1.

    Args:
        x: any shape.
        mask: the same shape, bool. Masked-out places may hold NaN: select, do not multiply.

    Returns:
        float32, zeros outside the mask, and everywhere if the masked entries are equal or fewer than two.
    """
    keep = mask.bool()
    kept = x[keep].float()
    white = torch.zeros(x.shape, device=x.device)
    if len(kept) < 2 or bool((kept == kept[0]).all()):
        return white
    return white.masked_scatter(keep, (kept - kept.mean()) / kept.std().clamp(min=1e-12))


def ppo_policy_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    clip_eps: float,
    clip_eps_high: float | None = None,
) -> torch.Tensor:
    """PPO's clipped surrogate (Schulman et al., 2017, arXiv 1707.06347, eq. 7), one ratio a token.

    With rho = exp(log pi - log pi_old): -min(rho A, clip(rho, 1 - clip_eps, 1 + clip_eps_high) A).

    Args:
        logprobs: (B, T) under the policy, with gradient.
        old_logprobs: (B, T) under the sampling policy, without.
        advantages: (B, T), without gradient.
        mask: (B, T) bool. Masked-out places may hold NaN: select, do not multiply.
        clip_eps: how far the ratio may fall below 1.
        clip_eps_high: how far it may rise above 1; `clip_eps` if None.

    Returns:
        Scalar float32: the mean over all masked tokens; 0 if there are none.
    """
    keep = mask.bool()
    high = clip_eps if clip_eps_high is None else clip_eps_high
    ratio = torch.where(keep, logprobs - old_logprobs, 0.0).float().exp()
    worth = torch.where(keep, advantages, 0.0).float()
    gain = torch.minimum(ratio * worth, ratio.clamp(1.0 - clip_eps, 1.0 + high) * worth)
    return -gain.sum() / keep.sum().clamp(min=1)


def ppo_value_loss(
    values: torch.Tensor,
    old_values: torch.Tensor,
    returns: torch.Tensor,
    mask: torch.Tensor,
    clip_eps: float,
) -> torch.Tensor:
    """Squared error of the values, pessimistic about large steps (as in OpenAI's baselines; no paper).

    max((V - R)^2, (V_old + clip(V - V_old, -clip_eps, clip_eps) - R)^2) / 2.

    Args:
        values: (B, T), with gradient.
        old_values: (B, T) at the time of the rollout, without.
        returns: (B, T), fixed for the whole rollout, without.
        mask: (B, T) bool. Masked-out places may hold NaN: select, do not multiply.
        clip_eps: in the unit of the rewards.

    Returns:
        Scalar float32: half the mean over all masked tokens; 0 if there are none.
    """
    keep = mask.bool()
    old = torch.where(keep, old_values, 0.0).float()
    target = torch.where(keep, returns, 0.0).float()
    now = torch.where(keep, values, 0.0).float()
    near = old + (now - old).clamp(-clip_eps, clip_eps)
    error = torch.maximum((now - target).square(), (near - target).square())
    return 0.5 * error.sum() / keep.sum().clamp(min=1)
