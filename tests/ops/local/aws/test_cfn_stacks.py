"""The engine through CloudFormation's API: creating, changing, deleting, rolling back."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from ops.local.aws.testing import World

pytestmark = pytest.mark.integration


def log_group(name: str | None = None, days: int = 7, **more: Any) -> dict[str, Any]:
    named = {"LogGroupName": name} if name else {}
    return {"Type": "AWS::Logs::LogGroup", "Properties": {**named, "RetentionInDays": days}, **more}


def parameter(value: Any, name: str | None = None, **more: Any) -> dict[str, Any]:
    named = {"Name": name} if name else {}
    return {"Type": "AWS::SSM::Parameter", "Properties": {"Type": "String", "Value": value, **named}, **more}


def groups(world: World) -> dict[str, int]:
    found = world.client("logs").describe_log_groups()["logGroups"]
    return {g["logGroupName"]: g.get("retentionInDays", 0) for g in found}


# --- creating


def test_resources_come_in_the_order_of_their_references(world: World) -> None:
    resources = {
        "Last": parameter({"Fn::GetAtt": ["Middle", "Value"]}, DependsOn=["First"]),
        "Middle": parameter({"Ref": "First"}),
        "First": log_group("order"),
    }
    assert world.deploy("order", resources, Outputs={"Name": {"Value": {"Ref": "First"}}}) == "CREATE_COMPLETE"
    done = [logical for logical, status, _ in world.events("order") if status == "CREATE_COMPLETE"]
    assert done == ["First", "Middle", "Last", "order"]
    assert world.outputs("order") == {"Name": "order"}
    assert world.delete("order") == "DELETE_COMPLETE"
    gone = [logical for logical, status, _ in world.events("order") if status == "DELETE_COMPLETE"]
    assert gone == ["Last", "Middle", "First", "order"]
    assert "order" not in groups(world)


def test_a_parameter_without_a_name_gets_one(world: World) -> None:
    """Obstacle 8: aws_eks_v2's KubectlReadyBarrier."""
    assert world.deploy("nameless", {"P": parameter("x")}) == "CREATE_COMPLETE"
    names = [p["Name"] for p in world.client("ssm").describe_parameters()["Parameters"]]
    assert any(name.startswith("CFN-nameless-P-") for name in names)
    world.delete("nameless")


@pytest.mark.parametrize(
    ("resources", "reason"),
    [
        ({"A": {"Type": "AWS::Nothing::AtAll"}}, "Unrecognized resource types: [AWS::Nothing::AtAll]"),
        ({"A": {"Type": "AWS::DynamoDB::Table"}}, "Unrecognized resource types: [AWS::DynamoDB::Table]"),
        ({"A": {"Type": "Custom::Anything"}}, "Unrecognized resource types: [Custom::Anything]"),
        ({"A": parameter({"Ref": "B"})}, "Unresolved resource dependencies [B] in the Resources block"),
        ({"A": log_group() | {"Properties": {"Retention": 1}}}, "extraneous key [Retention] is not permitted"),
        ({"A": parameter({"Ref": "B"}), "B": parameter({"Ref": "A"})}, "Circular dependency between resources"),
        ({"A": parameter({"Fn::ImportValue": "nowhere"})}, "No export named nowhere found"),
        (
            {"A": log_group(), "B": parameter({"Fn::GetAtt": ["A", "Nothing"]})},
            "resource A does not support attribute type Nothing in Fn::GetAtt",
        ),
    ],
)
def test_a_template_that_cannot_be_made_fails_with_its_reason(
    world: World, resources: dict[str, Any], reason: str
) -> None:
    """Obstacle 3: moto skips unknown types and says that all is well."""
    before = groups(world)
    result = world.deploy("bad", resources)
    reasons = [result, *world.reasons("bad", "CREATE_FAILED").values()]
    assert any(reason in text for text in reasons), reasons
    assert groups(world) == before
    world.delete("bad")


