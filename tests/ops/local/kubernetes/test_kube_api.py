"""The API without a machine behind it: verbs, refusals, watch, over the WSGI application."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import Client

from environments.environment import Environment, find, load
from k8s.run_spec import RunSpec
from k8s.training_job import run_manifests
from ops.local.kubernetes.api import Api
from ops.local.kubernetes.kinds import by_kind
from ops.local.kubernetes.server import ApiServer
from ops.local.kubernetes.store import Store
from ops.synth import cluster_documents

pytestmark = pytest.mark.unit

Fields = dict[str, Any]
JOBS = "/apis/batch/v1/namespaces/n/jobs"


class Server:
    """Requests and their JSON answers."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "db")
        api = Api(self.store, "1.35", "10.96.0.0/16")
        self._client = Client(ApiServer(api, lambda *_: iter([b"log"]), lambda *_: {}))

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Fields]:
        sent = {k.replace("_", "-"): v for k, v in headers.items()}
        answer = self._client.open(path, method=method, data=json.dumps(body or {}), headers=sent)
        return answer.status_code, json.loads(answer.get_data())

    def lines(self, path: str) -> list[Fields]:
        """What a watch sends until its timeout."""
        return [json.loads(line) for line in self._client.get(path).get_data().splitlines()]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    assert made("POST", "/api/v1/namespaces", {"metadata": {"name": "n"}})[0] == 201
    yield made
    made.store.close()


def _job(**spec: Any) -> Fields:
    container = {"name": "trainer", "image": "i", "command": ["true"]}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    indexed = {"completionMode": "Indexed", "completions": 3, "parallelism": 3, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "v"}, "spec": indexed | spec}


RULE = {"action": "FailJob", "onExitCodes": {"containerName": "trainer", "operator": "In", "values": [90, 93]}}


def _rule(**on: Any) -> Fields:
    return {"podFailurePolicy": {"rules": [RULE | {"onExitCodes": RULE["onExitCodes"] | on}]}}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            _rule() | {"podReplacementPolicy": "TerminatingOrFailed"},
            'spec.podReplacementPolicy: Unsupported value: "TerminatingOrFailed": supported values: "Failed"',
        ),
        (
            {"podFailurePolicy": {"rules": [{"action": "FailIndex", "onExitCodes": RULE["onExitCodes"]}]}},
            'spec.podFailurePolicy.rules[0].action: Invalid value: "FailIndex": requires the backoffLimitPerIndex '
            "to be set",
        ),
        (
            {"maxFailedIndexes": 1},
            "spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified",
        ),
        (
            {"backoffLimitPerIndex": 1, "maxFailedIndexes": 4},
            "spec.maxFailedIndexes: Invalid value: 4: must be less than or equal to completions",
        ),
        (
            {"successPolicy": {"rules": [{"succeededCount": 4}]}},
            "spec.successPolicy.rules[0].succeededCount: Invalid value: 4: must be less than or equal to 3 "
            "(the number of specified completions)",
        ),
        (
            {"completionMode": "NonIndexed", "backoffLimitPerIndex": 6},
            "spec.backoffLimitPerIndex: Invalid value: 6: requires indexed completion mode",
        ),
        (_rule(values=[93, 90]), "onExitCodes.values: Invalid value: [93,90]: must be ordered"),
        (_rule(values=[0, 93]), "values[0]: Invalid value: 0: must not be 0 for the In operator"),
        (_rule(values=[90, 90]), "Duplicate value: 90"),
        (
            _rule(containerName="foo"),
            'containerName: Invalid value: "foo": must be one of the container or initContainer names in the pod '
            "template",
        ),
    ],
)
def test_jobs_that_kubernetes_refuses(server: Server, spec: Fields, message: str) -> None:
    code, status = server("POST", JOBS, _job(**spec))
    assert (code, status["reason"]) == (422, "Invalid")
    assert status["message"].startswith('Job.batch "v" is invalid: ')
    assert message in status["message"]
    assert server("GET", JOBS)[1]["items"] == []


