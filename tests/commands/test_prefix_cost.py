from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.cli import main


def test_a_prefix_on_one_model(capsys: pytest.CaptureFixture[str]) -> None:
    """2,000 tokens of 128 KiB; the pool of an H100 is what 0.9 * 80 GB - 3 GB - weights leave."""
    assert main(["prefix-cost", "2000", "--model", "llama-3.1-8b"]) == 0
    row = capsys.readouterr().out.splitlines()[-1].split()
    pool = int((0.9 * 80e9 - 3e9 - 2 * 8_030_261_248) / (128 * 1024))
    assert row == [
        "llama-3.1-8b",
        "128",
        "250.0",
        f"{2000 / pool:.1%}",
        str(pool // 3000),
        str((pool - 2000) // 1000),
        str((pool - 2000) // 3000),
    ]


def test_any_model_by_its_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Mistral-7B's dimensions are Llama-3.1-8B's, with a smaller vocabulary: 7,241,732,096."""
    config = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32}
    config |= {"num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000}
    path = tmp_path / "Mistral-7B-v0.3-a-long-name" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(config))
    assert main(["prefix-cost", "2000", "--model", str(path)]) == 0
    row = capsys.readouterr().out.splitlines()[-1].split()
    pool = int((0.9 * 80e9 - 3e9 - 2 * 7_241_732_096) / (128 * 1024))
    assert row[:4] == [path.parent.name, "128", "250.0", f"{2000 / pool:.1%}"]
    assert row[4] == str(pool // 3000)


def test_any_model_by_what_its_engine_reports(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--kv-bytes-per-token", "131072", "--pool-tokens", "100000"]
    assert main(["prefix-cost", "2000", *options]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("a prefix of 2,000 tokens resident in a pool of 100,000, and")
    assert shown.splitlines()[-1].split()[2:] == ["128", "250.0", "2.0%", "33", "98", "32"]


def test_models_that_do_not_fit_are_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prefix-cost", "2000"]) == 0
    shown = capsys.readouterr().out
    assert "llama-3.1-70b does not fit h100 at tp=1" in shown
    assert "qwen2.5-7b" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["0"], "tokens=0"),
        (["10", "--own-tokens", "0"], "own-tokens=0"),
        (["10", "--model", "gpt"], "model='gpt'"),
        (["10", "--model", "gpt/config.json"], "gpt/config.json: no such file"),
        (["10", "--pool-tokens", "9"], "--kv-bytes-per-token and --pool-tokens: both"),
        (["10", "--kv-bytes-per-token", "0"], "kv-bytes-per-token=0"),
        (["10", "--hardware", "tpu"], "accelerator='tpu'"),
        (["10", "--model", "llama-3.1-70b"], "does not fit"),
        (["1000000", "--model", "llama-3.1-8b"], "sequence_tokens=1001000"),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prefix-cost", *arguments]) == 2
    assert message in capsys.readouterr().err
