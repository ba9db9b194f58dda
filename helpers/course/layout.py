"""Where each file of a submission lies, as the university project's grader looks for it.

    policy_generations/{dpo,ipo,aot,grpo,drgrpo,gspo,ppo}.jsonl
    reward_model/public_test_pref_scores.jsonl
    part2/{offline,online}_best.jsonl

Two things are this course's own, and passed over by the project's grader: `ppo.jsonl`, and beside each file
of part 2 a manifest that says which policies wrote the candidates and what chose among them.
"""

from __future__ import annotations

from collections.abc import Iterator

from helpers.errors import CourseError

ROOT_NAME = "llm_rl_final_proj_public_submission"
PARTS = ("policy_generations", "reward_model", "part2")
METHODS = ("dpo", "ipo", "aot", "grpo", "dr_grpo", "gspo", "ppo")
OFFLINE, ONLINE = ("sft", "dpo", "ipo", "aot"), ("ppo", "grpo", "dr_grpo", "gspo")
KINDS = {"offline": OFFLINE, "online": ONLINE}  # of part 2: which methods may write the candidates
REWARD_FILE = "reward_model/public_test_pref_scores.jsonl"
ALIASES = {"policy_generations/drgrpo.jsonl": "policy_generations/dr_grpo.jsonl"}


def policy_file(method: str) -> str:
    """Return the path of a method's file within the submission; Dr. GRPO's is called drgrpo there."""
    name = method.lower().replace("-", "_")
    name = "dr_grpo" if name == "drgrpo" else name
    if name not in METHODS:
        raise CourseError(
            f"method {method!r} has no place in a submission: choose one of {', '.join(METHODS)}"
        )
    return f"policy_generations/{name.replace('_', '')}.jsonl"


def best_file(kind: str) -> str:
    """Return the path of the answers of part 2, of one kind: offline or online."""
    if kind not in KINDS:
        raise CourseError(f"--kind {kind}: part 2 has two kinds, {' and '.join(KINDS)}")
    return f"part2/{kind}_best.jsonl"


def manifest_file(kind: str) -> str:
    """Return the path of the manifest that belongs to `best_file(kind)`."""
    return best_file(kind).replace(".jsonl", ".manifest.json")


def layout() -> Iterator[str]:
    """Every file that a submission may hold."""
    yield from map(policy_file, METHODS)
    yield REWARD_FILE
    for kind in KINDS:
        yield best_file(kind)
        yield manifest_file(kind)
