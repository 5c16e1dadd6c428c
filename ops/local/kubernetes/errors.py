"""Refusals as Kubernetes words them: one exception that becomes a `Status` object."""

from __future__ import annotations

from typing import Any

from ops.local.kubernetes.kinds import Kind


class ApiError(Exception):
    """A refusal with its HTTP code, reason and details."""

    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}

    def status(self) -> dict[str, Any]:
        """The `Status` object of the answer."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }


def _details(kind: Kind, name: str) -> dict[str, Any]:
    return {"name": name, "group": kind.group, "kind": kind.plural}


def not_found(kind: Kind, name: str) -> ApiError:
    """404 for an object that does not exist."""
    return ApiError(404, "NotFound", f'{kind.resource} "{name}" not found', _details(kind, name))


def already_exists(kind: Kind, name: str, *, being_deleted: bool = False) -> ApiError:
    """409 for a name that is taken."""
    prefix = "object is being deleted: " if being_deleted else ""
    message = f'{prefix}{kind.resource} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, _details(kind, name))


def conflict(kind: Kind, name: str, why: str) -> ApiError:
    """409 for a write against an old version."""
    message = f'Operation cannot be fulfilled on {kind.resource} "{name}": {why}'
    return ApiError(409, "Conflict", message, _details(kind, name))


def invalid(kind: Kind, name: str, problems: list[tuple[str, str]]) -> ApiError:
    """422 with every problem: pairs of field and sentence (`Invalid value: …`)."""
    sentences = [f"{field}: {text}" for field, text in problems]
    joined = sentences[0] if len(sentences) == 1 else f"[{', '.join(sentences)}]"
    causes = [{"field": field, "message": text, "reason": "FieldValueInvalid"} for field, text in problems]
    gk = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    details = {"name": name, "group": kind.group, "kind": kind.kind, "causes": causes}
    return ApiError(422, "Invalid", f'{gk} "{name}" is invalid: {joined}', details)


def bad_request(message: str) -> ApiError:
    """400."""
    return ApiError(400, "BadRequest", message)
