"""Mistakes that no function of these signatures can make: why, and where they are met instead."""

NOT_HERE = {
    # token_logprobs
    "model_mode_side_effect": "no model is given; scoring keeps its mode: tests/models/test_reference.py",
    "gather_on_ignore_index": "input_ids hold tokens everywhere; labels of -100: tests/answers/test_sft.py",
    # response_mask
    "mask_by_pad_id_drops_eos": "no token ids are given, on purpose: tests/answers/test_logprobs.py",
    "tokens_after_first_eos_kept": "sampling cuts responses at their end: tests/models/test_sampling.py",
    "prompt_len_from_other_text": "lengths are given; parts are encoded apart: tests/text/test_chat.py",
    # masked means
    "sft_rejected_prompt_unmasked": "one function scores both answers: tests/answers/test_preference.py",
    # last_token_index
    "pool_mean_over_tokens": "an index is asked, and no scores are given: tests/answers/test_reward.py",
    # pair_accuracy
    "pair_accuracy_sum_vs_mean_mismatch": "scores come as they are: tests/answers/test_reward.py",
    # dpo_loss
    "dpo_mean_over_padded_width": "the loss is given sums: tests/answers/test_preference.py",
    "dpo_nll_taken_as_loglik": "with sums it is the reversed margin of dpo_reference_sign_swapped",
    "dpo_wrong_length_multiplier": "the loss is given sums: tests/answers/test_preference.py",
    "dpo_token_by_token_difference": "the loss is given sums: tests/answers/test_preference.py",
    "dpo_reference_with_gradient": "the reference comes without a graph: tests/models/test_reference.py",
    "dpo_dropout_left_on": "no model is given; step 0 costs ln 2: tests/training/test_offline.py",
    # group_advantages
    "adv_wrong_reward_field": "rewards come as one vector, without fields, also in the trainer",
    "adv_reward_fn_arguments": "the trainer calls the reward function: tests/training/test_online.py",
    "adv_log_mean_of_advantages": "the trainer logs raw rewards: tests/training/test_online_methods.py",
    # grpo_loss
    "clip_fraction_wrong": "the trainer logs it: tests/training/test_online_methods.py",
    "adv_or_logratio_clip_omitted": "the contract has no such clamp",
    "logprob_precision_mismatch": "one function scores both: tests/models/test_policy.py",
    "norm_per_minibatch_not_per_batch": "the trainer weighs micro-batches: tests/training/test_online.py",
    "kl_no_clamp_overflow": "the contract has no clamp: tests/answers/test_kl.py",
    # ipo_loss and aot_loss
    "ipo_sum_or_mean_convention": "the loss takes either: tests/training/test_preference_methods.py",
    "aot_mean_logprobs": "the loss is given sums: tests/answers/test_ipo_and_aot.py",
    "aot_reduced_too_early": "the contract asks for a scalar, and has no weights",
    "aot_weights_not_permuted": "the contract has no weights",
    # dr_grpo_loss and gspo_loss
    "drgrpo_flag_inverted": "two functions, and no switch: tests/answers/test_dr_grpo_and_gspo.py",
    "gspo_ppo_clip_range": "clip_eps is given; its default: tests/training/test_online_methods.py",
    # kl_shaped_rewards and ppo_value_loss
    "missing_eos_penalty_ineffective": "the contract has no such penalty",
    "value_targets_move": "returns are given, and frozen by the trainer: tests/training/test_ppo.py",
    # the functions of lessons 10 and 11
    "winrate_parse_failures": "verdicts come readable; others are counted: tests/judging/test_evaluate.py",
    "winrate_weighted_vs_discrete": "verdicts carry no weights; statistics have names in the report",
    "lc_fit_pooled_models": "one model is given: tests/answers/test_evaluation.py",
    "bootstrap_unpaired_difference": "one list is given; lesson 10 pairs: tests/answers/test_evaluation.py",
    "hack_proxy_reported_as_quality": "no function: lesson 11, and the signs of tests/course/test_hacking.py",
    # whatever the exercise
    "test_input_special_cased": "fresh draws at every check: tests/checks/test_recognisers.py",
    "rollout_policy_stale": "responses are drawn at every step: tests/training/test_online.py",
}
