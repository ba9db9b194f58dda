"""Chat encoding on templates of every kind: one BOS, one end of turn, nothing lost, nothing smuggled in."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.errors import CourseError
from helpers.text.chat import Budget, ChatEncoder
from helpers.text.messages import user
from helpers.text.template import render

END_OF_TURN = {
    "qwen2": "<|im_end|>",
    "qwen3": "<|im_end|>",
    "smollm2": "<|im_end|>",
    "base eos": "<|im_end|>",
    "llama2": "</s>",
    "llama3": "<|eot_id|>",
    "gemma": "<end_of_turn>",
    "zephyr": "</s>",
    "vicuna": "</s>",
    "phi3": "<|end|>",
}
TYPED = "a <|im_end|></s><|eot_id|> b <end_of_turn><s><|endoftext|><bos>\n<|end|> c"
CONVERSATION = [
    {"role": "system", "content": "Be kind."},
    user("Hello there"),
    {"role": "assistant", "content": "I am fine."},
    user("And the dogs?"),
]


@pytest.fixture(scope="module")
def encoder(kind, make_tokenizer) -> ChatEncoder:
    return ChatEncoder(make_tokenizer(kind))


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def whole(encoder: ChatEncoder, messages: list[dict[str, str]]) -> list[int]:
    """Ids of the template's text of a finished conversation, cut after the last end of turn."""
    text = render(encoder.tokenizer, messages, generation_prompt=False)
    ids = encoder.tokenizer(text, add_special_tokens=False)["input_ids"]
    last = max(place for place, token in enumerate(ids) if token == encoder.end_of_turn_id)
    return ids[: last + 1]


# What is derived from the template


def test_the_end_of_turn_is_what_the_template_puts_after_an_answer(encoder, kind):
    assert encoder.tokenizer.convert_ids_to_tokens(encoder.end_of_turn_id) == END_OF_TURN[kind]


def test_every_eos_ends_a_response(make_tokenizer):
    """TRL #7039: a model with several EOS ids stops at any of them."""
    tokenizer = make_tokenizer("llama3")
    end_of_message = tokenizer.convert_tokens_to_ids("<|eom_id|>")
    encoder = ChatEncoder(tokenizer, eos_ids=[end_of_message])
    names = set(tokenizer.convert_ids_to_tokens(sorted(encoder.eos_ids)))
    assert names == {"<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"}
    body = encoder.encode_response("Yes.", complete=False)
    for stop in encoder.eos_ids:
        assert encoder.decode([*body, stop, *body]) == "Yes."
        assert encoder.is_complete([*body, stop])
    assert not encoder.is_complete(body)
    assert ChatEncoder(tokenizer, eos_ids=end_of_message).eos_ids == encoder.eos_ids


def test_without_a_pad_token_the_eos_pads(make_tokenizer):
    assert ChatEncoder(make_tokenizer("llama3")).pad_id == make_tokenizer("llama3").eos_token_id
    assert ChatEncoder(make_tokenizer("gemma")).pad_id == make_tokenizer("gemma").pad_token_id
    only_end_of_turn = make_tokenizer("phi3", eos_token=None, pad_token=None)
    only_end_of_turn.chat_template = only_end_of_turn.chat_template.replace("eos_token", "''")
    encoder = ChatEncoder(only_end_of_turn)
    assert encoder.pad_id == encoder.end_of_turn_id


# One BOS, one end of turn


def test_exactly_one_bos_where_the_template_has_one(encoder, kind):
    """open-r1 #462, TRL #1114: the tokenizer's own BOS on top of the template's gives two."""
    ids = encoder.encode_prompt([user("Hello there")])
    bos = encoder.tokenizer.bos_token_id
    has_bos = kind in ("llama2", "llama3", "gemma", "smollm2")
    assert encoder.bos_id == (bos if has_bos else None)
    if has_bos:
        assert ids[0] == bos
        assert ids[1] != bos
    if kind in ("llama2", "llama3", "gemma"):
        assert ids.count(bos) == 1
        text = render(encoder.tokenizer, [user("Hello there")], generation_prompt=True)
        doubled = encoder.tokenizer(text)["input_ids"]
        assert doubled.count(bos) == 2, "the common slip doubles it, so this test can tell"
    assert bos not in encoder.encode_response("Yes.")


def test_a_template_that_writes_two_bos_is_refused(make_tokenizer):
    doubled = "{{ bos_token }}" + make_tokenizer("gemma").chat_template
    with pytest.raises(CourseError, match="'<bos>' twice"):
        ChatEncoder(make_tokenizer("gemma", chat_template=doubled))


def test_exactly_one_end_of_turn_on_a_complete_response_and_none_on_a_truncated_one(encoder):
    complete = encoder.encode_response("I am fine.")
    assert complete[-1] == encoder.end_of_turn_id
    assert sum(token in encoder.eos_ids for token in complete) == 1, "TRL #4908: no second EOS"
    for length in range(1, len(complete)):
        truncated = encoder.encode_response("I am fine.", max_tokens=length)
        assert truncated == complete[:length]
        assert encoder.eos_ids.isdisjoint(truncated)
    assert encoder.encode_response("I am fine.", max_tokens=len(complete)) == complete
    assert encoder.eos_ids.isdisjoint(encoder.encode_response("I am fine.", complete=False))


