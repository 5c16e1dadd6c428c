"""How CloudFormation's API shows stacks, resources, events and change sets."""

from __future__ import annotations

import json
from typing import Any

from ops.local.aws.cloudformation import state
from ops.local.aws.cloudformation.template import Template

View = dict[str, Any]


def _tags(tags: dict[str, str]) -> list[View]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def _parameters(settings: state.Settings) -> list[View]:
    shown = []
    for key, value in settings.parameters.items():
        view = {"ParameterKey": key, "ParameterValue": str(settings.given.get(key, value))}
        declared = settings.template.get("Parameters", {}).get(key, {})
        if str(declared.get("Type", "")).startswith("AWS::SSM::"):
            view |= {"ParameterValue": declared.get("Default", ""), "ResolvedValue": str(value)}
        shown.append(view)
    return shown


def stack(found: state.Stack) -> View:
    """A stack as DescribeStacks shows it."""
    view = {
        "StackId": found.id,
        "StackName": found.name,
        "ChangeSetId": found.change_set_id or None,
        "Description": found.description or None,
        "Parameters": _parameters(found.settings),
        "CreationTime": found.created_at,
        "LastUpdatedTime": found.updated_at,
        "DeletionTime": found.deleted_at,
        "StackStatus": found.status,
        "StackStatusReason": found.reason or None,
        "DisableRollback": found.disable_rollback,
        "NotificationARNs": list(found.notification_arns),
        "Capabilities": list(found.settings.capabilities),
        "Outputs": [_output(output) for output in found.outputs],
        "RoleARN": found.role_arn or None,
        "Tags": _tags(found.settings.tags),
        "EnableTerminationProtection": found.termination_protection,
        "DriftInformation": {"StackDriftStatus": "NOT_CHECKED"},
    }
    return _present(view)


def _output(output: state.Output) -> View:
    return _present(
        {
            "OutputKey": output.key,
            "OutputValue": output.value,
            "Description": output.description or None,
            "ExportName": output.export or None,
        }
    )


def stack_summary(found: state.Stack) -> View:
    """A stack as ListStacks shows it."""
    kept = [
        "StackId",
        "StackName",
        "CreationTime",
        "LastUpdatedTime",
        "DeletionTime",
        "StackStatus",
        "StackStatusReason",
        "DriftInformation",
    ]
    return {key: value for key, value in stack(found).items() if key in kept}


def event(found: state.Event) -> View:
    """An event."""
    return _present(
        {
            "StackId": found.stack_id,
            "EventId": found.id,
            "StackName": found.stack_name,
            "LogicalResourceId": found.logical_id,
            "PhysicalResourceId": found.physical_id,
            "ResourceType": found.type,
            "Timestamp": found.time,
            "ResourceStatus": found.status,
            "ResourceStatusReason": found.reason or None,
            "ClientRequestToken": found.token or None,
        }
    )


def operation_event(found: state.Event) -> View:
    """An event as DescribeEvents shows it."""
    failed = found.status.endswith("_FAILED")
    view = {**event(found), "EventType": "PROVISIONING_ERROR" if failed else "STACK_EVENT"}
    view.pop("StackName")
    return view


def resource(owner: state.Stack, found: state.Resource) -> View:
    """A resource as DescribeStackResources shows it."""
    summary = resource_summary(found)
    return {
        "StackName": owner.name,
        "StackId": owner.id,
        "Timestamp": summary.pop("LastUpdatedTimestamp"),
        **summary,
    }


def resource_summary(found: state.Resource) -> View:
    """A resource as ListStackResources shows it."""
    return _present(
        {
            "LogicalResourceId": found.logical_id,
            "PhysicalResourceId": found.physical_id or None,
            "ResourceType": found.type,
            "LastUpdatedTimestamp": found.changed_at,
            "ResourceStatus": found.status,
            "ResourceStatusReason": found.reason or None,
            "DriftInformation": {"StackResourceDriftStatus": "NOT_CHECKED"},
        }
    )


def resource_detail(owner: state.Stack, found: state.Resource) -> View:
    """A resource as DescribeStackResource shows it."""
    return {
        "StackName": owner.name,
        "StackId": owner.id,
        "Metadata": json.dumps(found.metadata),
        **resource_summary(found),
    }


def change_set_summary(found: state.ChangeSet, owner: state.Stack) -> View:
    """A change set without its changes."""
    return _present(
        {
            "ChangeSetId": found.id,
            "ChangeSetName": found.name,
            "StackId": owner.id,
            "StackName": owner.name,
            "Description": found.description or None,
            "CreationTime": found.created_at,
            "ExecutionStatus": found.execution_status,
            "Status": found.status,
            "StatusReason": found.reason or None,
        }
    )


def change_set(found: state.ChangeSet, owner: state.Stack) -> View:
    """A change set with its changes."""
    return {
        **change_set_summary(found, owner),
        "Parameters": _parameters(found.settings),
        "Capabilities": list(found.settings.capabilities),
        "Tags": _tags(found.settings.tags),
        "Changes": [{"Type": "Resource", "ResourceChange": _change(change)} for change in found.changes],
    }


def _change(change: state.Change) -> View:
    view = {
        "Action": change.action,
        "LogicalResourceId": change.logical_id,
        "PhysicalResourceId": change.physical_id or None,
        "ResourceType": change.type,
        "Replacement": change.replacement or None,
        "Scope": list(change.scope),
        "Details": [
            {
                "Target": {"Attribute": "Properties", "Name": name, "RequiresRecreation": recreation},
                "Evaluation": "Static",
                "ChangeSource": "DirectModification",
            }
            for name, recreation in change.details
        ],
    }
    return _present(view)


def template_summary(template: Template) -> View:
    """What a template needs and makes."""
    return {
        "Description": template.get("Description", ""),
        "Version": template.get("AWSTemplateFormatVersion", "2010-09-09"),
        "ResourceTypes": sorted({body["Type"] for body in template["Resources"].values()}),
        "Parameters": [
            _present(
                {
                    "ParameterKey": key,
                    "DefaultValue": None if spec.get("Default") is None else str(spec["Default"]),
                    "ParameterType": spec.get("Type", "String"),
                    "NoEcho": bool(spec.get("NoEcho")),
                    "Description": spec.get("Description", ""),
                }
            )
            for key, spec in template.get("Parameters", {}).items()
        ],
    }


def _present(view: View) -> View:
    return {key: value for key, value in view.items() if value is not None}
