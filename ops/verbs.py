"""All verbs of `steadfast`. Each group of them is a module of ops.commands."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from ops import failures
from ops.commands import campaign, contents, demo, environment_files, infrastructure, nodes, runs


class Steadfast(TyperGroup):
    """Ends every verb with its documented exit code and no traceback for a user's mistake."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; what it raises becomes a message and a code."""
        as_json = "--json" in ctx.args
        try:
            return super().invoke(ctx)
        except Exception as error:
            if isinstance(error, typer.Abort) or hasattr(error, "exit_code"):
                raise  # typer's own: usage errors and exits
            failure = failures.explain(error)
            failures.show(failure, as_json=as_json)
            ctx.exit(int(failure.code))


app = typer.Typer(
    cls=Steadfast,
    name="steadfast",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Environments for large-model training on Amazon EKS: one YAML file, its whole life.",
    epilog="Exit codes: 0 done, 1 a bug or a failed verification, 2 invalid input, 3 refused to be safe, "
    "4 something is left over, 5 the cloud or the cluster failed, 6 the training run failed.",
)
for group in (environment_files, infrastructure, contents, runs, campaign, nodes, demo):
    group.register(app)
