"""The page: widgets, and which of them calls what."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from helpers.apps.demo import looks
from helpers.apps.demo.gallery import PICKS, Gallery
from helpers.apps.demo.lineup import BASE, LETTERS, LONGEST_ANSWER, MOST_COLUMNS, Contest
from helpers.apps.demo.view import Desk, Panel, Stop, View, counted, explain

SHOWN = 3  # policies ticked at the start


@dataclass(frozen=True)
class PageSettings:
    """What the page starts with."""

    model_name: str
    prompts: Sequence[str]  # to click on
    gallery: Callable[[str, Callable[[float], None]], Gallery] | None = None  # of a policy, with progress
    max_new_tokens: int = 128
    votes: str = "votes"  # the directory, as `train --dataset_name` takes it


@dataclass
class Widgets:
    """The widgets that change while a comparison runs."""

    status: Any
    groups: list[Any]
    titles: list[Any]
    answers: list[Any]
    buttons: list[Any]  # one vote a column
    tie: Any
    names: Any
    contest: Any

    @property
    def all(self) -> list[Any]:
        """In the order of `Painter.view`."""
        return [
            self.status,
            self.contest,
            self.tie,
            self.names,
            *self.groups,
            *self.titles,
            *self.answers,
            *self.buttons,
        ]


class Painter:
    """Views into updates of widgets."""

    def __init__(self, columns: int) -> None:
        self.columns = columns

    def view(self, view: View) -> list[Any]:
        """One update a widget, in the order of `Widgets.all`."""
        import gradio as gr

        panels: list[Panel | None] = [*view.panels, *[None] * (self.columns - len(view.panels))]
        vote = gr.update(visible=view.may_vote)
        return [
            str(looks.status(view.status, view.failed)),
            view.contest,
            vote,
            vote,
            *[gr.update(visible=panel is not None) for panel in panels],
            *[str(looks.title(panel)) if panel else "" for panel in panels],
            *[panel.text if panel else "" for panel in panels],
            *[vote for _ in panels],
        ]


def build_page(desk: Desk, settings: PageSettings) -> Any:
    """The Blocks of the demo."""
    import gradio as gr

    with gr.Blocks(title="Chat demo", analytics_enabled=False) as page:
        gr.HTML(str(looks.head(settings.model_name)))
        with gr.Tab("Compare"):
            compare_tab(desk, settings)
        with gr.Tab("Gallery"):
            gallery_tab(desk, settings)
        with gr.Tab("Votes") as tab:
            votes_tab(desk, settings, tab)
    return page


def compare_tab(desk: Desk, settings: PageSettings) -> None:
    """A prompt, the answers, a vote."""
    import gradio as gr

    policies = desk.lineup.policies
    with gr.Row(equal_height=True):
        prompt = gr.Textbox(
            label="Prompt (Enter sends, Shift+Enter starts a new line)",
            lines=1,
            max_lines=8,
            scale=8,
            min_width=280,
            autofocus=True,
            placeholder="Ask something",
            elem_id="prompt",
        )
        send = gr.Button("Send", variant="primary", scale=1, min_width=110, elem_id="send")
        stop = gr.Button("Stop", scale=1, min_width=90, elem_id="stop")
    if settings.prompts:
        gr.Examples([[text] for text in settings.prompts], [prompt], label="Prompts to try")
    with gr.Row():
        with gr.Column(scale=5, min_width=260):
            chosen = gr.CheckboxGroup(policies, value=policies[:SHOWN], label="Policies")
        with gr.Column(scale=3, min_width=260):
            blind = gr.Checkbox(
                True, label="Blind", info="Shuffled and unnamed until the vote; only then a vote counts"
            )
    width: dict[str, Any] = {"min_width": 230}
    with gr.Accordion("Sampling", open=False), gr.Row():
        temperature = gr.Slider(
            0, 2, 0.7, step=0.05, label="Temperature", info="0: the likeliest token", **width
        )
        top_p = gr.Slider(
            0.05, 1, 0.95, step=0.05, label="Top-p", info="share of the distribution that is kept", **width
        )
        length = gr.Slider(
            1, LONGEST_ANSWER, settings.max_new_tokens, step=1, label="Max new tokens", **width
        )
        seed = gr.Number(0, label="Seed", precision=0, **width)
    widgets = answer_widgets(min(len(policies), MOST_COLUMNS))
    painter = Painter(len(widgets.groups))

    def ask(*values: Any) -> Iterator[list[Any]]:
        for view in desk.ask(*values):
            yield painter.view(view)

    wish = gr.State(Stop())
    inputs = [prompt, chosen, temperature, top_p, length, seed, blind, wish]
    quiet: dict[str, Any] = {"show_progress": "hidden"}
    gr.on([send.click, prompt.submit], ask, inputs, widgets.all, api_name="ask", **quiet)
    stop.click(ask_to_stop, wish, None, api_name="stop", queue=False, **quiet)
    connect_votes(desk, painter, widgets)


def ask_to_stop(wish: Stop) -> None:
    """The answer that is being written sees it after its next token. (Gradio's own `cancels` closes the line
    on which the next answer would come.)"""
    wish.asked = True


def answer_widgets(columns: int) -> Widgets:
    """The status line and empty columns, hidden until there are answers."""
    import gradio as gr

    status = gr.HTML(str(looks.status("")), elem_id="status")
    groups, titles, answers, buttons = [], [], [], []
    with gr.Row(equal_height=True):
        for letter in LETTERS[:columns]:
            with gr.Column(
                min_width=270, visible=False, elem_classes="demo-answer", elem_id=f"column-{letter}"
            ) as group:
                titles.append(gr.HTML(elem_id=f"title-{letter}"))
                answers.append(
                    gr.Textbox(
                        label=f"Answer {letter}",
                        show_label=False,
                        container=False,
                        interactive=False,
                        lines=4,
                        max_lines=60,
                        elem_id=f"answer-{letter}",
                    )
                )
                buttons.append(gr.Button(f"{letter} is best", visible=False, elem_id=f"vote-{letter}"))
            groups.append(group)
    with gr.Row():
        tie = gr.Button("No difference", visible=False, elem_id="vote-tie", min_width=160)
        names = gr.Button("Show names without voting", visible=False, elem_id="names", min_width=160)
    return Widgets(status, groups, titles, answers, buttons, tie, names, gr.State(None))


def connect_votes(desk: Desk, painter: Painter, widgets: Widgets) -> None:
    """A vote a column, the tie, and giving up."""

    def voter(choice: int | None) -> Callable[[Contest | None], list[Any]]:
        return lambda contest: painter.view(desk.vote(contest, choice))

    for place, button in [*enumerate(widgets.buttons), (None, widgets.tie)]:
        name = f"vote_{LETTERS[place].lower()}" if place is not None else "vote_tie"
        button.click(voter(place), [widgets.contest], widgets.all, api_name=name, show_progress="hidden")
    widgets.names.click(
        lambda contest: painter.view(desk.give_up(contest)),
        [widgets.contest],
        widgets.all,
        api_name="names",
        show_progress="hidden",
    )


def gallery_tab(desk: Desk, settings: PageSettings) -> None:
    """Examples picked by reward gain, and the same page with a random draw."""
    import gradio as gr

    others = [name for name in desk.lineup.policies if name != BASE]
    if settings.gallery is None or not others:
        gr.HTML(str(looks.caption("The gallery needs an adapter, a reward model and held-out prompts.")))
        return
    with gr.Row():
        with gr.Column(scale=3, min_width=240):
            policy = gr.Dropdown(others, value=others[-1], label="Policy, compared with base")
        with gr.Column(scale=5, min_width=260):
            how = gr.Radio(list(PICKS), value=PICKS[0], label="Which examples")
    show = gr.Button("Answer the held-out prompts and show", variant="primary", elem_id="show-gallery")
    wall = gr.HTML(elem_id="gallery")
    make = settings.gallery

    bar = gr.Progress()

    def hang(name: str, picked: str, progress: Any = bar) -> str:
        try:
            found = make(name, lambda share: progress(share, desc="answering held-out prompts"))
            changes = found.pick(picked)
            return str(
                looks.caption(found.caption(picked, len(changes)))
                + looks.cards(changes, found.baseline, found.policy)
            )
        except Exception as problem:
            return str(looks.status(explain(problem), failed=True))

    gr.on([show.click, how.change, policy.change], hang, [policy, how], wall, api_name="gallery")


def votes_tab(desk: Desk, settings: PageSettings, tab: Any) -> None:
    """The running win rates."""
    import gradio as gr

    table = gr.HTML(elem_id="standings")
    gr.Markdown(
        "A vote for one answer is a win over each of the others and says nothing of these among themselves;"
        " “no difference” and equal texts count a half. The interval is Wilson's.\n\n"
        f"Train on the votes: `python -m helpers train --algo dpo --dataset_name {settings.votes}`"
    )

    def count() -> str:
        ballots = desk.votes.ballots
        first = sum(ballot["choice"] == 0 for ballot in ballots)
        lines = looks.standings(desk.votes.standings(), BASE)
        if not ballots:
            return str(lines)
        words = f"{counted(len(ballots), 'vote')}; the first column was picked {counted(first, 'time')}."
        return str(looks.caption(words) + lines)

    tab.select(count, None, table, api_name="standings", show_progress="hidden")
