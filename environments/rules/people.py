"""Who gets in, what they may have, and how things are tagged."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from environments.problems import Problem
from environments.rules.place import partition_of
from environments.shapes import shown

if TYPE_CHECKING:
    from environments.environment import Environment

_TAG_LIMIT = 50
_TAG_KEY = re.compile(r"[\w .:/=+@-]{1,128}")
_TAG_VALUE = re.compile(r"[\w .:/=+@-]{0,256}")
OUR_TAGS = "steadfast:"


def somebody_gets_in(env: Environment) -> Iterator[Problem]:
    """The cluster's creator is CloudFormation's role: without an access entry it belongs to nobody."""
    if not env.access.admins:
        yield Problem(
            "access.admins",
            "is empty: the cluster's creator is CloudFormation's role, so nobody could enter it",
            "at least one IAM role",
            "add `admins: [arn:aws:iam::<account>:role/<role>]` under access",
            "EKS guide, access entries",
        )


def roles_have_one_entry(env: Environment) -> Iterator[Problem]:
    """EKS takes one access entry for a role."""
    counts = Counter((*env.access.admins, *env.access.researchers))
    for role, count in counts.items():
        if count > 1:
            yield Problem(
                "access",
                f"{role} is named {count} times",
                "one access entry for a role",
                "name it under admins or under researchers, once",
                "EKS guide, access entries",
            )


def arns_are_of_the_partition(env: Environment) -> Iterator[Problem]:
    """A role of GovCloud is nobody in a commercial region, and the access entry fails the cluster stack."""
    named = {
        **{f"access.admins.{number}": role for number, role in enumerate(env.access.admins)},
        **{f"access.researchers.{number}": role for number, role in enumerate(env.access.researchers)},
        **({"permissions_boundary": env.permissions_boundary} if env.permissions_boundary else {}),
    }
    partition = partition_of(env.region)
    for field, arn in named.items():
        if arn.split(":")[1] != partition:
            yield Problem(
                field,
                f"{arn} is not of the partition of {env.region}",
                f"an ARN that begins with arn:{partition}:",
                "copy it from the account that the environment is in",
                "IAM guide, ARNs and partitions",
            )


def quota_lets_a_run_start(env: Environment) -> Iterator[Problem]:
    """A Job asks for all its pods at once."""
    gpus, needed = env.access.quota.gpus, (env.nodes + env.spares) * env.instance.gpus
    if gpus is not None and gpus < needed:
        yield Problem(
            "access.quota.gpus",
            f"{gpus} is less than the {needed} that one run asks for, with its spares",
            f"{needed} or more",
            "raise it, or remove it",
            "Kubernetes resource quotas",
        )


def boundary_is_in_the_account(env: Environment) -> Iterator[Problem]:
    """IAM takes boundaries of the role's own account only."""
    boundary = env.permissions_boundary
    if boundary and env.account and boundary.split(":")[4] not in (env.account, "aws"):
        yield Problem(
            "permissions_boundary",
            f"{boundary} is not in account {env.account}",
            "a policy of the account, or one of AWS's own",
            "correct the ARN, or account",
            "IAM guide, permissions boundaries",
        )


def secrets_are_named_once(env: Environment) -> Iterator[Problem]:
    """Each becomes a file, by its name without the slashes that a file name cannot have."""
    for name, count in Counter(map(secret_file, env.secrets)).items():
        if count > 1:
            yield Problem(
                "secrets",
                f"{count} of them would be the file {name}",
                "one secret a file; a slash in a name becomes _",
                "remove or rename one",
                "Secrets Store CSI",
            )


def secret_file(secret: str) -> str:
    """The name of a secret's file in training pods."""
    return secret.replace("/", "_")


def tags_are_legal(env: Environment) -> Iterator[Problem]:
    """One bad tag fails every stack."""
    for key, value in env.tags.items():
        field = f"tags.{key}"
        if key.lower().startswith("aws:") or key.startswith(OUR_TAGS):
            yield Problem(
                field,
                "the prefix is taken",
                f"keys that begin neither with aws: nor with {OUR_TAGS}",
                "rename it; owner, cost_centre and expires are fields of their own",
                "AWS tagging rules",
            )
        elif not _TAG_KEY.fullmatch(key) or not _TAG_VALUE.fullmatch(value):
            yield _refused_by_aws(field, f"{shown(key)}: {shown(value)}")
    for field, text in {"owner": env.owner, "cost_centre": env.cost_centre}.items():
        if text and not _TAG_VALUE.fullmatch(text):
            yield _refused_by_aws(field, f"as a tag {shown(text)}")
    if len(env.all_tags) > _TAG_LIMIT - 1:
        yield Problem(
            "tags",
            f"with ours they are {len(env.all_tags)}",
            f"{_TAG_LIMIT - 1}, since Name is added",
            "remove some",
            "AWS tagging rules",
        )


def _refused_by_aws(field: str, what: str) -> Problem:
    return Problem(
        field,
        f"{what} has a character or a length that AWS refuses",
        "letters, digits, spaces and _ . : / = + - @; keys of 128, values of 256 characters",
        "shorten or rewrite it",
        "AWS tagging rules",
    )


RULES = (
    somebody_gets_in,
    roles_have_one_entry,
    arns_are_of_the_partition,
    quota_lets_a_run_start,
    boundary_is_in_the_account,
    secrets_are_named_once,
    tags_are_legal,
)
