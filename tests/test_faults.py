"""Faults that users reported in kits like this one, and the test here that shows each is absent.

The left side names the public report. A fault of a part that does not exist yet joins the list with it.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

FAULTS = {
    "pad equals eos, masking by id: never learns to stop (TRL #1623, #3200, #6357)": (
        "text/test_groups.py::test_masks_go_by_length_where_pad_is_the_end_of_turn"
    ),
    "pooling at the first pad id (transformers #35352, RLHFlow #49)": (
        "models/test_reward_model.py::test_batched_equals_single_on_both_padding_sides"
    ),
    "scores change with the batch size (reward-bench #137)": (
        "models/test_reward_model.py::test_packed_equals_padded_at_any_batch_size_and_in_the_order_of_the_groups"
    ),
    "position ids count the padding (TRL #469, trlx #508)": (
        "text/test_groups.py::test_counting_positions_from_the_row_start_would_be_wrong_with_left_padding"
    ),
    "doubled BOS (open-r1 #462, TRL #1114, #3328)": (
        "text/test_chat.py::test_exactly_one_bos_where_the_template_has_one"
    ),
    "an extra end of turn (TRL #4908)": (
        "text/test_chat.py::test_exactly_one_end_of_turn_on_a_complete_response_and_none_on_a_truncated_one"
    ),
    "tokens lost between prompt and response (TRL #6433, #2054, #5213)": (
        "text/test_chat.py::test_joined_parts_equal_the_template"
    ),
    "DPO starts off ln 2 (TRL #2042, LLaMA-Factory #10779)": (
        "training/test_offline.py::test_dpo_starts_at_ln_2_even_when_dropout_is_asked_for"
    ),
    "accumulation changes the result (TRL #2617, ms-swift #10084)": (
        "training/test_offline.py::test_four_micro_batches_of_one_equal_one_of_four"
    ),
    "a partial last window weighs too much (TRL #5619)": (
        "training/test_offline.py::test_a_partial_last_batch_weighs_what_it_holds"
    ),
    "truncated tokens masked in the numerator only (TRL #6369)": (
        "answers/test_grpo.py::test_masked_tokens_leave_numerator_and_denominator_alike"
    ),
    "temperature missing from log-probs (TRL #3029)": (
        "training/test_online.py::test_every_log_probability_uses_the_sampling_temperature"
    ),
    "the first ratio is not 1 (TRL #454, minimind #814)": (
        "training/test_online.py::test_the_first_ratio_of_every_step_is_exactly_one"
    ),
    "cached references stale or ignored (TRL #1962, #6443, #7083)": (
        "models/test_reference.py::test_any_change_computes_again"
    ),
    "after SFT the wrong reference (TRL #1193, #4723)": (
        "training/test_offline.py::test_after_sft_the_reference_is_the_sft_model_and_not_the_base"
    ),
    "layers untrained under gradient checkpointing (peft #137)": (
        "models/test_loading.py::test_every_lora_b_moves_after_one_step_under_gradient_checkpointing"
    ),
    "a merged model differs (peft #2321, #1043)": (
        "models/test_loading.py::test_a_merged_adapter_computes_what_the_adapter_did_and_reports_its_drift"
    ),
    "fp16 scaler crashes on bf16 adapters (unsloth #4005, TRL #4901)": (
        "models/test_loading.py::test_adapter_weights_are_fp32_on_any_base"
    ),
    "NaN on a T4 (unsloth-zoo #600)": (
        "training/test_online.py::test_a_loss_that_is_not_finite_skips_the_step_and_is_counted"
    ),
    "a fused loss ignores an adapted head (TRL #4612, Liger #1082)": (
        "models/test_policy.py::test_an_adapted_head_is_refused"
    ),
    "the reward model reloads with a random head (TRL #1379, #4887)": (
        "training/test_offline.py::test_a_reward_model_reloads_to_equal_scores"
    ),
    "resume repeats or skips data (TRL #2657, verl #5725)": (
        "training/test_kill.py::test_a_killed_dpo_run_resumes_bit_for_bit"
    ),
    "only one of several EOS ids stops (TRL #7039)": (
        "models/test_sampling.py::test_every_end_id_stops_and_is_kept_even_if_it_is_the_pad_id"
    ),
    "no cache while sampling under checkpointing (TRL #3683)": (
        "models/test_sampling.py::test_modes_and_checkpointing_are_restored_and_the_cache_is_used"
    ),
    "training asks for a W&B key (smol-course #164)": (
        "training/test_tracking.py::test_nothing_is_tracked_unless_asked_for"
    ),
    "running a cell again grows memory (llm-course #5)": (
        "models/test_loading.py::test_running_a_loading_cell_again_does_not_grow_memory"
    ),
    "PPO: accumulation changes the result (TRL #2617, ms-swift #10084, TRL #5619)": (
        "training/test_ppo.py::test_minibatches_of_two_accumulated_twice_equal_one_of_four"
    ),
    "PPO: truncated or unscored tokens in the numerator only (TRL #6369)": (
        "training/test_ppo.py::test_masked_truncated_responses_teach_nothing_but_are_counted"
    ),
    "PPO: temperature missing from log-probs (TRL #3029)": (
        "training/test_ppo.py::test_every_log_probability_uses_the_sampling_temperature"
    ),
    "PPO: the first ratio is not 1 (TRL #454, minimind #814)": (
        "training/test_ppo.py::test_the_first_ratio_is_1_the_first_kl_is_0_and_old_values_are_the_first_values"
    ),
    "PPO: after SFT the wrong reference (TRL #1193, #4723)": (
        "training/test_ppo.py::test_the_reference_is_the_sft_model_the_policy_started_from"
    ),
    "PPO: recomputation under another adapter (peft #137)": (
        "training/test_ppo.py::test_gradient_checkpointing_recomputes_with_the_same_adapter"
    ),
    "PPO: one loss that is not finite poisons both adapters (unsloth-zoo #600)": (
        "training/test_ppo.py::test_a_value_loss_that_is_not_finite_skips_the_step_for_both"
    ),
    "PPO: the value starts from a random head (TRL #1379, #4887)": (
        "training/test_ppo.py::test_the_value_starts_as_a_copy_of_the_reward_model"
    ),
    "PPO: resume repeats, skips or forgets (TRL #2657, verl #5725)": (
        "training/test_kill.py::test_a_killed_ppo_run_resumes_bit_for_bit"
    ),
    "pairs without signal (rlhf-book #503, OpenRLHF #1311)": (
        "text/test_datasets.py::test_examples_become_groups_with_counts"
    ),
    "an unreadable verdict counts as a win (headroom #1892, evalscope #1578)": (
        "judging/test_evaluate.py::test_an_unreadable_verdict_is_counted_and_goes_to_neither_side"
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_reported_fault_has_a_test(fault: str, root: Path) -> None:
    file, name = FAULTS[fault].split("::")
    tree = ast.parse((root / "tests" / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