def test_a_failing_resource_rolls_everything_back_in_reverse(world: World) -> None:
    """Obstacle 4: no success without the resources, and no half of a stack either."""
    world.client("logs").create_log_group(logGroupName="taken")
    resources = {
        "First": log_group("first"),
        "Second": parameter({"Ref": "First"}, "/second"),
        "Third": log_group("taken", DependsOn="Second"),
    }
    assert world.deploy("rolled", resources) == "ROLLBACK_COMPLETE"
    reason = world.reasons("rolled", "CREATE_FAILED")["Third"]
    assert "already exists" in reason
    assert "HandlerErrorCode: AlreadyExists" in reason
    gone = [logical for logical, status, _ in world.events("rolled") if status == "DELETE_COMPLETE"]
    assert gone == ["Second", "First"]
    assert "first" not in groups(world)
    assert "taken" in groups(world)
    assert world.outputs("rolled") == {}


def test_looking_at_a_rolled_back_stack_makes_nothing(world: World) -> None:
    """Obstacle 6: moto made the resources again."""
    cfn = world.client("cloudformation")
    cfn.describe_stacks(StackName="rolled")
    cfn.describe_stack_resources(StackName="rolled")
    cfn.list_stack_resources(StackName="rolled")
    assert "first" not in groups(world)
    with pytest.raises(ClientError, match="ROLLBACK_COMPLETE state and can not be updated"):
        world.change("rolled", {"A": log_group("again")})
    world.delete("rolled")


def test_a_deletion_policy_outlives_rollback_and_deletion(world: World) -> None:
    resources = {
        "Kept": log_group("kept", DeletionPolicy="Retain"),
        "OnlyOnCreate": log_group("made-only", DeletionPolicy="RetainExceptOnCreate"),
        "Bad": log_group("taken", DependsOn=["Kept", "OnlyOnCreate"]),
    }
    assert world.deploy("policy", resources) == "ROLLBACK_COMPLETE"
    assert "kept" in groups(world)
    assert "made-only" not in groups(world)
    world.delete("policy")
    del resources["Bad"], resources["Kept"]
    assert world.deploy("policy", resources) == "CREATE_COMPLETE"
    assert world.delete("policy") == "DELETE_COMPLETE"
    assert "made-only" in groups(world)
    for name in ("kept", "made-only", "taken"):
        world.client("logs").delete_log_group(logGroupName=name)


def test_without_rollback_the_stack_stays_as_it_failed(world: World) -> None:
    world.fail(kind="create_fails", match="Bad", reason="on demand")
    cfn = world.client("cloudformation")
    world.change("stays", {"Good": log_group("good"), "Bad": log_group("bad", DependsOn="Good")})
    cfn.execute_change_set(StackName="stays", ChangeSetName="test", DisableRollback=True)
    assert world.settle("stays") == "CREATE_FAILED"
    assert "good" in groups(world)
    cfn.rollback_stack(StackName="stays")
    assert world.settle("stays") == "ROLLBACK_COMPLETE"
    assert "good" not in groups(world)
    world.delete("stays")


# --- changing


def test_an_unchanged_template_is_no_change(world: World) -> None:
    world.deploy("same", {"A": log_group("same")})
    found = world.change("same", {"A": log_group("same")})
    assert found["Status"] == "FAILED"
    assert "didn't contain changes" in found["StatusReason"]
    assert world.delete("same") == "DELETE_COMPLETE"


def test_a_change_in_place_keeps_the_resource(world: World) -> None:
    world.deploy("inplace", {"A": log_group("inplace", 7)})
    found = world.change("inplace", {"A": log_group("inplace", 30)})
    change = found["Changes"][0]["ResourceChange"]
    assert (change["Action"], change["Replacement"]) == ("Modify", "False")
    world.client("cloudformation").execute_change_set(StackName="inplace", ChangeSetName="test")
    assert world.settle("inplace") == "UPDATE_COMPLETE"
    assert groups(world)["inplace"] == 30
    world.delete("inplace")


def test_a_replacement_makes_the_new_one_first_and_dependents_follow(world: World) -> None:
    world.deploy("replace", {"A": log_group("old-name"), "B": parameter({"Ref": "A"}, "/replace")})
    found = world.change("replace", {"A": log_group("new-name"), "B": parameter({"Ref": "A"}, "/replace")})
    changes = {c["ResourceChange"]["LogicalResourceId"]: c["ResourceChange"] for c in found["Changes"]}
    assert changes["A"]["Replacement"] == "True"
    assert changes["B"]["Action"] == "Modify"
    world.client("cloudformation").execute_change_set(StackName="replace", ChangeSetName="test")
    assert world.settle("replace") == "UPDATE_COMPLETE"
    assert "old-name" not in groups(world)
    assert world.client("ssm").get_parameter(Name="/replace")["Parameter"]["Value"] == "new-name"
    statuses = [(logical, status) for logical, status, _ in world.events("replace")]
    cleanup = statuses.index(("replace", "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS"))
    assert statuses.index(("A", "DELETE_COMPLETE")) > cleanup > statuses.index(("A", "UPDATE_COMPLETE"))
    world.delete("replace")


