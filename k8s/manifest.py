"""From plain dictionaries to cdk8s and back, and what no manifest may hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # importing it starts a Node process, which those who only want dictionaries need not wait for
    import cdk8s
    from constructs import Construct

Manifest = dict[str, Any]

TOKEN = re.compile(r"\$\{Token\[[^\]]*\]\}|#\{Token\[[^\]]*\]\}")
EMPTY_MEANS_SOMETHING = {"storageClassName", "apiGroups"}
"""Fields whose empty string is a value: no dynamic provisioning, and the core API group."""


class InvalidManifestError(Exception):
    """A manifest holds what Kubernetes would take silently and wrongly. Carries every problem."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def emit(scope: Construct, manifest: Manifest) -> cdk8s.ApiObject:
    """Add one object to a chart. The only place where a dictionary becomes a cdk8s object."""
    import cdk8s

    metadata = manifest["metadata"]
    api_object = cdk8s.ApiObject(
        scope,
        f"{manifest['kind']}-{metadata['name']}",
        api_version=manifest["apiVersion"],
        kind=manifest["kind"],
        metadata=cdk8s.ApiObjectMetadata(
            name=metadata["name"],
            namespace=metadata.get("namespace"),
            labels=metadata.get("labels"),
            annotations=metadata.get("annotations"),
        ),
    )
    # As patches, so that the dictionary arrives as it is: constructor arguments lose empty selectors.
    rest = [key for key in manifest if key not in ("apiVersion", "kind", "metadata")]
    if rest:
        api_object.add_json_patch(*(cdk8s.JsonPatch.add(f"/{key}", manifest[key]) for key in rest))
    return api_object


def chart_of(app: cdk8s.App, name: str, manifests: Iterable[Manifest]) -> cdk8s.Chart:
    """A chart of these objects, named exactly as they say."""
    import cdk8s

    chart = cdk8s.Chart(app, name, disable_resource_name_hashes=True)
    for manifest in manifests:
        emit(chart, manifest)
    return chart


def manifests(charts: Iterable[cdk8s.Chart]) -> list[Manifest]:
    """Every object of the charts as plain dictionaries, ready to apply. Raises as `refuse_open_values` does."""
    documents: list[Manifest] = [document for chart in charts for document in chart.to_json()]
    refuse_open_values(documents)
    return documents


def refuse_open_values(documents: Iterable[Manifest]) -> None:
    """Raises InvalidManifestError naming each token, empty string and null: a value that is known only to
    CloudFormation, or that somebody forgot."""
    problems = [problem for document in documents for problem in problems_of(document)]
    if problems:
        raise InvalidManifestError(problems)


def problems_of(document: Mapping[str, Any]) -> Iterator[str]:
    """Every value of a manifest that must not be there, each with the way to it."""
    where = f"{document.get('kind')}/{document.get('metadata', {}).get('name')}"
    for path, value in _leaves(document, ()):
        dotted = ".".join(path)
        if value is None:
            yield f"{where}: {dotted} is null; leave it out or give it a value"
        elif isinstance(value, str) and TOKEN.search(value):
            yield f"{where}: {dotted} holds a CDK token; only CloudFormation knows its value"
        elif value == "" and not EMPTY_MEANS_SOMETHING.intersection(path):
            yield f"{where}: {dotted} is empty"


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _leaves(item, (*path, str(number)))
    else:
        yield path, value
