"""`testbed policy`: what there is to choose from, a start for one of yours, is it sound?"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.policies.registry import Kind

KINDS: tuple[Kind, ...] = ("scheduling", "eviction", "routing")

CITED = re.compile(
    r"arXiv \d{4}\.\d{4,5}|\b(?:OSDI|SOSP|NSDI|ATC|FAST|SIGCOMM|EuroSys|ASPLOS|ICML|MLSys|USITS)"
    r"(?: ?'\d\d| \d{4})|\b(?:SGLang|vLLM|Dynamo|llm-d|LightLLM|RAGCache|Preble|VTC artifact|"
    r"inference-sim|libCacheSim|LMCache|Mooncake|TensorRT-LLM|IEEE [A-Z]+)\b"
    r"|\b[A-Z][a-z]{3,}(?:\s+et\s+al\.)?\s+\(?(?:19|20)\d\d\b"
)
"""What counts as a source in a docstring: papers, systems, and `Author (year)`."""
MAX_SOURCE = 36
INDENT = " " * 12


def add(commands: Any) -> None:
    """Add the command's parsers."""
    policy = commands.add_parser("policy", help="list policies, begin one, check one")
    actions = policy.add_subparsers(required=True, metavar="COMMAND")
    listing = actions.add_parser("list", help="scheduling, eviction and routing policies")
    listing.add_argument("--kind", choices=KINDS, help="only these")
    listing.set_defaults(command=_list)
    new = actions.add_parser("new", help="write a small package with a policy to start from")
    new.add_argument("name", metavar="NAME", help="lower-case letters, digits and _")
    new.add_argument("--kind", choices=KINDS, default="scheduling")
    new.add_argument("--into", type=Path, default=Path(), metavar="FOLDER", help="default: here")
    new.set_defaults(command=_new)
    check = actions.add_parser("check", help="run the conformance kit")
    check.add_argument(
        "policy", metavar="POLICY", help="a name, or package.module:Class (or .Class)"
    )
    check.add_argument("--kind", choices=KINDS, help="where a name is one of several kinds")
    check.add_argument(
        "--param", action="append", default=[], metavar="NAME=VALUE", help="repeatable"
    )
    check.add_argument(
        "--horizon", type=int, metavar="REQUESTS", help="how many later ones may pass a request"
    )
    check.set_defaults(command=_check)


def _list(options: argparse.Namespace) -> int:
    from testbed.policies import registry

    _see_working_folder()
    kinds: tuple[registry.Kind, ...] = (options.kind,) if options.kind else KINDS
    rows = [
        (kind, name + "†" * is_oracle(policy), policy)
        for kind in kinds
        for name in registry.names(kind)
        for policy in [registry.find(kind, name)]
    ]
    width = max(len(label) for _, label, _ in rows)
    # A pipe has no width: what reads it gets lines that fit a page.
    columns = max(get_terminal_size((100, 24)).columns, 60)
    for kind, label, policy in rows:
        print(f"{kind:<10}  {label:<{width}}  {source(policy)[: columns - width - 14]}")
        for line in wrap(purpose(policy), columns - len(INDENT), break_on_hyphens=False):
            print(f"{INDENT}{line}")
    if any(is_oracle(policy) for _, _, policy in rows):
        print("† oracle: it is told what no real system knows")
    return 0


def is_oracle(policy: type[Any]) -> bool:
    """Whether the class declares that it must be told what no real system knows."""
    return bool(getattr(policy, "oracle", False))


def purpose(policy: type[Any]) -> str:
    """The first sentence of the docstring, on one line; without what leads over to a list."""
    paragraph = " ".join(inspect.cleandoc(policy.__doc__ or "").partition("\n\n")[0].split())
    sentence, *others = re.split(r"(?<=\.) (?=[A-Z])", paragraph, maxsplit=1)
    return sentence if others or sentence.endswith(".") else sentence.rpartition(":")[0] or sentence


def source(policy: type[Any]) -> str:
    """The first papers and systems that the docstring names; else whose package it is in.

    A docstring that begins with the name of another class of its module (`Srpt that is told ...`)
    shares the sources of that one.
    """
    doc = policy.__doc__ or ""
    original = getattr(inspect.getmodule(policy), doc.partition(" ")[0] or "-", None)
    cited = _cited(doc) or _cited(getattr(original, "__doc__", None) or "")
    text = ""
    for name in cited:
        longer = f"{text}, {name}" if text else name
        if len(longer) > MAX_SOURCE:
            break
        text = longer
    package = policy.__module__.partition(".")[0]
    return text or ("-" if package == "testbed" else package)


def _cited(doc: str) -> tuple[str, ...]:
    found = (" ".join(text.replace("(", "").split()) for text in CITED.findall(doc))
    return tuple(dict.fromkeys(found))


def _new(options: argparse.Namespace) -> int:
    from testbed.commands.new_policy import write_package

    folder = write_package(options.name, options.kind, options.into)
    # The testbed is where this Python finds it, and perhaps nowhere else.
    python = quote(sys.executable)
    print(
        f"{folder}: a policy for {options.kind}, its test, a config, and a README on how to go on\n"
        f"next: cd {quote(str(folder))} && {python} -m pip install --editable . --no-deps "
        f"&& {python} -m testbed policy check {folder.name}"
    )
    return 0


def _check(options: argparse.Namespace) -> int:
    from testbed.conformance import HORIZON, examine, subject_of

    _see_working_folder()
    if options.horizon is not None and options.horizon < 0:
        raise ValueError(f"horizon={options.horizon}: at least 0 is needed")
    subject = subject_of(options.policy, options.kind, parameters(options.param))
    print(f"{subject.kind} {subject.name}")
    failed = 0
    horizon = HORIZON if options.horizon is None else options.horizon
    for finding in examine(subject, horizon=horizon):
        print(finding, flush=True)
        failed += finding.status == "failed"
    return 1 if failed else 0


def parameters(given: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE by name: values as JSON, what is no JSON as text. ValueError without a `=`."""
    values: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ValueError(f"param={text!r}: NAME=VALUE is needed")
        try:
            values[name] = json.loads(value)
        except ValueError:
            values[name] = value
    return values


def _see_working_folder() -> None:
    """Modules in the working folder can be imported, as they can by `python -m`."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