def test_what_a_policy_keeps_is_not_removed_when_it_is_replaced(world: World) -> None:
    world.deploy("kept", {"A": log_group("kept-old", UpdateReplacePolicy="Retain")})
    world.deploy("kept", {"A": log_group("kept-new", UpdateReplacePolicy="Retain")})
    assert {"kept-old", "kept-new"} <= set(groups(world))
    world.delete("kept")
    assert "kept-old" in groups(world)
    world.client("logs").delete_log_group(logGroupName="kept-old")


def test_what_the_template_no_longer_names_goes(world: World) -> None:
    world.deploy("less", {"A": log_group("less-a"), "B": log_group("less-b")})
    assert world.deploy("less", {"A": log_group("less-a")}) == "UPDATE_COMPLETE"
    assert "less-b" not in groups(world)
    world.delete("less")


def test_a_failed_update_restores_every_resource(world: World) -> None:
    before = {"A": log_group("back-a", 7), "B": log_group("back-b", 7), "R": log_group("back-r")}
    world.deploy("back", before)
    world.fail(kind="update_fails", match="B", reason="on demand")
    after = {
        "A": log_group("back-a", 30),
        "New": log_group("back-new"),
        "R": log_group("back-r2"),
        "B": log_group("back-b", 30, DependsOn=["A", "New", "R"]),
    }
    assert world.deploy("back", after) == "UPDATE_ROLLBACK_COMPLETE"
    assert world.reasons("back", "UPDATE_FAILED")["B"] == "on demand"
    assert groups(world)["back-a"] == 7
    assert "back-r" in groups(world)
    assert not {"back-new", "back-r2"} & set(groups(world))
    world.fail()
    found = world.change("back", before)
    assert "didn't contain changes" in found["StatusReason"]
    world.delete("back")


def test_the_previous_value_of_a_parameter_is_taken_as_it_was(world: World) -> None:
    """Obstacle 10: also where it comes from Systems Manager."""
    cfn = world.client("cloudformation")
    world.client("ssm").put_parameter(Name="/version", Value="33", Type="String")
    declared = {
        "Version": {"Type": "AWS::SSM::Parameter::Value<String>", "Default": "/version"},
        "Days": {"Type": "Number", "Default": 7},
    }
    group = {
        "Type": "AWS::Logs::LogGroup",
        "Properties": {"LogGroupName": "params", "RetentionInDays": {"Ref": "Days"}},
    }
    outputs = {"V": {"Value": {"Ref": "Version"}}}
    world.deploy("params", {"A": group}, Parameters=declared, Outputs=outputs)
    cfn.update_stack(
        StackName="params",
        UsePreviousTemplate=True,
        Parameters=[
            {"ParameterKey": "Version", "UsePreviousValue": True},
            {"ParameterKey": "Days", "ParameterValue": "30"},
        ],
    )
    assert world.settle("params") == "UPDATE_COMPLETE"
    assert groups(world)["params"] == 30
    assert world.outputs("params") == {"V": "33"}
    world.delete("params")


# --- between stacks