# Prompt and response join to what the template writes


def test_joined_parts_equal_the_template(encoder, kind):
    """TRL #6433: encoding a prompt alone and finding it in the whole loses tokens; joining cannot."""
    prompt, response = encoder.encode_prompt([user("Hello there")]), encoder.encode_response("42 cats sat.")
    together = whole(encoder, [user("Hello there"), assistant("42 cats sat.")])
    if kind == "vicuna":  # "ASSISTANT: " + "42": the space merges into the answer's first token
        assert not encoder.matches_template
        assert together[: len(prompt)] != prompt, "the common slip would cut in the wrong place here"
        assert encoder.tokenizer.decode(prompt + response) == encoder.tokenizer.decode(together)
    else:
        assert encoder.matches_template
        assert prompt + response == together


@pytest.mark.parametrize(
    "kind", sorted(set(END_OF_TURN) - {"vicuna", "gemma"})
)  # whose roles or joins differ
def test_joined_parts_equal_the_template_over_several_turns(make_tokenizer, kind):
    encoder = ChatEncoder(make_tokenizer(kind))
    together = whole(encoder, [*CONVERSATION, assistant("They sat on the mat.")])
    assert encoder.encode_prompt(CONVERSATION) + encoder.encode_response("They sat on the mat.") == together


@pytest.mark.parametrize("kind", ["llama2", "llama3", "gemma"])
def test_an_answer_is_trimmed_where_the_template_trims_it(make_tokenizer, kind):
    encoder = ChatEncoder(make_tokenizer(kind))
    assert encoder.encode_response("  Yes. \n") == encoder.encode_response("Yes.")
    joined = encoder.encode_prompt([user("Hello")]) + encoder.encode_response("  Yes. \n")
    assert joined == whole(encoder, [user("Hello"), assistant("  Yes. \n")])


def test_an_answer_keeps_its_white_space_where_the_template_does(make_tokenizer):
    encoder = ChatEncoder(make_tokenizer("qwen2"))
    assert encoder.decode(encoder.encode_response("  Yes. \n")) == "  Yes. \n"


def test_text_that_opens_every_answer_belongs_to_the_prompt(make_tokenizer):
    encoder = ChatEncoder(make_tokenizer("qwen3"))
    prompt = encoder.tokenizer.decode(encoder.encode_prompt([user("Hello")]))
    assert prompt.endswith("assistant\n<think>\n\n</think>\n\n")
    assert encoder.decode(encoder.encode_response("Hi.")) == "Hi."


def test_white_space_around_a_llama2_answer_is_encoded_and_removed_again(make_tokenizer):
    encoder = ChatEncoder(make_tokenizer("llama2"))
    ids = encoder.encode_response("Yes.")
    assert encoder.tokenizer.convert_ids_to_tokens(ids)[-2:] == ["▁", "</s>"]
    assert encoder.decode(ids) == "Yes."


# Roles


def test_a_system_message_reaches_the_prompt_even_without_a_system_role(encoder, kind):
    text = encoder.tokenizer.decode(encoder.encode_prompt(CONVERSATION))
    assert text.count("Be kind.") == 1
    assert text.index("Be kind.") < text.index("Hello there") < text.index("I am fine.") < text.index("dogs")
    if kind == "gemma":
        assert "<start_of_turn>user\nBe kind.\n\nHello there<end_of_turn>" in text


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        ([], "no user message"),
        (["system"], "no user message"),
        (["user", "user"], "expected assistant, found user"),
        (["assistant", "user"], "expected user, found assistant"),
        (["user", "assistant"], "ends with the user"),
        (["user", "assistant", "tool"], "expected user, found tool"),
        (["user", "system", "user"], "expected assistant, found system"),
    ],
)
def test_a_bad_order_of_roles_is_refused(make_tokenizer, roles, words):
    encoder = ChatEncoder(make_tokenizer("qwen2"))
    with pytest.raises(CourseError, match=words):
        encoder.encode_prompt([{"role": role, "content": "x"} for role in roles])


# Text never becomes a control token


def control_ids(encoder: ChatEncoder) -> set[int]:
    return {key for key, token in encoder.tokenizer.added_tokens_decoder.items() if token.special}


def test_control_tokens_typed_in_a_response_stay_text(encoder):
    ids = encoder.encode_response(TYPED)
    assert control_ids(encoder).isdisjoint(ids[:-1])
    assert ids[-1] == encoder.end_of_turn_id
    assert encoder.decode(ids) == TYPED


def test_control_tokens_typed_in_a_prompt_stay_text(encoder):
    plain, typed = (
        encoder.encode_prompt(
            [{"role": "system", "content": text}, user(f"x {text} y"), assistant(text), user("z")]
        )
        for text in ("harmless", TYPED)
    )
    controls = control_ids(encoder)
    assert [i for i in typed if i in controls] == [i for i in plain if i in controls]
    decoded = encoder.tokenizer.decode(typed)
    assert decoded == encoder.tokenizer.decode(plain).replace("harmless", TYPED)


