"""Run a notebook from top to bottom in a kernel of its own, on the bundled world and without a network."""

from __future__ import annotations

import copy
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from helpers.course.builder.kit import MISSING
from helpers.course.builder.notebooks import Notebook
from helpers.errors import CourseError

SECONDS_PER_CELL = 600
# Set for every execution, so that neither a machine nor its user leaves a trace in what is printed.
ENVIRONMENT = {
    "COURSE_PROFILE": "tiny",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "WANDB_MODE": "disabled",
    "TQDM_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONHASHSEED": "0",
    "PYTHONWARNINGS": "ignore",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
}
NOT_INHERITED = (
    "COURSE_RUNS",
    "COURSE_DATA",
    "COURSE_REPO",
    "COURSE_FIGURE_DATA",
    "MPLBACKEND",
    "PYTHONSTARTUP",
)


class CellFailed(CourseError):
    """A cell raised: the exception's `name` and `value`, the cell's `number` from 1, what a reader sees."""

    def __init__(self, lesson: str, number: int, cell: Notebook, output: Notebook) -> None:
        self.number = number
        self.name, self.value = output["ename"], output["evalue"]
        self.shown = "\n".join(output["traceback"])
        first = next((line for line in cell["source"].splitlines() if line.strip()), "")
        super().__init__(f"lesson {lesson}, cell {number} ({first[:60]}): {self.name}: {self.value}")


def execute(
    notebook: Notebook,
    lesson: str,
    *,
    python_path: Path,
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> Notebook:
    """Run a copy in a fresh kernel of this Python and return it, outputs as they came.

    Args:
        notebook: as `make_notebook` gives it.
        lesson: for messages.
        python_path: where the kernel finds `helpers`.
        folder: working directory, kept; an empty temporary one by default.
        variables: more environment variables of the kernel.

    Raises:
        CellFailed: for a cell that raises.
        CourseError: for one that takes too long, or a kernel that dies.
    """
    nbclient, nbformat, manager = import_nbclient()
    node = nbformat.from_dict(copy.deepcopy(notebook))
    with places(folder) as (work, settings):
        client = nbclient.NotebookClient(
            node,
            km=manager,
            timeout=SECONDS_PER_CELL,
            record_timing=False,
            shutdown_kernel="immediate",
            resources={"metadata": {"path": str(work)}},
        )
        environment = {key: value for key, value in os.environ.items() if key not in NOT_INHERITED}
        environment.update(ENVIRONMENT, PYTHONPATH=str(python_path), IPYTHONDIR=str(settings))
        environment.setdefault("OMP_NUM_THREADS", "2")
        try:
            # A manager that is handed in is not shut down unasked.
            client.execute(cleanup_kc=True, env={**environment, **(variables or {})})
        except nbclient.exceptions.CellExecutionError:
            raise failure(lesson, node) from None
        except nbclient.exceptions.CellTimeoutError:
            raise CourseError(f"lesson {lesson}: a cell ran for more than {SECONDS_PER_CELL} s") from None
        except nbclient.exceptions.DeadKernelError:
            raise CourseError(f"lesson {lesson}: the kernel died, as it does when memory runs out") from None
    return node


def failure(lesson: str, node: Any) -> CourseError:
    """The cell that raised, as an exception that names it."""
    for number, cell in enumerate(node.cells, start=1):
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                return CellFailed(lesson, number, cell, output)
    return CourseError(f"lesson {lesson}: a cell failed without saying how")


@contextmanager
def places(folder: Path | None) -> Iterator[tuple[Path, Path]]:
    """A working directory and one for IPython's settings, outside the user's own."""
    with tempfile.TemporaryDirectory(prefix="lesson-") as scratch:
        work = folder or Path(scratch) / "work"
        work.mkdir(parents=True, exist_ok=True)
        yield work, Path(scratch) / "ipython"


def import_nbclient() -> tuple[Any, Any, Any]:
    """nbclient, nbformat, and a kernel manager for this very Python, whatever kernels are installed."""
    try:
        import nbclient
        import nbformat
        from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
        from jupyter_client.manager import AsyncKernelManager
    except ImportError:
        raise CourseError(MISSING) from None

    class ThisPython(KernelSpecManager):
        def get_kernel_spec(self, kernel_name: str) -> Any:
            command = [sys.executable, "-m", "ipykernel_launcher", "--log-level=ERROR"]
            return KernelSpec(
                argv=[*command, "-f", "{connection_file}"], display_name="Python 3", language="python"
            )

    return nbclient, nbformat, AsyncKernelManager(kernel_name="python3", kernel_spec_manager=ThisPython())
