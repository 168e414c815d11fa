"""Text and conversations into requests, and generated tokens back into text."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.request import SamplingParams
from testbed.engine.model import Model, load_model
from testbed.engine.smollm2 import convert
from testbed.engine.text import ModelTokenizer, load_tokenizer
from tests.engine.building import Models, reference, run_engine
from tests.engine.tiny_gguf import TOKENS, tiny_smollm2

CONVERSATION = [{"role": "system", "content": "hi 12"}, {"role": "user", "content": "ou"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("tiny")
    convert(tiny_smollm2(folder / "tiny.gguf")[0], folder / "model")
    return load_model(str(folder / "model"))


@pytest.fixture(scope="module")
def tokenizer(model: Model) -> ModelTokenizer:
    return load_tokenizer(model)


def ids(*tokens: str) -> list[int]:
    return [TOKENS.index(token) for token in tokens]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("hi", ["hi"]),
        # Digits stand alone, although the merges know "12" and "hi1".
        ("hi 12", ["hi", "Ġ", "1", "2"]),
        ("hi1", ["hi", "1"]),
        # A space belongs to the word after it; "our" needs both merges.
        ("our hi", ["our", "Ġ", "hi"]),
        ("é", ["Ã", "©"]),
        ("<|im_start|>hi", ["<|im_start|>", "hi"]),
    ],
)
def test_text_is_cut_as_smollm2_cuts_it(
    tokenizer: ModelTokenizer, text: str, tokens: list[str]
) -> None:
    encoded = tokenizer.encode(text)
    assert encoded.tolist() == ids(*tokens)
    assert encoded.dtype == np.int32


def test_a_conversation_goes_through_the_chat_template(tokenizer: ModelTokenizer) -> None:
    expected = ids("<|im_start|>", *"system", "Ċ", "hi", "Ġ", "1", "2", "<|im_end|>", "Ċ")
    expected += ids("<|im_start|>", *"user", "Ċ", "ou", "<|im_end|>", "Ċ")
    expected += ids("<|im_start|>", *"assistant", "Ċ")
    assert tokenizer.encode(CONVERSATION).tolist() == expected


def test_decoding_leaves_special_tokens_out(tokenizer: ModelTokenizer) -> None:
    tokens = np.array(ids("our", "Ġ", "hi", "Ã", "©", "<|im_end|>"), dtype=np.int32)
    assert tokenizer.decode(tokens) == "our hié"
    assert tokenizer.decode(tokenizer.encode("hi 12\n\tour")) == "hi 12\n\tour"


def test_a_request_ends_where_the_model_does_unless_told_otherwise(
    tokenizer: ModelTokenizer,
) -> None:
    rule = SamplingParams(temperature=0.5, seed=4)
    request = tokenizer.request(3, "hi", max_new_tokens=8, client="a", sampling=rule)
    assert request.prompt.tolist() == ids("hi")
    assert (request.id, request.max_new_tokens, request.client) == (3, 8, "a")
    assert request.stop_tokens == (2,)
    assert request.sampling == rule
    assert tokenizer.request(3, "hi", max_new_tokens=8, ignore_eos=True).stop_tokens == ()


def test_all_ends_of_the_generation_config_count(model: Model) -> None:
    config = model.module.generation_config
    own = config.eos_token_id
    config.eos_token_id = [7, 5]
    try:
        assert load_tokenizer(model).stop_tokens == (2, 5, 7)
    finally:
        config.eos_token_id = own


def test_text_is_served_and_stops(model: Model, tokenizer: ModelTokenizer) -> None:
    free = tokenizer.request(0, CONVERSATION, max_new_tokens=12, ignore_eos=True)
    tokens, _ = reference(model, free)
    # As if the model ended with its fifth token.
    stop = int(tokens[4])
    first = tokens.tolist().index(stop)
    stopping = replace(free, id=1, stop_tokens=(stop,))
    cache = CacheConfig(num_pages=200, page_size=4)
    run = run_engine(model, [free, stopping], cache, SchedulerConfig())
    assert run.outputs[0].tolist() == tokens.tolist()
    assert run.outputs[1].tolist() == tokens[: first + 1].tolist()
    assert reference(model, stopping)[0].tolist() == run.outputs[1].tolist()
    assert tokenizer.decode(run.outputs[1]) == tokenizer.decode(tokens[: first + 1])


def test_a_prompt_without_tokens_is_refused_alone(model: Model, tokenizer: ModelTokenizer) -> None:
    prompts = ("hi", "", "our hi")
    requests = (
        tokenizer.request(id, prompt, max_new_tokens=2) for id, prompt in enumerate(prompts)
    )
    run = run_engine(model, requests, CacheConfig(num_pages=20), SchedulerConfig())
    refusals = run.record.requests["refusal"].tolist()
    rows = dict(zip(run.record.requests["request"].tolist(), refusals, strict=True))
    assert rows == {0: "", 1: "the prompt has no tokens", 2: ""}
    assert run.outputs.keys() == {0, 2}


def test_code_that_comes_with_a_tokenizer_is_not_run(model: Model, tmp_path: Path) -> None:
    folder = Path(model.module.name_or_path)
    shutil.copytree(folder, tmp_path / "copy")
    config = tmp_path / "copy" / "tokenizer_config.json"
    content = json.loads(config.read_text(encoding="utf-8"))
    own = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    config.write_text(json.dumps({**content, **own}), encoding="utf-8")
    (tmp_path / "copy" / "own.py").write_text("raise SystemExit('it was run')", encoding="utf-8")
    copy = load_model(str(tmp_path / "copy"))
    with pytest.raises(ValueError, match=r"^model='.*' has no tokenizer: .*custom code"):
        load_tokenizer(copy)


def test_what_the_template_refuses_is_told_in_one_error(model: Model) -> None:
    tokenizer = load_tokenizer(model)
    tokenizer.tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ValueError, match=r"^messages=\[.*refuses them: roles must alternate$"):
        tokenizer.encode(CONVERSATION)
    tokenizer.tokenizer.chat_template = None
    with pytest.raises(ValueError, match=r"has no chat template: give the prompt as text$"):
        tokenizer.encode(CONVERSATION)


def test_models_without_a_tokenizer_say_so(models: Models, model: Model, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as tiny:
        load_tokenizer(models["tiny-llama"])
    assert str(tiny.value) == (
        "model='tiny-llama' has random weights and no tokenizer: give prompts as token ids"
    )
    model.module.save_pretrained(tmp_path)
    bare = load_model(str(tmp_path))
    with pytest.raises(ValueError, match=r"^model='.*' has no tokenizer: .+$"):
        load_tokenizer(bare)