@pytest.mark.parametrize(
    ("policy", "words"), [("OnFailure", 'only "Never" is supported'), ("Always", "valid values")]
)
def test_restart_policies_that_kubernetes_refuses(server: Server, policy: str, words: str) -> None:
    job = _job(**_rule())
    job["spec"]["template"]["spec"]["restartPolicy"] = policy
    code, status = server("POST", JOBS, job)
    assert code == 422
    assert (
        f"spec.template.spec.restartPolicy: {'Invalid' if policy == 'OnFailure' else 'Required'} value"
        in status["message"]
    )
    assert words in status["message"]


def test_a_name_too_long_for_its_pods_is_refused(server: Server) -> None:
    job = _job()
    job["metadata"]["name"] = "a" * 62
    code, status = server("POST", JOBS, job)
    assert code == 422
    assert "will not able to create pod with invalid DNS label" in status["message"]


POD: Fields = {"name": "c", "image": "i"}


@pytest.mark.parametrize(
    ("pod", "field", "words"),
    [
        ({"containers": [POD, POD]}, "spec.containers[1].name", "Duplicate value"),
        ({"containers": [POD | {"name": "A_b"}]}, "spec.containers[0].name", "RFC 1123"),
        (
            {"containers": [POD | {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}]},
            "spec.containers[0].volumeMounts[0].name",
            'Not found: "v"',
        ),
        (
            {"containers": [POD | {"resources": {"limits": {"memory": "1Gb"}}}]},
            "spec.containers[0].resources.limits[memory]",
            "must be a quantity",
        ),
        (
            {"containers": [POD | {"resources": {"requests": {"vpc.amazonaws.com/efa": "32"}}}]},
            "spec.containers[0].resources.limits",
            "Limit must be set for non overcommitable resources",
        ),
        (
            {"containers": [POD | {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}]},
            "spec.containers[0].resources.requests",
            "must be less than or equal to cpu limit",
        ),
        (
            {"containers": [POD], "volumes": [{"name": "m", "emptyDir": {"sizeLimit": "big"}}]},
            "spec.volumes[0].emptyDir.sizeLimit",
            "must be a quantity",
        ),
        ({"containers": [], "restartPolicy": 1}, "spec.restartPolicy", "Invalid value"),
    ],
)
def test_pods_that_kubernetes_refuses(server: Server, pod: Fields, field: str, words: str) -> None:
    code, status = server("POST", "/api/v1/namespaces/n/pods", {"metadata": {"name": "p"}, "spec": pod})
    assert code == 422
    assert f"{field}: " in status["message"]
    assert words in status["message"]
    template = _job()
    template["spec"]["template"]["spec"] |= pod
    code, status = server("POST", JOBS, template)
    assert code == 422
    assert f"{field.replace('spec.', 'spec.template.spec.', 1)}: " in status["message"]


@pytest.mark.parametrize(
    "query", ["watch=true&resourceVersion=x", "watch=true&timeoutSeconds=-1", "labelSelector=="]
)
def test_queries_that_make_no_sense(server: Server, query: str) -> None:
    code, status = server("GET", f"/api/v1/pods?{query}")
    assert (code, status["reason"]) == (400, "BadRequest")


def test_names_that_kubernetes_refuses(server: Server) -> None:
    for name in ("A", "a_b", "-a", "a" * 254, ""):
        code, status = server("POST", "/api/v1/namespaces/n/configmaps", {"metadata": {"name": name}})
        assert code == 422, name
        assert "metadata.name: " in status["message"]


def test_every_mistake_is_named_at_once(server: Server) -> None:
    job = _job(paralelism=1)
    del job["spec"]["template"]["spec"]["containers"][0]["name"]
    job["spec"]["suspend"] = "yes"
    code, status = server("POST", JOBS, job)
    assert code == 422
    assert {c["field"] for c in status["details"]["causes"]} == {
        "spec.paralelism",
        "spec.template.spec.containers[0].name",
        "spec.suspend",
    }