def test_exports_are_imported_and_kept_while_in_use(world: World) -> None:
    """Obstacle 5 for the imports, and AWS's refusals for the exports."""
    exported = {"Name": {"Value": {"Ref": "A"}, "Export": {"Name": "giver:Name"}}}
    world.deploy("giver", {"A": log_group("given")}, Outputs=exported)
    world.deploy("taker", {"B": parameter({"Fn::ImportValue": "giver:Name"}, "/taken")})
    assert world.client("ssm").get_parameter(Name="/taken")["Parameter"]["Value"] == "given"
    cfn = world.client("cloudformation")
    assert cfn.list_imports(ExportName="giver:Name")["Imports"] == ["taker"]

    assert world.delete("giver") == "CREATE_COMPLETE"
    reason = cfn.describe_stacks(StackName="giver")["Stacks"][0]["StackStatusReason"]
    assert reason == "Export giver:Name cannot be deleted as it is in use by taker"
    assert "given" in groups(world)

    assert world.deploy("giver", {"A": log_group("given-2")}, Outputs=exported) == "UPDATE_ROLLBACK_COMPLETE"
    reasons = world.reasons("giver", "UPDATE_ROLLBACK_IN_PROGRESS")
    assert reasons["giver"] == "Export giver:Name cannot be updated as it is in use by taker"
    assert "given" in groups(world)

    assert world.deploy("twin", {"A": log_group("twin")}, Outputs=exported) == "ROLLBACK_COMPLETE"
    assert "is already exported by stack giver" in world.reasons("twin", "ROLLBACK_IN_PROGRESS")["twin"]
    world.delete("twin")
    assert world.delete("taker") == "DELETE_COMPLETE"
    assert world.delete("giver") == "DELETE_COMPLETE"


def test_termination_protection_is_enforced(world: World) -> None:
    cfn = world.client("cloudformation")
    world.deploy("protected", {"A": log_group("protected")})
    cfn.update_termination_protection(StackName="protected", EnableTerminationProtection=True)
    with pytest.raises(ClientError, match="cannot be deleted while TerminationProtection is enabled"):
        cfn.delete_stack(StackName="protected")
    cfn.update_termination_protection(StackName="protected", EnableTerminationProtection=False)
    assert world.delete("protected") == "DELETE_COMPLETE"


def test_a_change_set_belongs_to_its_stack(world: World) -> None:
    """Obstacle 9: names are not unique, and one that is not there is answered at once."""
    cfn = world.client("cloudformation")
    for stack in ("one", "two"):
        world.change(stack, {"A": log_group(f"cs-{stack}")})
    found = [cfn.describe_change_set(StackName=s, ChangeSetName="test")["StackName"] for s in ("one", "two")]
    assert found == ["one", "two"]
    cfn.delete_change_set(StackName="one", ChangeSetName="nowhere")
    with pytest.raises(ClientError) as refused:
        cfn.describe_change_set(StackName="one", ChangeSetName="nowhere")
    assert refused.value.response["Error"]["Code"] == "ChangeSetNotFound"
    assert world.delete("one") == world.delete("two") == "DELETE_COMPLETE"


def test_what_is_left_of_a_retained_resource_can_be_adopted_by_name(world: World) -> None:
    cfn = world.client("cloudformation")
    bucket = {"Type": "AWS::S3::Bucket", "Properties": {"BucketName": "archive"}, "DeletionPolicy": "Retain"}
    assert world.deploy("first-life", {"B": bucket}) == "CREATE_COMPLETE"
    assert world.delete("first-life") == "DELETE_COMPLETE"
    assert "B" in world.reasons("first-life", "DELETE_SKIPPED")
    assert world.deploy("second-life", {"B": bucket}) == "ROLLBACK_COMPLETE"
    assert "archive already exists" in world.reasons("second-life", "CREATE_FAILED")["B"]
    world.delete("second-life")
    import json

    cfn.create_change_set(
        StackName="second-life",
        ChangeSetName="adopt",
        TemplateBody=json.dumps({"Resources": {"B": bucket}}),
        ChangeSetType="CREATE",
        ImportExistingResources=True,
    )
    cfn.execute_change_set(StackName="second-life", ChangeSetName="adopt")
    assert world.settle("second-life") == "CREATE_COMPLETE"
    world.delete("second-life")


def test_a_failed_deletion_is_said_and_can_be_tried_again(world: World) -> None:
    world.deploy("clings", {"A": log_group("clings"), "B": log_group("lets-go")})
    world.fail(kind="delete_fails", match="A", reason="has a dependent object")
    assert world.delete("clings") == "DELETE_FAILED"
    assert world.reasons("clings", "DELETE_FAILED")["A"] == "has a dependent object"
    assert "lets-go" not in groups(world)
    world.fail()
    assert world.delete("clings") == "DELETE_COMPLETE"
    assert "clings" not in groups(world)


def test_events_can_be_missing(world: World) -> None:
    world.fail(kind="events_missing", match="silent")
    assert world.deploy("silent", {"A": log_group("silent")}) == "CREATE_COMPLETE"
    assert world.events("silent") == []
    world.fail()
    assert len(world.events("silent")) > 2
    world.delete("silent")
