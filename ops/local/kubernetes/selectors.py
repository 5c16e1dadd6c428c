"""labelSelector and fieldSelector of list and watch.

https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ops.local.kubernetes.errors import bad_request
from ops.local.kubernetes.kinds import Kind
from ops.local.kubernetes.objects import Object, labels_of, matches_expressions, namespace_of

_TERM = re.compile(r"\s*(!?)\s*([\w./-]+)\s*(?:(==|=|!=|\s+in\s+|\s+notin\s+)\s*(\([^)]*\)|[^,]*))?\s*(?:,|$)")


@dataclass(frozen=True)
class Selection:
    """The objects one request is about."""

    kind: Kind
    namespace: str | None
    labels: tuple[Object, ...]
    fields: tuple[tuple[str, str, str], ...]

    @staticmethod
    def parse(kind: Kind, namespace: str | None, args: Mapping[str, str]) -> Selection:
        """From the query of a request."""
        fields = tuple(_field_terms(args.get("fieldSelector") or ""))
        return Selection(kind, namespace, tuple(_label_terms(args.get("labelSelector") or "")), fields)

    def matches(self, obj: Object) -> bool:
        """The object is selected."""
        if self.namespace is not None and namespace_of(obj) != self.namespace:
            return False
        return matches_expressions(self.labels, labels_of(obj)) and all(
            _field_matches(obj, f) for f in self.fields
        )


def number(args: Mapping[str, str], name: str) -> int | None:
    """A whole number from a query, None if it is absent or empty; 400 for anything else."""
    text = args.get(name) or ""
    if text and not text.isdigit():
        raise bad_request(f"{name} must be a whole number, not {text!r}")
    return int(text) if text else None


def _label_terms(text: str) -> list[Object]:
    terms, at = [], 0
    while at < len(text):
        match = _TERM.match(text, at)
        if match is None:
            raise bad_request(f"unable to parse requirement: {text!r}")
        negated, key, operator, value = match.groups()
        terms.append(_label_term(key, bool(negated), (operator or "").strip(), (value or "").strip()))
        at = match.end()
    return terms


def _label_term(key: str, negated: bool, operator: str, value: str) -> Object:
    if not operator:
        return {"key": key, "operator": "DoesNotExist" if negated else "Exists"}
    values = [v.strip() for v in value.strip("()").split(",")]
    return {"key": key, "operator": "NotIn" if operator in ("!=", "notin") else "In", "values": values}


def _field_terms(text: str) -> list[tuple[str, str, str]]:
    terms = []
    for term in filter(None, text.split(",")):
        match = re.fullmatch(r"([\w.]+)(!=|==|=)(.*)", term)
        if match is None:
            raise bad_request(f"invalid field selector: {term!r}")
        terms.append((match[1], match[2], match[3]))
    return terms


def _field_matches(obj: Object, term: tuple[str, str, str]) -> bool:
    path, operator, wanted = term
    value: Any = obj
    for part in path.split("."):
        value = value.get(part, "") if isinstance(value, dict) else ""
    return (str(value) == wanted) != (operator == "!=")