def test_accepted_jobs_get_the_defaults_of_kubernetes(server: Server) -> None:
    code, job = server("POST", JOBS, _job(**_rule(), backoffLimitPerIndex=6))
    assert code == 201
    assert job["spec"]["backoffLimit"] == 2147483647
    assert job["spec"]["podReplacementPolicy"] == "Failed"
    uid = job["metadata"]["uid"]
    assert job["spec"]["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    assert job["spec"]["template"]["metadata"]["labels"]["job-name"] == "v"
    _, plain = server("POST", JOBS, _job() | {"metadata": {"name": "w"}})
    assert (plain["spec"]["backoffLimit"], plain["spec"]["podReplacementPolicy"]) == (6, "TerminatingOrFailed")


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ({"parallelism": 2}, True),
        ({"parallelism": 4, "completions": 4}, True),
        ({"completions": 4}, False),
        ({"suspend": True}, True),
        ({"activeDeadlineSeconds": 5, "ttlSecondsAfterFinished": 5, "backoffLimit": 9}, True),
        ({"backoffLimitPerIndex": 5}, False),
        ({"successPolicy": {"rules": [{"succeededCount": 1}]}}, False),
        ({"template": {"spec": {"nodeSelector": {"a": "b"}}}}, False),
    ],
)
def test_what_may_change_in_a_running_job(server: Server, change: Fields, allowed: bool) -> None:
    server("POST", JOBS, _job(backoffLimitPerIndex=6))
    code, answer = server("PATCH", f"{JOBS}/v", {"spec": change}, Content_Type="application/merge-patch+json")
    assert code == (200 if allowed else 422), answer
    assert allowed or "immutable" in answer["message"] or "in tandem" in answer["message"]


def test_refusals_as_kubernetes_words_them(server: Server) -> None:
    assert server("GET", f"{JOBS}/v")[1]["message"] == 'jobs.batch "v" not found'
    server("POST", JOBS, _job())
    code, status = server("POST", JOBS, _job())
    assert (code, status["reason"], status["message"]) == (409, "AlreadyExists", 'jobs.batch "v" already exists')
    code, status = server("POST", "/apis/batch/v1/namespaces/other/jobs", _job())
    assert (code, status["message"]) == (404, 'namespaces "other" not found')
    assert server("GET", "/apis/what/v1/things")[0] == 404
    assert (
        server("POST", "/api/v1/namespaces/n/configmaps", {"metadata": {"name": "c", "namespace": "m"}})[0] == 400
    )
    assert server("PUT", JOBS, _job())[0] == 405


def test_status_and_spec_are_written_by_their_own_addresses(server: Server) -> None:
    _, job = server("POST", JOBS, _job())
    assert job["metadata"]["generation"] == 1
    merge = {"Content_Type": "application/merge-patch+json"}
    _, job = server("PATCH", f"{JOBS}/v/status", {"status": {"active": 1}, "spec": {"parallelism": 9}}, **merge)
    assert (job["status"]["active"], job["spec"]["parallelism"], job["metadata"]["generation"]) == (1, 3, 1)
    _, job = server("PATCH", f"{JOBS}/v", {"status": {"active": 2}, "spec": {"parallelism": 2}}, **merge)
    assert (job["status"]["active"], job["spec"]["parallelism"], job["metadata"]["generation"]) == (1, 2, 2)


def test_dry_run_changes_nothing(server: Server) -> None:
    assert server("POST", f"{JOBS}?dryRun=All", _job())[0] == 201
    assert server("GET", f"{JOBS}/v")[0] == 404
    assert server("POST", f"{JOBS}?dryRun=All", _job(parallelism="x"))[0] == 422


def test_a_replaced_object_must_be_the_newest(server: Server) -> None:
    path = "/api/v1/namespaces/n/configmaps"
    _, old = server("POST", path, {"metadata": {"name": "c"}, "data": {"a": "1"}})
    code, _ = server("PUT", f"{path}/c", old | {"data": {"a": "2"}})
    assert code == 200
    code, status = server("PUT", f"{path}/c", old | {"data": {"a": "3"}})
    assert (code, status["reason"]) == (409, "Conflict")


def test_services_get_addresses_of_their_own(server: Server) -> None:
    path = "/api/v1/namespaces/n/services"
    made = [server("POST", path, {"metadata": {"name": n}, "spec": {"ports": [{"port": 1}]}})[1] for n in "ab"]
    addresses = [s["spec"]["clusterIP"] for s in made]
    assert addresses == ["10.96.0.1", "10.96.0.2"]
    _, headless = server("POST", path, {"metadata": {"name": "h"}, "spec": {"clusterIP": "None"}})
    assert headless["spec"]["clusterIP"] == "None"