def test_even_a_control_token_not_marked_special_stays_text(make_tokenizer):
    tokenizer = make_tokenizer("qwen2", eos_token=None)
    tokenizer.add_tokens(["[END]"], special_tokens=False)
    tokenizer.chat_template = tokenizer.chat_template.replace("<|im_end|>", "[END]")
    encoder = ChatEncoder(tokenizer)
    assert encoder.end_of_turn_id == tokenizer.convert_tokens_to_ids("[END]")
    ids = encoder.encode_response("so [END] it goes")
    assert ids.count(encoder.end_of_turn_id) == 1
    assert encoder.decode(ids) == "so [END] it goes"
    prompt = encoder.encode_prompt([user("so [END] it goes")])
    assert prompt.count(encoder.end_of_turn_id) == 2  # of the system and the user message


def test_private_use_characters_in_the_text_survive_the_masking(make_tokenizer):
    encoder = ChatEncoder(make_tokenizer("qwen2"))
    text = "\ue000 <|im_end|> \ue0000\ue000"
    assert text in encoder.tokenizer.decode(encoder.encode_prompt([user(text)]))


# Truncation


def test_a_truncated_prompt_keeps_its_bos_and_its_end(encoder):
    ids = encoder.encode_prompt([user("Hello there " * 20)])
    for length in (len(ids), 9, 2):
        short = encoder.encode_prompt([user("Hello there " * 20)], max_tokens=length)
        assert len(short) == length
        if encoder.bos_id is None:
            assert short == ids[-length:]
        else:
            assert short == [ids[0], *ids[len(ids) - length + 1 :]]


def test_a_budget_without_room_is_refused(make_tokenizer):
    with pytest.raises(CourseError, match="no room"):
        ChatEncoder(make_tokenizer("gemma")).encode_prompt([user("Hello")], max_tokens=1)
    with pytest.raises(CourseError, match="max_new_tokens must be at least 1, not 0"):
        Budget(max_new_tokens=0)
    assert (Budget().max_prompt_tokens, Budget().max_response_tokens, Budget().max_new_tokens) == (
        700,
        512,
        256,
    )


# Templates that cannot be trained on


def test_a_tokenizer_without_a_chat_template_says_what_to_do(make_tokenizer):
    with pytest.raises(
        CourseError, match="no chat template.*instruct version, or set tokenizer.chat_template"
    ):
        ChatEncoder(make_tokenizer("qwen2", chat_template=None))


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (
            "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}",
            "no control token",
        ),
        ("{% for m in messages %}{{ m['content'] }}{% endfor %}", "no control token"),
        ("{% for m in messages %}{{ m['content']|upper + eos_token }}{% endfor %}", "alters or drops"),
        (
            "{% for m in messages %}{{ m['content'] + eos_token }}{% endfor %}"
            "{% if add_generation_prompt %}{{ 'ANSWER' }}{% endif %}",
            "writes finished answers differently",
        ),
        ("{{ raise_exception('only tools here') }}", "only tools here"),
        ("{% for m in messages %}", "refuses a conversation"),
    ],
)
def test_a_template_that_cannot_work_is_refused_with_the_reason(make_tokenizer, template, words):
    with pytest.raises(CourseError, match=words):
        ChatEncoder(make_tokenizer("qwen2", chat_template=template))


# Identity


def test_the_fingerprint_follows_what_changes_the_ids_and_nothing_else(make_tokenizer):
    first = ChatEncoder(make_tokenizer("qwen2"))
    used = make_tokenizer("qwen2")
    used(["a", "b c d"], padding=True, truncation=True, max_length=2)  # leaves padding behind in the backend
    assert ChatEncoder(used).fingerprint == first.fingerprint
    changed = [
        ChatEncoder(make_tokenizer("qwen2"), eos_ids=[0]),
        ChatEncoder(make_tokenizer("smollm2")),
        ChatEncoder(make_tokenizer("qwen2", pad_token="<|im_end|>")),
        ChatEncoder(make_tokenizer("llama2")),
    ]
    fingerprints = {encoder.fingerprint for encoder in [first, *changed]}
    assert len(fingerprints) == 5


# Any text

pieces = st.sampled_from(
    ["Hello", " ", "\n", "cats", "<|im_end|>", "</s>", "é", "日本", "🙂", "\u2028", ".", "  "]
)
texts = st.one_of(st.lists(pieces, min_size=1, max_size=8).map("".join), st.text(min_size=1, max_size=20))


@given(texts)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("kind", ["qwen2", "smollm2", "llama3"])
def test_any_text_comes_back_and_ends_once(make_tokenizer, kind, text):
    encoder = ChatEncoder(make_tokenizer(kind))
    ids = encoder.encode_response(text)
    assert encoder.decode(ids) == (text.strip() if kind == "llama3" else text)
    assert [token in encoder.eos_ids for token in ids] == [False] * (len(ids) - 1) + [True]
    prompt = encoder.encode_prompt([user(text)])
    assert [i for i in prompt if i in control_ids(encoder)] == [
        i for i in encoder.encode_prompt([user("x")]) if i in control_ids(encoder)
    ]
