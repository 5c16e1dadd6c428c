"""What an environment costs, said so that it can be weighed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from environments.environment import Environment
from environments.prices import AS_OF, PriceLine, price, total


@dataclass(frozen=True)
class Estimate:
    """Every line of the estimate."""

    environment: str
    lines: list[PriceLine]

    @property
    def deployed_usd_h(self) -> float:
        """From deploy to destroy, GPU nodes at 0."""
        return total(self.lines, "deployed")

    @property
    def nodes_usd_h(self) -> float:
        """On top, while all GPU nodes are up."""
        return total(self.lines, "nodes")

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return {
            "environment": self.environment,
            "as_of": AS_OF,
            "deployed_usd_per_hour": self.deployed_usd_h,
            "nodes_usd_per_hour": self.nodes_usd_h,
            "lines": [asdict(line) for line in self.lines],
        }

    def show(self, console: Console) -> None:
        """For people."""
        table = Table(
            "what", "USD/hour", "USD/month", "basis", box=None, title_justify="left", title=self.environment
        )
        for phase, words in (("deployed", "from deploy to destroy"), ("nodes", "while the GPU nodes are up")):
            lines = [line for line in self.lines if line.phase == phase]
            for line in lines:
                table.add_row(line.what, _usd(line.usd_per_hour), _usd(line.usd_per_month), line.basis)
            table.add_row(f"[bold]{words}", f"[bold]{sum(line.usd_per_hour or 0 for line in lines):,.2f}", "", "")
        console.print(table)
        console.print(f"List prices of us-east-1, {AS_OF}: an estimate, not a quote; storage in S3 is not in it.")


def estimate(environment: Environment) -> Estimate:
    """From the table of list prices alone."""
    return Estimate(environment.name, price(environment))


def _usd(amount: float | None) -> str:
    return "not known" if amount is None else f"{amount:,.2f}"
