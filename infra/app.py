"""From an environment to templates: `build` in-process, `python -m infra.app` for the CDK command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import aws_cdk as cdk
from aws_cdk import cx_api

from environments.environment import Environment, InvalidEnvironmentError, find, load, names
from environments.rules import not_ready
from infra.checks import acknowledge
from infra.stacks import add_stacks
from infra.template_rules import check_templates
from infra.templates import Templates

_CDK_JSON = Path(__file__).parent.parent / "cdk.json"
_LIKE_THE_CLI = {
    "aws:cdk:enable-path-metadata": True,
    "aws:cdk:enable-asset-metadata": True,
}
"""What the CDK command line adds to the context, so that both ways give the same bytes."""


def context() -> dict[str, Any]:
    """cdk.json's feature flags, and what the command line adds to them."""
    return {**json.loads(_CDK_JSON.read_text(encoding="utf-8"))["context"], **_LIKE_THE_CLI}


def build(environment: Environment, out_dir: Path | str | None = None) -> cx_api.CloudAssembly:
    """Synthesize the five stacks into `out_dir`, without network or credentials.

    None: where the CDK command line says. Raises InvalidEnvironmentError if the file still lacks something,
    InvalidTemplateError if a template breaks a rule of ours, jsii's RuntimeError if CDK's validator finds one.
    """
    missing = not_ready(environment)
    if missing:
        raise InvalidEnvironmentError(environment.name, missing)
    app = cdk.App(
        outdir=str(out_dir) if out_dir else None,
        analytics_reporting=False,
        post_cli_context=context(),
    )
    add_stacks(app, environment)
    acknowledge(app)
    assembly = app.synth()
    check_templates(Templates.read(Path(assembly.directory), environment.name))
    return assembly


def run(name: str | None) -> int:
    """Synthesize a named environment. An absent, unknown or invalid one is said so: exit code 2."""
    if not name:
        print(
            f"infra.app: say which environment: -c environment=NAME; names: {', '.join(names())}", file=sys.stderr
        )
        return 2
    try:
        build(load(find(name)))
    except InvalidEnvironmentError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(run(cdk.App(analytics_reporting=False).node.try_get_context("environment")))
