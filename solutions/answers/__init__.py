"""Reference answers to the course's exercises: pure tensor functions, re-exported by name.

Trainers receive this module (or a learner's own file) as their `answers` namespace. Nothing in
`helpers` imports it.
"""

from solutions.answers.evaluation import bootstrap_ci, combine_orders, length_controlled_win_rate, win_rate
from solutions.answers.grpo import dr_grpo_loss, group_advantages, grpo_loss
from solutions.answers.gspo import gspo_loss
from solutions.answers.hacking import length_penalty, repetition_fraction
from solutions.answers.kl import approx_kl, kl_shaped_rewards
from solutions.answers.logprobs import response_mask, token_entropy, token_logprobs
from solutions.answers.ppo import gae, ppo_policy_loss, ppo_value_loss, whiten
from solutions.answers.preference import aot_loss, dpo_loss, ipo_loss
from solutions.answers.qlora import nf4_dequantize, nf4_quantize, qlora_memory_gib
from solutions.answers.reward import bradley_terry_loss, last_token_index, pair_accuracy
from solutions.answers.selection import best_of_n
from solutions.answers.sft import perplexity, sft_loss

__all__ = [
    "aot_loss",
    "approx_kl",
    "best_of_n",
    "bootstrap_ci",
    "bradley_terry_loss",
    "combine_orders",
    "dpo_loss",
    "dr_grpo_loss",
    "gae",
    "group_advantages",
    "grpo_loss",
    "gspo_loss",
    "ipo_loss",
    "kl_shaped_rewards",
    "last_token_index",
    "length_controlled_win_rate",
    "length_penalty",
    "nf4_dequantize",
    "nf4_quantize",
    "pair_accuracy",
    "perplexity",
    "ppo_policy_loss",
    "ppo_value_loss",
    "qlora_memory_gib",
    "repetition_fraction",
    "response_mask",
    "sft_loss",
    "token_entropy",
    "token_logprobs",
    "whiten",
    "win_rate",
]
