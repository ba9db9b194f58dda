"""`bench`: what this project promises about speed and memory, measured here; one JSON line each."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from helpers.course.bench_dpo import bench_dpo
from helpers.course.bench_memory import bench_memory
from helpers.course.bench_ppo import bench_ppo
from helpers.errors import CourseError
from helpers.models.bench_fused import bench_fused

FUSED_BOUNDS = {"time_ratio": 1.2, "memory_ratio": 0.1}
COURSE_BOUNDS = {"minutes": 8.0, "peak_gib": 3.0}
BENCHES = ("fused", "dpo", "ppo", "memory", "course")


def run_bench(only: str, answers: str, *, pairs: int = 16, real_data: str | None = None) -> bool:
    """Print a JSON line for every benchmark asked for; return whether all keep their bounds.

    One that cannot run here, for want of data or a library, prints why and does not count.
    """
    names = [name.strip() for name in only.split(",") if name.strip()] or list(BENCHES)
    unknown = set(names) - set(BENCHES)
    if unknown:
        raise CourseError(f"--only: {', '.join(sorted(unknown))} is not among {', '.join(BENCHES)}")
    kept = True
    for name in names:
        try:
            result = measure(name, answers, pairs, real_data)
        except CourseError as problem:
            result = {"benchmark": name, "skipped": str(problem)}
        print(json.dumps(result), flush=True)
        kept = kept and result.get("passed", True)
    return kept


def measure(name: str, answers: str, pairs: int, real_data: str | None) -> dict[str, Any]:
    """Run one benchmark."""
    if name == "fused":
        result = bench_fused()
        passed = all(float(str(result[key])) <= bound for key, bound in FUSED_BOUNDS.items())
        return {**result, "bounds": FUSED_BOUNDS, "passed": passed}
    if name == "dpo":
        return bench_dpo(answers, n_pairs=pairs, real_data=real_data)
    if name == "ppo":
        return bench_ppo(answers, real_data=real_data)
    if name == "memory":
        return bench_memory(answers)
    return bench_course(answers)


def bench_course(answers: str) -> dict[str, Any]:
    """Run the whole course on `tiny` in a fresh process and directory: minutes and peak resident memory.

    Memory is that of the process and its children together, sampled ten times a second.
    """
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "helpers", "course", "--profile", "tiny"]
        command += ["--output_dir", f"{place}/run", "--answers", answers]
        started = time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=Path(__file__).resolve().parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        peak: list[float] = []
        watcher = threading.Thread(target=watch_memory, args=(process.pid, peak), daemon=True)
        watcher.start()
        words, _ = process.communicate()
        minutes = (time.perf_counter() - started) / 60
    if process.returncode not in (0, 1):
        raise CourseError(f"the course did not finish: {words[-800:]}")
    figures = {"minutes": round(minutes, 2), "peak_gib": round(max(peak, default=0.0), 2)}
    within = all(figures[key] <= bound for key, bound in COURSE_BOUNDS.items())
    return {
        "benchmark": "course",
        **figures,
        "bounds": COURSE_BOUNDS,
        "thresholds_met": process.returncode == 0,
        "passed": within and process.returncode == 0,
    }


def watch_memory(pid: int, peak: list[float]) -> None:
    """Append the resident GiB of a process and its children until it ends."""
    try:
        process = psutil.Process(pid)
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            family = [process, *process.children(recursive=True)]
            total = sum(member.memory_info().rss for member in family)
            peak.append(max(total / 2**30, peak[-1] if peak else 0.0))
            time.sleep(0.1)
    except psutil.Error:
        return