def test_watch_sends_the_state_then_changes_then_what_leaves_the_selection(server: Server) -> None:
    path = "/api/v1/namespaces/n/configmaps"
    server("POST", path, {"metadata": {"name": "a", "labels": {"x": "1"}}})
    _, listed = server("GET", path)
    version = listed["metadata"]["resourceVersion"]
    server("POST", path, {"metadata": {"name": "b", "labels": {"x": "1"}}})
    server("PATCH", f"{path}/a", {"metadata": {"labels": {"x": "2"}}}, Content_Type="application/merge-patch+json")
    server("DELETE", f"{path}/b")
    now = server.lines(f"{path}?watch=true&timeoutSeconds=1")
    assert [(e["type"], e["object"]["metadata"]["name"]) for e in now] == [("ADDED", "a")]
    since = server.lines(f"{path}?watch=true&resourceVersion={version}&timeoutSeconds=1&labelSelector=x=1")
    seen = [(e["type"], e["object"]["metadata"]["name"]) for e in since]
    assert seen == [("ADDED", "b"), ("DELETED", "a"), ("DELETED", "b")]
    bookmark = server.lines(f"{path}?watch=true&timeoutSeconds=1&sendInitialEvents=true")[-1]
    assert bookmark["type"] == "BOOKMARK"


def test_a_watch_tells_what_was_deleted_between_the_list_and_itself(server: Server) -> None:
    """https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes"""
    path = "/api/v1/namespaces/n/configmaps"
    server("POST", path, {"metadata": {"name": "a"}})
    _, listed = server("GET", path)
    server("DELETE", f"{path}/a")
    version = listed["metadata"]["resourceVersion"]
    since = server.lines(f"{path}?watch=true&resourceVersion={version}&timeoutSeconds=1")
    assert [(e["type"], e["object"]["metadata"]["name"]) for e in since] == [("DELETED", "a")]


def test_a_watch_from_a_version_of_before_the_restart_is_gone(server: Server, tmp_path: Path) -> None:
    server("POST", "/api/v1/namespaces/n/configmaps", {"metadata": {"name": "a"}})
    again = Server(tmp_path)
    code, status = again("GET", "/api/v1/configmaps?watch=true&resourceVersion=1")
    assert (code, status["reason"]) == (410, "Expired")


def _contained(wanted: Any, got: Any, at: str = "") -> list[str]:
    """Fields of `wanted` that `got` lacks or has changed."""
    if isinstance(wanted, dict) and isinstance(got, dict):
        return [p for k, v in wanted.items() for p in _contained(v, got.get(k), f"{at}.{k}")]
    if isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got):
        return [p for i, v in enumerate(wanted) for p in _contained(v, got[i], f"{at}[{i}]")]
    return [] if wanted == got else [f"{at}: {wanted!r} became {got!r}"]


@pytest.fixture(params=["local", "two-node-p5", "eight-node-p5"])
def environment(request: pytest.FixtureRequest) -> Environment:
    return load(find(request.param))


def test_every_synthesized_manifest_is_taken_and_read_back_equal(server: Server, environment: Environment) -> None:
    """The same manifests, unchanged, are what EKS gets."""
    run = RunSpec("demo", 1, "repository@sha256:" + "0" * 64)
    for manifest in [*cluster_documents(environment), *run_manifests(environment, run)]:
        kind = by_kind(manifest["apiVersion"], manifest["kind"])
        assert kind is not None, f"{manifest['kind']} is not served"
        namespace = manifest["metadata"].get("namespace", environment.namespace) if kind.namespaced else None
        if namespace not in (None, "n"):
            server("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        root = f"/apis/{kind.api_version}" if kind.group else "/api/v1"
        path = f"{root}/namespaces/{namespace}/{kind.plural}" if namespace else f"{root}/{kind.plural}"
        code, answer = server("POST", path, manifest)
        assert code == 201 or (kind.kind == "Namespace" and code == 409), answer
        _, read = server("GET", f"{path}/{manifest['metadata']['name']}")
        assert _contained(manifest, read) == [], manifest["kind"]
