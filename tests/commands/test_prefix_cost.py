from __future__ import annotations

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
        (["10", "--hardware", "tpu"], "accelerator='tpu'"),
        (["10", "--model", "llama-3.1-70b"], "does not fit"),
        (["1000000", "--model", "llama-3.1-8b"], "sequence_tokens=1001000"),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prefix-cost", *arguments]) == 2
    assert message in capsys.readouterr().err
