"""Service Quotas: the quotas that this emulator enforces."""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult, BaseResponse

from ops.local.aws.cloudformation.state import ACCOUNT
from ops.local.aws.refusals import AwsError
from ops.local.aws.services.quotas import QUOTAS, Quota, limit
from ops.local.aws.services.routing import answer_with


class ServiceQuotasApi(BaseResponse):
    """One method for each action."""

    def __init__(self) -> None:
        super().__init__(service_name="service-quotas")
        self.automated_parameter_parsing = True

    def get_service_quota(self) -> ActionResult:
        """One quota as it applies to the account."""
        key = (self._get_param("ServiceCode"), self._get_param("QuotaCode"))
        found = next((quota for quota in QUOTAS if (quota.service, quota.code) == key), None)
        if found is None:
            raise AwsError("NoSuchResourceException", f"The quota {key[1]} of {key[0]} does not exist.")
        return ActionResult({"Quota": self._view(found, limit(found.key))})

    def list_service_quotas(self) -> ActionResult:
        """The service's quotas as they apply to the account."""
        return ActionResult({"Quotas": [self._view(quota, limit(quota.key)) for quota in self._of_service()]})

    def list_aws_default_service_quotas(self) -> ActionResult:
        """The service's quotas as AWS gives them to new accounts."""
        return ActionResult({"Quotas": [self._view(quota, quota.value) for quota in self._of_service()]})

    def _of_service(self) -> list[Quota]:
        return [quota for quota in QUOTAS if quota.service == self._get_param("ServiceCode")]

    def _view(self, quota: Quota, value: int) -> dict[str, Any]:
        return {
            "ServiceCode": quota.service,
            "ServiceName": quota.service,
            "QuotaArn": f"arn:aws:servicequotas:{self.region}:{ACCOUNT}:{quota.service}/{quota.code}",
            "QuotaCode": quota.code,
            "QuotaName": quota.name,
            "Value": float(value),
            "Unit": "None",
            "Adjustable": True,
            "GlobalQuota": False,
        }


def install() -> None:
    """Puts our API in moto's place."""
    answer_with("servicequotas", ServiceQuotasApi)
