# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 00 · Sums
#
# With $\sum_i x_i$, and what a kernel prints.

# %% tags=["setup"]

# %%
import math
import os
import sys

from helpers.errors import CourseError

# %% tags=["exercise"]
from solutions.answers import doubled_sum

# %%
try:
    print(doubled_sum([1.0, 2.0]))
except NotImplementedError as problem:
    raise CourseError(f"exercise doubled_sum: {problem}; write it in the cell above") from None

# %% tags=["exercise"]
from solutions.answers import centred

# %%
print("  0%|          | 0/10 [00:00<?, ?it/s]\r 90%|###       | 9/10 [00:01<00:00, 9.1it/s]")
print("half\rwhole")
print("a warning", file=sys.stderr)
print("root:", os.environ["PYTHONPATH"] + "/data")
print(object())
centred([1, 2, 3])


# %%
class Shown:
    def __init__(self, **data):
        self.data = data

    def _repr_mimebundle_(self, **_):
        return {kind.replace("__", "/"): value for kind, value in self.data.items()}


Shown(text__html="<b>ü</b>\n<i>two</i>", text__plain="two")

# %% tags=["student-only"]
print("for students", math.pi)

# %% [markdown] tags=["solution-only"]
# For instructors.
