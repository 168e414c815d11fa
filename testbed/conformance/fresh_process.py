"""Processes that nothing has happened in yet, with a PYTHONHASHSEED of their own.

To find out whether a policy decides alike whatever the hash seed is, two of them with a seed each
serve the same cases. Each reads questions from standard input, one base64 pickle a line, and
answers with a line: the digest of the decisions, or the error.
"""

from __future__ import annotations

import base64
import os
import pickle
import subprocess
import sys
from contextlib import suppress
from hashlib import sha256
from types import TracebackType

from testbed.conformance.case import Case
from testbed.conformance.serving import decisions, serve
from testbed.conformance.subject import Subject
from testbed.policies import registry

HASH_SEEDS = ("1", "2")


def importable(subject: Subject) -> bool:
    """Whether another process finds the class under its name."""
    try:
        return registry.find(subject.kind, subject.name) is subject.policy
    except ValueError:
        return False


def fails_afresh(script: str) -> bool:
    """Whether a script of the kit fails in a process of its own."""
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=_environment(), capture_output=True).returncode != 0


def _environment(**variables: str) -> dict[str, str]:
    search = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "PYTHONPATH": search, **variables}


class HashSeeds:
    """Two processes that serve cases for whatever policy, each with another PYTHONHASHSEED."""

    def __init__(self) -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import main; main()"],
                env=_environment(PYTHONHASHSEED=seed),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for seed in HASH_SEEDS
        ]

    def __enter__(self) -> HashSeeds:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.communicate()

    def differ(self, subject: Subject, case: Case) -> bool:
        """Whether the processes decide differently."""
        question = (subject.kind, subject.name, dict(subject.parameters), case)
        line = base64.b64encode(pickle.dumps(question)).decode() + "\n"
        for process in self._processes:
            assert process.stdin is not None
            # One that has ended gives no answer, which is told below.
            with suppress(BrokenPipeError):
                process.stdin.write(line)
                process.stdin.flush()
        answers = set()
        for process in self._processes:
            assert process.stdout is not None
            answer = process.stdout.readline()
            if not answer:
                raise RuntimeError(f"{process.args!r} ended with status {process.wait()}")
            answers.add(answer)
        return len(answers) > 1


def main() -> None:
    """Answer every line of standard input."""
    # What a policy prints must not be taken for an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        kind, name, parameters, case = pickle.loads(base64.b64decode(line))
        subject = Subject(kind, registry.find(kind, name), parameters)
        print(_answer(subject, case), file=answers, flush=True)


def _answer(subject: Subject, case: Case) -> str:
    try:
        return sha256(repr(decisions(serve(subject, case))).encode()).hexdigest()
    except (Exception, SystemExit) as error:
        return described(error)


def described(error: BaseException) -> str:
    """Its type and its message, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
