"""OpenAssistant message trees: flat rows that name their parent (Köpf et al. 2023, arXiv 2304.07327)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from helpers.text.formats import Example, Row, RowError, make_example, text_of
from helpers.text.messages import ROLE_NAMES, Message
from helpers.text.report import LoadReport
from helpers.text.rows import SourceRow

NAME = "oasst"
FIELDS = ("message_id", "parent_id", "text", "role")
Nodes = dict[str, tuple[str, Row]]  # message id: where it stands, and the row


def is_tree_row(row: Row) -> bool:
    """True for a row of an OpenAssistant file."""
    return all(name in row for name in FIELDS)


def tree_examples(rows: list[SourceRow], kind: str, report: LoadReport) -> Iterator[Example]:
    """One example for every user message that has an answer, the conversation so far as its prompt.

    sft takes the best-ranked answer, preference the best against the worst (rank 0 is the best). What
    cannot be used is counted in `report`: messages without parent, user messages without ranked answers.
    """
    nodes = _nodes(rows, report)
    answers = defaultdict(list)
    for _, node in nodes.values():
        if _role(node) == "assistant":
            answers[node["parent_id"]].append(node)
    for where, node in nodes.values():
        if _role(node) != "user":
            continue
        try:
            yield _example(node, nodes, answers[node["message_id"]], kind)
        except RowError as problem:
            report.drop(problem.reason, where, problem.detail)


def _nodes(rows: list[SourceRow], report: LoadReport) -> Nodes:
    """Usable messages by id; deleted and malformed ones are counted in `report`."""
    nodes: Nodes = {}
    for row in rows:
        node = row.data or {}
        try:
            for name in ("message_id", "text", "role"):
                text_of(node, name)
            if node.get("parent_id") is not None:
                text_of(node, "parent_id")
            if node.get("deleted"):
                raise RowError("deleted by its author")
        except RowError as problem:
            report.drop(problem.reason, row.where, problem.detail)
            continue
        nodes[node["message_id"]] = (row.where, {"parent_id": None, **node})
    return nodes


def _role(node: Row) -> str:
    return str(ROLE_NAMES.get(node["role"], node["role"]))


def _example(node: Row, nodes: Nodes, answers: list[Row], kind: str) -> Example:
    responses = [answer["text"] for answer in _choose(answers, kind)]
    used = ("message_id", "parent_id", "text", "role", "rank")
    return make_example(node, node["message_id"], _path(node, nodes), responses, used)


def _choose(answers: list[Row], kind: str) -> list[Row]:
    """The answers an example of `kind` learns from."""
    if kind == "prompts":
        return []
    if not answers:
        raise RowError("user message without an answer")
    if kind == "sft" and len(answers) == 1:
        return answers
    ranked = [answer for answer in answers if isinstance(answer.get("rank"), (int, float))]
    ranked.sort(key=lambda answer: answer["rank"])
    if kind == "sft" and ranked:
        return ranked[:1]
    if len(ranked) < 2 or ranked[0]["rank"] == ranked[-1]["rank"]:
        raise RowError("fewer than two ranked answers")
    return [ranked[0], ranked[-1]]


def _path(node: Row, nodes: Nodes) -> list[Message]:
    """The conversation that ends with `node`."""
    path: list[Message] = []
    seen = set()
    at: Row | None = node
    while at is not None:
        if at["message_id"] in seen:
            raise RowError("message is its own ancestor", at["message_id"])
        seen.add(at["message_id"])
        path.append({"role": _role(at), "content": at["text"]})
        parent = at["parent_id"]
        if parent is not None and parent not in nodes:
            raise RowError("parent message is missing", parent)
        at = nodes[parent][1] if parent is not None else None
    return path[::-1]
