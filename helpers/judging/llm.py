"""The LLM judge: best and worst of several answers, or grades of one, from any model behind the OpenAI API.

One question a set of candidates; failures stay failures. What was answered once is read from the cache, so
a run that was killed, or stopped at --max_cost, goes on where it was.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tqdm.auto import tqdm

from helpers.errors import CourseError
from helpers.files import fingerprint
from helpers.judging import llm_prompt as prompt
from helpers.judging.judge import Candidates, Choice, Comparison, CostReached, Verdict, verdict_of
from helpers.judging.llm_cache import VerdictCache
from helpers.judging.llm_client import LLMClient, Question, Reply, Stopped
from helpers.judging.llm_cost import Estimate, OverBudget, estimate

LETTER_TOKENS = 1  # small models go on talking after the letter; the rest is neither paid for nor read
GIVE_UP_AFTER = 8  # questions without any answer at the start: the server is not there, or not what we think


@dataclass(frozen=True)
class Task:
    """A question, the key its answer is kept under, and how to read the answer (raises Unreadable)."""

    key: str
    question: Question
    read: Callable[[str], dict[str, Any]]


class Asker:
    """Puts questions to a client: cache first, then several threads, within the budget."""

    def __init__(self, client: LLMClient, cache: VerdictCache, concurrency: int, name: str) -> None:
        self.client, self.cache, self.concurrency, self.name = client, cache, concurrency, name
        self.announce = True

    def estimate(self, tasks: Sequence[Task]) -> Estimate:
        """What these would cost, without asking."""
        unique = {task.key: task for task in tasks}
        open_tasks = [task for key, task in unique.items() if self.cache.get(key) is None]
        sizes = [task.question.size for task in open_tasks]
        longest = max((task.question.max_tokens for task in open_tasks), default=0)
        return estimate(sizes, len(unique) - len(open_tasks), self.client.budget.price, longest)

    def ask(self, tasks: Sequence[Task]) -> list[dict[str, Any]]:
        """One answer a task: what `read` returned, or {"status": …, "reason": …}. Equal tasks are asked once.

        Raises:
            CourseError: at --max_cost, without a valid key, for an unknown model, or where nobody answers.
        """
        if self.announce and tasks:
            tqdm.write(self.estimate(tasks).render(self.name), file=sys.stderr)
        unique = {task.key: task for task in tasks}
        found = {key: answer for key in unique if (answer := self.cache.get(key)) is not None}
        rest = [task for key, task in unique.items() if key not in found]
        found.update(self._ask_all(rest, done=len(found)))
        return [found[task.key] for task in tasks]

    def _ask_all(self, tasks: Sequence[Task], done: int) -> dict[str, dict[str, Any]]:
        """Ask in threads. The first fatal problem stops the rest; what was under way is still kept."""
        found: dict[str, dict[str, Any]] = {}
        problem: CourseError | OverBudget | None = None
        self.client.stop.clear()
        queue = iter(tasks)
        bar = tqdm(total=len(tasks), desc=self.name, unit="verdict", disable=not tasks, file=sys.stderr)
        with ThreadPoolExecutor(self.concurrency, thread_name_prefix="judge") as pool, bar:
            running: dict[Future[dict[str, Any]], Task] = {}
            try:
                while True:
                    while problem is None and len(running) < self.concurrency:
                        if (task := next(queue, None)) is None:
                            break
                        running[pool.submit(self._ask_one, task)] = task
                    if not running:
                        break
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        task = running.pop(future)
                        try:
                            found[task.key] = future.result()
                        except (CourseError, OverBudget) as met:
                            problem = problem or met
                            self._stop_unless_over_budget(met)
                        except Stopped:
                            continue
                        bar.update()
                        bar.set_postfix_str(self.client.budget.render(), refresh=False)
                    problem = problem or self._nobody_answers(found)
            finally:
                self.client.stop.set()  # after Ctrl-C nobody sleeps before another attempt
        self._tell_notes()
        if problem is not None:
            raise self._explained(problem, done + _readable(found))
        return found

    def _stop_unless_over_budget(self, met: Exception) -> None:
        """Requests under way at the limit are paid for: they may end. Other problems meet them too."""
        if not isinstance(met, OverBudget):
            self.client.stop.set()

    def _ask_one(self, task: Task) -> dict[str, Any]:
        reply: Reply = self.client.ask(task.question)
        if reply.status != "ok":
            return {"status": reply.status, "reason": reply.text}
        try:
            answer = task.read(reply.text)
        except prompt.Unreadable as problem:
            return {"status": "unparsed", "reason": str(problem)}
        self.cache.put(task.key, answer, {"judge": self.name})
        return answer

    def _nobody_answers(self, found: dict[str, dict[str, Any]]) -> CourseError | None:
        if len(found) < GIVE_UP_AFTER or any(answer.get("status") != "missing" for answer in found.values()):
            return None
        if not self.client.stop.is_set():
            self.client.stop.set()
        reason = next(iter(found.values()))["reason"]
        return CourseError(
            f"{self.client.place} gave no answer to the first {len(found)} questions: {reason};"
            " check --judge_base_url and that the server runs"
        )

    def _tell_notes(self) -> None:
        for note in self.client.notes:
            tqdm.write(note, file=sys.stderr)
        self.client.notes.clear()

    def _explained(self, problem: CourseError | OverBudget, judged: int) -> CourseError:
        budget = self.client.budget
        if isinstance(problem, OverBudget):
            return CostReached(
                f"--max_cost ${budget.limit:.2f} would be passed: {budget.render()} spent, {judged} verdicts"
                " are there and kept; the same command with a higher --max_cost continues with the rest"
                + ("" if self.cache.directory else " (not kept: --judge_cache is none)")
            )
        kept = f"; {judged} verdicts are kept" if judged and self.cache.directory else ""
        return CourseError(f"{problem}{kept}")


def _readable(found: dict[str, dict[str, Any]]) -> int:
    return sum(answer.get("status", "ok") == "ok" for answer in found.values())


class LLMJudge:
    """A judge behind the OpenAI API. Its verdicts are a model's opinion."""

    is_proxy = True

    def __init__(
        self, client: LLMClient, cache: VerdictCache, *, form: str, concurrency: int, max_tokens: int
    ) -> None:
        if form not in ("json", "letter"):
            raise CourseError(f"--judge_format is json or letter, not {form}")
        self.client, self.form, self.max_tokens = client, form, max_tokens
        host = urlsplit(client.base_url).netloc if client.base_url else "openai"
        model = Path(client.model).name if Path(client.model).is_absolute() else client.model
        self.name = f"openai:{model}" if host == "openai" else f"{model} at {host}"
        self.asker = Asker(client, cache, concurrency, self.name)
        self.instructions = prompt.instructions("choice_v1" if form == "json" else "letter_v1")

    @property
    def instructions_hash(self) -> str:
        """Hash of the instructions, for results."""
        return self.instructions.hash

    def compare(self, comparisons: Sequence[Comparison]) -> list[Verdict]:
        """Return one verdict for each comparison."""
        pairs = [Candidates(one.example, (one.response_a, one.response_b)) for one in comparisons]
        return [verdict_of(choice) for choice in self.choose(pairs)]

    def choose(self, candidates: Sequence[Candidates]) -> list[Choice]:
        """Return best and worst of each set, in one question; by letters in two where there are three."""
        if self.form == "json":
            return [
                _choice(answer) for answer in self.asker.ask([self._json_task(one) for one in candidates])
            ]
        answers = self.asker.ask([task for one in candidates for task in self._letter_tasks(one)])
        rest = iter(answers)
        return [_by_letters(one, [next(rest) for _ in _sides(one)]) for one in candidates]

    def estimate(self, candidates: Sequence[Candidates]) -> Estimate:
        """What `choose` would cost."""
        if self.form == "json":
            return self.asker.estimate([self._json_task(one) for one in candidates])
        return self.asker.estimate([task for one in candidates for task in self._letter_tasks(one)])

    def _json_task(self, one: Candidates) -> Task:
        count = len(one.responses)
        user = prompt.choice_text(one.example.messages, one.responses)
        schema = prompt.schema_of(prompt.choice_model(count))
        question = Question(self.instructions.text, user, schema, self.max_tokens)
        return self.task(question, lambda text: _stored(prompt.read_choice(text, count)))

    def _letter_tasks(self, one: Candidates) -> list[Task]:
        count = len(one.responses)

        def read(text: str) -> dict[str, Any]:
            return {"place": prompt.read_letter(text, count)}

        texts = [prompt.letter_text(one.example.messages, one.responses, side) for side in _sides(one)]
        return [
            self.task(Question(self.instructions.text, text, None, LETTER_TOKENS), read) for text in texts
        ]

    def task(self, question: Question, read: Callable[[str], dict[str, Any]]) -> Task:
        """A question with the key of all that could change its answer: whom, how and what is asked."""
        client = self.client
        asked = [client.model, client.place, client.temperature_wanted, asdict(question)]
        return Task(fingerprint(self.instructions.hash, asked), question, read)


def _sides(one: Candidates) -> tuple[str, ...]:
    """Of two the better is asked for; of more the best and the worst."""
    return ("better",) if len(one.responses) == 2 else ("best", "worst")


def _stored(choice: Choice) -> dict[str, Any]:
    return {**asdict(choice), "exclude_tags": list(choice.exclude_tags)}


def _choice(answer: dict[str, Any]) -> Choice:
    """A stored choice, or a failure."""
    if answer["status"] != "ok":
        return Choice(None, None, reason=answer["reason"], status=answer["status"])
    return replace(Choice(**answer), exclude_tags=tuple(answer["exclude_tags"]))


def _by_letters(one: Candidates, answers: Sequence[dict[str, Any]]) -> Choice:
    for answer in answers:
        if "place" not in answer:
            return Choice(None, None, reason=answer["reason"], status=answer["status"])
    best = answers[0]["place"]
    worst = 1 - best if len(one.responses) == 2 else answers[1]["place"]
    if best == worst:
        return Choice(None, None, reason="best and worst are the same answer", status="unparsed")
    return Choice(best, worst)
