"""EKS clusters and what belongs to them besides nodes."""

from __future__ import annotations

from typing import Any

from botocore.exceptions import ClientError

from ops.local.aws.cloudformation.errors import ResourceError, handler_reason
from ops.local.aws.resources.base import (
    Attributes,
    Context,
    Made,
    Properties,
    ResourceModel,
    absent_is_fine,
)

CLUSTER_LIMIT_S, ADDON_LIMIT_S = 3600, 1200
KEPT_CASE = frozenset({"Labels", "Tags", "ConfigurationValues"})


def lower_first(value: Any) -> Any:
    """CloudFormation's PascalCase to EKS's camelCase; flags as text become flags."""
    if isinstance(value, dict):
        return {
            key[:1].lower() + key[1:]: inner if key in KEPT_CASE else lower_first(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [lower_first(inner) for inner in value]
    return value


def status_of(found: dict[str, Any]) -> str:
    """The status, failing on those that end a wait."""
    status = str(found["status"])
    if status in ("FAILED", "CREATE_FAILED", "UPDATE_FAILED", "DELETE_FAILED", "DEGRADED"):
        issues = ", ".join(
            f"Issue(Code={i['code']}, Message={i['message']}, ResourceIds=[{', '.join(i.get('resourceIds', []))}])"
            for i in found.get("health", {}).get("issues", [])
        )
        message = f"[{issues}] (Service: null, Status Code: 0, Request ID: null)"
        raise ResourceError(handler_reason(message, "GeneralServiceException"))
    return status


class Cluster(ResourceModel):
    """A cluster."""

    type = "AWS::EKS::Cluster"

    def create(self, ctx: Context) -> Made:
        """Starts the cluster and waits for its control plane."""
        name = ctx.properties.get("Name") or ctx.name(100)
        asked = self._asked(ctx, ctx.properties)
        ctx.client("eks").create_cluster(name=name, **asked)
        ctx.claim(Made(name))
        ctx.wait(lambda: status_of(self._describe(ctx, name)) == "ACTIVE", limit_s=CLUSTER_LIMIT_S)
        return Made(name, self._attributes(self._describe(ctx, name)))

    @staticmethod
    def _asked(ctx: Context, p: Properties) -> dict[str, Any]:
        kept = [
            "RoleArn",
            "ResourcesVpcConfig",
            "Version",
            "KubernetesNetworkConfig",
            "AccessConfig",
            "EncryptionConfig",
            "UpgradePolicy",
            "BootstrapSelfManagedAddons",
            "DeletionProtection",
            "ComputeConfig",
            "StorageConfig",
            "ZonalShiftConfig",
        ]
        asked: dict[str, Any] = lower_first({key: p[key] for key in kept if key in p})
        if "Logging" in p:
            enabled = [t["Type"] for t in p["Logging"]["ClusterLogging"].get("EnabledTypes", ())]
            asked["logging"] = {"clusterLogging": [{"types": enabled, "enabled": True}]}
        return asked | {"tags": ctx.tags(p.get("Tags"))}

    def update(self, ctx: Context) -> Attributes:
        """Changes version, access, logging, one after the other as EKS wants it."""
        eks = ctx.client("eks")
        before, after = self._asked(ctx, ctx.old), self._asked(ctx, ctx.properties)
        if before.get("version") != after.get("version"):
            eks.update_cluster_version(name=ctx.physical_id, version=after["version"])
            self._wait(ctx, ctx.physical_id)
        for key in ("resourcesVpcConfig", "logging", "accessConfig", "upgradePolicy", "deletionProtection"):
            if key in after and before.get(key) != after[key]:
                eks.update_cluster_config(name=ctx.physical_id, **{key: after[key]})
                self._wait(ctx, ctx.physical_id)
        return self._attributes(self._describe(ctx, ctx.physical_id))

    def _wait(self, ctx: Context, name: str) -> None:
        ctx.wait(lambda: status_of(self._describe(ctx, name)) == "ACTIVE", limit_s=CLUSTER_LIMIT_S)

    def delete(self, ctx: Context) -> None:
        """Removes the cluster and waits until it is gone."""
        with absent_is_fine():
            ctx.client("eks").delete_cluster(name=ctx.physical_id)
        ctx.wait(lambda: gone(lambda: self._describe(ctx, ctx.physical_id)), limit_s=CLUSTER_LIMIT_S)

    @staticmethod
    def _describe(ctx: Context, name: str) -> dict[str, Any]:
        found: dict[str, Any] = ctx.client("eks").describe_cluster(name=name)["cluster"]
        return found

    @staticmethod
    def _attributes(found: dict[str, Any]) -> Attributes:
        return {
            "Arn": found["arn"],
            "Id": found["name"],
            "Endpoint": found["endpoint"],
            "CertificateAuthorityData": found["certificateAuthority"]["data"],
            "ClusterSecurityGroupId": found["resourcesVpcConfig"]["clusterSecurityGroupId"],
            "OpenIdConnectIssuerUrl": found["identity"]["oidc"]["issuer"],
            "EncryptionConfigKeyArn": next(
                (config["provider"]["keyArn"] for config in found.get("encryptionConfig", [])), ""
            ),
            "KubernetesNetworkConfig.ServiceIpv4Cidr": found["kubernetesNetworkConfig"]["serviceIpv4Cidr"],
        }


def gone(describe: Any) -> bool:
    """Whether what is described does not exist any more; a failed deletion fails."""
    try:
        status_of(describe())
    except ClientError as error:
        if "NotFound" in error.response["Error"]["Code"]:
            return True
        raise
    return False


class Addon(ResourceModel):
    """An add-on."""

    type = "AWS::EKS::Addon"

    def create(self, ctx: Context) -> Made:
        """Starts the add-on and waits until it works."""
        cluster, name = ctx.properties["ClusterName"], ctx.properties["AddonName"]
        kept = [
            "AddonVersion",
            "ServiceAccountRoleArn",
            "ResolveConflicts",
            "ConfigurationValues",
            "PodIdentityAssociations",
        ]
        asked = lower_first({key: ctx.properties[key] for key in kept if key in ctx.properties})
        ctx.client("eks").create_addon(
            clusterName=cluster, addonName=name, tags=ctx.tags(ctx.properties.get("Tags")), **asked
        )
        made = Made(f"{cluster}|{name}")
        ctx.claim(made)
        self._wait(ctx, cluster, name)
        return Made(made.physical_id, {"Arn": self._describe(ctx, cluster, name)["addonArn"]})

    def update(self, ctx: Context) -> Attributes:
        """Changes version and configuration."""
        cluster, name = ctx.physical_id.split("|")
        kept = ("AddonVersion", "ServiceAccountRoleArn", "ResolveConflicts", "ConfigurationValues")
        asked = lower_first({key: ctx.properties[key] for key in kept if key in ctx.properties})
        ctx.client("eks").update_addon(clusterName=cluster, addonName=name, **asked)
        self._wait(ctx, cluster, name)
        return {}

    def delete(self, ctx: Context) -> None:
        """Removes the add-on and waits until it is gone."""
        cluster, name = ctx.physical_id.split("|")
        with absent_is_fine():
            ctx.client("eks").delete_addon(clusterName=cluster, addonName=name)
        ctx.wait(lambda: gone(lambda: self._describe(ctx, cluster, name)), limit_s=ADDON_LIMIT_S)

    def _wait(self, ctx: Context, cluster: str, name: str) -> None:
        ctx.wait(lambda: status_of(self._describe(ctx, cluster, name)) == "ACTIVE", limit_s=ADDON_LIMIT_S)

    @staticmethod
    def _describe(ctx: Context, cluster: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = ctx.client("eks").describe_addon(clusterName=cluster, addonName=name)["addon"]
        return found


class AccessEntry(ResourceModel):
    """A principal that the cluster lets in."""

    type = "AWS::EKS::AccessEntry"

    def create(self, ctx: Context) -> Made:
        """Makes the entry with its policies."""
        eks, cluster, principal = ctx.client("eks"), ctx.properties["ClusterName"], ctx.properties["PrincipalArn"]
        asked = lower_first(
            {k: ctx.properties[k] for k in ("KubernetesGroups", "Type", "Username") if k in ctx.properties}
        )
        entry = eks.create_access_entry(
            clusterName=cluster, principalArn=principal, tags=ctx.tags(ctx.properties.get("Tags")), **asked
        )["accessEntry"]
        made = Made(f"{principal}|{cluster}", {"AccessEntryArn": entry["accessEntryArn"]})
        ctx.claim(made)
        self._policies(ctx, {}, ctx.properties)
        return made

    def update(self, ctx: Context) -> Attributes:
        """Changes groups and policies."""
        asked = lower_first(
            {k: ctx.properties[k] for k in ("KubernetesGroups", "Username") if k in ctx.properties}
        )
        ctx.client("eks").update_access_entry(
            clusterName=ctx.properties["ClusterName"], principalArn=ctx.properties["PrincipalArn"], **asked
        )
        self._policies(ctx, ctx.old, ctx.properties)
        return {}

    def delete(self, ctx: Context) -> None:
        """Shuts the principal out."""
        principal, cluster = ctx.physical_id.split("|")
        with absent_is_fine():
            ctx.client("eks").delete_access_entry(clusterName=cluster, principalArn=principal)

    @staticmethod
    def _policies(ctx: Context, old: Properties, new: Properties) -> None:
        eks, key = ctx.client("eks"), {"clusterName": new["ClusterName"], "principalArn": new["PrincipalArn"]}
        after = {p["PolicyArn"]: p["AccessScope"] for p in new.get("AccessPolicies", ())}
        for policy in old.get("AccessPolicies", ()):
            if policy["PolicyArn"] not in after:
                eks.disassociate_access_policy(policyArn=policy["PolicyArn"], **key)
        for arn, scope in after.items():
            eks.associate_access_policy(policyArn=arn, accessScope=lower_first(scope), **key)


class PodIdentityAssociation(ResourceModel):
    """A role for a service account."""

    type = "AWS::EKS::PodIdentityAssociation"

    def create(self, ctx: Context) -> Made:
        """Makes the association."""
        kept = ("ClusterName", "Namespace", "ServiceAccount", "RoleArn")
        asked = lower_first({key: ctx.properties[key] for key in kept})
        found = ctx.client("eks").create_pod_identity_association(
            tags=ctx.tags(ctx.properties.get("Tags")), **asked
        )["association"]
        return Made(
            found["associationArn"],
            {"AssociationArn": found["associationArn"], "AssociationId": found["associationId"]},
        )

    def update(self, ctx: Context) -> Attributes:
        """Gives another role."""
        ctx.client("eks").update_pod_identity_association(
            clusterName=ctx.properties["ClusterName"],
            associationId=ctx.physical_id.split("/")[-1],
            roleArn=ctx.properties["RoleArn"],
        )
        return {}

    def delete(self, ctx: Context) -> None:
        """Takes the role away."""
        with absent_is_fine():
            ctx.client("eks").delete_pod_identity_association(
                clusterName=ctx.properties["ClusterName"], associationId=ctx.physical_id.split("/")[-1]
            )
