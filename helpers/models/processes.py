"""Several processes of one training run, as `accelerate launch` and torchrun start them on one machine.

The launcher says in the environment how many there are and which this one is. Process 0 writes the run's
files; the others take from it what must be done once. With one process every function here does nothing.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed as dist

from helpers.errors import CourseError

PATIENCE = timedelta(hours=12)  # the others wait while process 0 evaluates or computes the reference

Result = TypeVar("Result")


def count() -> int:
    """How many processes the launcher started; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE") or 1) if os.environ.get("RANK") else 1


def rank() -> int:
    """The number of this process, from 0."""
    return int(os.environ["RANK"]) if count() > 1 else 0


def local_rank() -> int:
    """The number of this process on its machine, which is also that of its GPU."""
    return int(os.environ.get("LOCAL_RANK") or rank()) if count() > 1 else 0


def is_main() -> bool:
    """True for the process that writes."""
    return rank() == 0


def check_launcher() -> None:
    """Raise CourseError where a launcher was asked for several processes and started one.

    So does `accelerate launch --cpu --num_processes 2`: for several processes on CPUs it relies on MPI.
    """
    asked = os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true" and os.environ.get("MASTER_ADDR")
    if asked and not os.environ.get("RANK"):
        raise CourseError(
            "accelerate launch --cpu started one process, for without MPI it cannot start more: write"
            " --multi_gpu in place of --cpu (on CPUs too), or torchrun --nproc_per_node 2"
        )


def refuse_several(what: str) -> None:
    """Raise CourseError where `what`, which one process does, was started in several."""
    if count() > 1:
        raise CourseError(
            f"{what} runs in one process, and {count()} were started: leave out accelerate launch or torchrun"
            " and start it with python -m helpers. sft, reward_model, dpo, ipo and aot train in several"
        )


def join() -> None:
    """Meet the other processes; CourseError where they are on several machines."""
    if count() == 1 or dist.is_initialized():
        return
    if int(os.environ.get("LOCAL_WORLD_SIZE") or count()) != count():
        raise CourseError("the processes are on several machines; a run directory belongs to one machine")
    from accelerate import PartialState

    # Sets the GPU of this process too. The Trainer, later, finds the group there and joins no other.
    PartialState(cpu=not torch.cuda.is_available(), timeout=PATIENCE)
    atexit.register(leave)


def leave() -> None:
    """Take leave of the other processes, so that torch does not complain at the end."""
    if dist.is_initialized():
        dist.destroy_process_group()


def wait() -> None:
    """Go on when all processes have come here."""
    if count() > 1:
        gather(None)  # works with every backend, and needs no device to be named


def share(value: Any) -> Any:
    """The value that process 0 gives."""
    if count() == 1:
        return value
    join()
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def gather(value: Any) -> list[Any]:
    """The values that all processes give, by their number."""
    if count() == 1:
        return [value]
    join()
    values: list[Any] = [None] * count()
    dist.all_gather_object(values, value)
    return values


def once(work: Callable[[], Result]) -> Result:
    """Let process 0 do the work, and give its result to all. Where it fails the others end, silently."""
    if count() == 1:
        return work()
    result, problem = None, None
    if is_main():
        try:
            result = work()
        except Exception as caught:
            problem = caught
    result, failed = share((result, problem is not None))
    if problem is not None:
        raise problem
    if failed:
        raise SystemExit(2)  # process 0 says why
    return result  # type: ignore[return-value]


def mine(parts: Sequence[Any]) -> Sequence[Any]:
    """This process's share of a list that all hold: every n-th."""
    return parts[rank() :: count()]


def add_up(sums: dict[str, float]) -> dict[str, float]:
    """The sums over all processes of figures that not every process need have."""
    total: dict[str, float] = {}
    for part in gather(sums):
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    return total


def sum_tensors(tensors: Sequence[torch.Tensor]) -> None:
    """Add up every tensor over the processes, in place; all give tensors of the same shapes."""
    if count() > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)


def copy_from_main(tensors: Sequence[torch.Tensor]) -> None:
    """Overwrite every tensor with that of process 0."""
    if count() > 1:
        join()
        for tensor in tensors:
            dist.broadcast(tensor, src=0)


@contextmanager
def draft_for_all(open_draft: Callable[[], Any]) -> Iterator[Any]:
    """Yield process 0's draft to all; it is closed when all have written, and all go on when it is closed."""
    if count() == 1:
        with open_draft() as draft:
            yield draft
    elif is_main():
        with open_draft() as draft:
            yield share(draft)
            wait()
        wait()
    else:
        yield share(None)
        wait()
        wait()
