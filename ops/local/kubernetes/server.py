"""The API over HTTP: discovery, addresses, watch and logs. Loopback only."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import yaml
from werkzeug.exceptions import HTTPException
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server
from werkzeug.wrappers import Request, Response

from ops.local.kubernetes import discovery
from ops.local.kubernetes.api import Api
from ops.local.kubernetes.errors import ApiError, bad_request
from ops.local.kubernetes.kinds import Kind, by_plural
from ops.local.kubernetes.objects import Object, name_of, namespace_of
from ops.local.kubernetes.selectors import Selection, number
from ops.local.kubernetes.store import Ref
from ops.local.kubernetes.tables import as_table
from ops.local.kubernetes.watch import watch

HOST = "127.0.0.1"
LogReader = Callable[[Ref, dict[str, str]], Iterator[bytes]]
NodeOperation = Callable[[str, str, Object], Object]


def _answer(body: Any, code: int = 200) -> Response:
    return Response(json.dumps(body), code, mimetype="application/json")


def _is_true(text: str | None) -> bool:
    return text in ("true", "True", "1")


class ApiServer:
    """Routes requests to the `Api`."""

    def __init__(self, api: Api, read_log: LogReader, node_operation: NodeOperation) -> None:
        self._api = api
        self._read_log = read_log
        self._node_operation = node_operation

    def __call__(self, environ: Any, start_response: Any) -> Any:
        """The WSGI application."""
        request = Request(environ)
        try:
            response = self._route(request)
        except ApiError as error:
            response = _answer(error.status(), error.code)
        except HTTPException as error:
            response = _answer(ApiError(error.code or 500, "BadRequest", str(error)).status(), error.code or 500)
        except Exception as error:
            traceback.print_exc()
            response = _answer(ApiError(500, "InternalError", f"Internal error occurred: {error}").status(), 500)
        return response(environ, start_response)

    def _route(self, request: Request) -> Response:
        parts = [p for p in request.path.split("/") if p]
        match parts:
            case ["readyz" | "livez" | "healthz"]:
                return Response("ok", mimetype="text/plain")
            case ["version"]:
                return _answer(discovery.version_info(self._api.kubernetes_version))
            case ["local", "nodes", node, operation] if request.method == "POST":
                return _answer(self._node_operation(node, operation, _body(request)))
            case ["api"]:
                return _answer(discovery.core_versions())
            case ["apis"]:
                return _answer(discovery.group_list())
            case ["api", version, *rest]:
                return self._resource(request, "", version, rest)
            case ["apis", group, version, *rest]:
                return self._resource(request, group, version, rest)
        raise ApiError(404, "NotFound", "the server could not find the requested resource")

    def _resource(self, request: Request, group: str, version: str, rest: list[str]) -> Response:
        if not rest:
            return _answer(discovery.resource_list(group, version))
        namespace = None
        if rest[0] == "namespaces" and len(rest) > 2 and rest[2] != "status":
            namespace, rest = rest[1], rest[2:]
        kind = by_plural(group, version, rest[0])
        if kind is None:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        if len(rest) == 1:
            return self._collection(request, kind, namespace)
        return self._object(request, Ref(kind, namespace, rest[1]), rest[2] if len(rest) > 2 else None)

    def _collection(self, request: Request, kind: Kind, namespace: str | None) -> Response:
        if request.method == "POST":
            created = self._api.create(kind, namespace, _body(request), dry_run=_dry_run(request))
            return _answer(created, 201)
        selection = Selection.parse(kind, namespace, request.args)
        if request.method == "GET" and _is_true(request.args.get("watch")):
            stream = watch(self._api.store, selection, request.args, table=_wants_table(request))
            return Response(stream, mimetype="application/json")
        items = self._select(selection)
        if request.method == "GET":
            return self._list(request, kind, items)
        if request.method == "DELETE":
            options = _body(request)
            for item in items:
                self._api.delete(Ref(kind, namespace_of(item), name_of(item)), options)
            return self._list(request, kind, items)
        raise ApiError(405, "MethodNotAllowed", f"{request.method} is not allowed on {kind.resource}")

    def _select(self, selection: Selection) -> list[Object]:
        objects = self._api.store.select(selection.kind, selection.namespace)
        return sorted(
            (o for o in objects if selection.matches(o)), key=lambda o: (namespace_of(o) or "", name_of(o))
        )

    def _list(self, request: Request, kind: Kind, items: list[Object]) -> Response:
        version = str(self._api.store.version)
        if _wants_table(request):
            return _answer(as_table(kind, items, version))
        return _answer(
            {
                "kind": f"{kind.kind}List",
                "apiVersion": kind.api_version,
                "metadata": {"resourceVersion": version},
                "items": items,
            }
        )

    def _object(self, request: Request, ref: Ref, subresource: str | None) -> Response:
        if subresource is not None and subresource not in ref.kind.subresources:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        if subresource == "log":
            return Response(self._read_log(ref, dict(request.args)), mimetype="text/plain")
        if subresource == "eviction":
            return _answer(self._api.evict(ref, _body(request)), 201)
        match request.method:
            case "GET":
                found = self._api.store.get(ref)
                version = str(self._api.store.version)
                return _answer(as_table(ref.kind, [found], version) if _wants_table(request) else found)
            case "PUT":
                return _answer(self._api.replace(ref, _body(request), subresource=subresource))
            case "PATCH":
                return self._patch(request, ref, subresource)
            case "DELETE":
                return _answer(self._api.delete(ref, _delete_options(request)))
        raise ApiError(405, "MethodNotAllowed", f"{request.method} is not allowed on {ref.kind.resource}")

    def _patch(self, request: Request, ref: Ref, subresource: str | None) -> Response:
        body, dry_run = _body(request), _dry_run(request)
        if request.mimetype == "application/apply-patch+yaml" and subresource is None:
            applied, created = self._api.apply(ref, body, dry_run=dry_run)
            return _answer(applied, 201 if created else 200)
        return _answer(self._api.patch(ref, body, request.mimetype, subresource=subresource, dry_run=dry_run))


def _body(request: Request) -> Any:
    raw = request.get_data()
    if not raw:
        return {}
    try:
        return json.loads(raw) if raw[:1] in b"{[" else yaml.safe_load(raw)
    except (ValueError, yaml.YAMLError) as error:
        raise bad_request(f"the body of the request is neither JSON nor YAML: {error}") from error


def _delete_options(request: Request) -> Object:
    options: Object = _body(request)
    for name in ("propagationPolicy", "gracePeriodSeconds"):
        if name in request.args:
            value = request.args[name]
            options[name] = number(request.args, name) if name == "gracePeriodSeconds" else value
    return options


def _dry_run(request: Request) -> bool:
    return request.args.get("dryRun") == "All"


def _wants_table(request: Request) -> bool:
    return "as=Table" in request.headers.get("Accept", "")


class _QuietHandler(WSGIRequestHandler):
    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Requests are not logged: controllers and watches would fill the disk."""


def listen(application: ApiServer, port: int) -> BaseWSGIServer:
    """A threaded server on the loopback address; port 0 takes a free one."""
    return make_server(HOST, port, application, threaded=True, request_handler=_QuietHandler)
