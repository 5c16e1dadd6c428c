"""The one place that turns exceptions into messages and exit codes."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape

from environments.problems import InvalidEnvironmentError
from k8s.resources import DoesNotFitError
from k8s.run_spec import InvalidRunError
from ops.data import NoTextError
from ops.errors import Code, OpsError
from ops.report.run_directory import NoSuchRunError
from ops.report.summary import EmptyLedgerError


@dataclass(frozen=True)
class Failure:
    """What is printed, and the exit code."""

    code: Code
    message: str
    details: list[str] = field(default_factory=list)
    fix: str | None = None


def explain(error: BaseException) -> Failure:
    """A failure for anything that was raised; what nobody expected is a bug."""
    if isinstance(error, OpsError):
        return Failure(error.code, error.message, error.details, error.fix)
    for kind, explanation in _EXPLANATIONS.items():
        if isinstance(error, kind):
            return explanation(error)
    return _from_libraries(error) or Failure(
        Code.BUG, f"a bug in steadfast: {type(error).__name__}: {error}", traceback.format_exception(error)
    )


def _environment(error: Any) -> Failure:
    return Failure(Code.INVALID, error.source, list(error.problems))


def _run(error: Any) -> Failure:
    return Failure(Code.INVALID, "the run cannot be submitted", list(error.problems))


def _plain(error: BaseException) -> Failure:
    return Failure(Code.INVALID, str(error))


_EXPLANATIONS: dict[type[BaseException], Callable[[Any], Failure]] = {
    InvalidEnvironmentError: _environment,
    InvalidRunError: _run,
    DoesNotFitError: _plain,
    NoSuchRunError: _plain,
    EmptyLedgerError: _plain,
    NoTextError: _plain,
}


def _from_libraries(error: BaseException) -> Failure | None:
    """By module, so that a verb which needs neither AWS nor Kubernetes does not import their clients."""
    module = type(error).__module__
    name = type(error).__name__
    if module.startswith(("botocore", "boto3")):
        fix = "run `aws sts get-caller-identity`, or set `profile` in the environment file"
        return Failure(Code.CLOUD, f"AWS: {error}", fix=fix if "Credential" in name or "Profile" in name else None)
    if module.startswith("kubernetes") and name == "ApiException":
        return Failure(Code.CLOUD, f"Kubernetes: {_api_message(error)}")
    if module.startswith(("kubernetes", "urllib3")):
        return Failure(Code.CLOUD, f"the cluster cannot be reached: {error}", fix="`steadfast connect ENV`")
    if isinstance(error, OSError):
        return Failure(Code.CLOUD, f"this machine: {error}")
    return None


def _api_message(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return f"{error.status} {error.reason}"


def show(failure: Failure, *, as_json: bool) -> None:
    """To standard error; with JSON also as the result on standard output."""
    if as_json:
        body = {"code": int(failure.code), "message": failure.message, "details": failure.details}
        sys.stdout.write(json.dumps({"error": {**body, "fix": failure.fix}}, indent=2) + "\n")
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold red]steadfast:[/] {escape(failure.message)}")
    for detail in failure.details:
        console.print(f"  {escape(detail.rstrip())}")
    if failure.fix:
        console.print(f"  [dim]mend it:[/] {escape(failure.fix)}")
