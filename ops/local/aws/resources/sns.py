"""Topics, subscriptions and their policies."""

from __future__ import annotations

import json

from ops.local.aws.resources.base import (
    Attributes,
    Context,
    Made,
    Properties,
    ResourceModel,
    absent_is_fine,
)


class Topic(ResourceModel):
    """A topic."""

    type = "AWS::SNS::Topic"

    def create(self, ctx: Context) -> Made:
        """Makes the topic."""
        name = ctx.properties.get("TopicName") or ctx.name(256)
        tags = [tag for tag in ctx.tag_list(ctx.properties.get("Tags")) if not tag["Key"].startswith("aws:")]
        arn = ctx.client("sns").create_topic(Name=name, Tags=tags)["TopicArn"]
        made = Made(arn, {"TopicArn": arn, "TopicName": name})
        ctx.claim(made)
        self._attributes(ctx, arn, ctx.properties)
        return made

    def update(self, ctx: Context) -> Attributes:
        """Changes display name and key."""
        self._attributes(ctx, ctx.physical_id, ctx.properties)
        return {}

    def delete(self, ctx: Context) -> None:
        """Removes the topic."""
        with absent_is_fine():
            ctx.client("sns").delete_topic(TopicArn=ctx.physical_id)

    @staticmethod
    def _attributes(ctx: Context, arn: str, p: Properties) -> None:
        for key in ("DisplayName", "KmsMasterKeyId"):
            if key in p:
                ctx.client("sns").set_topic_attributes(TopicArn=arn, AttributeName=key, AttributeValue=p[key])


class Subscription(ResourceModel):
    """A subscription."""

    type = "AWS::SNS::Subscription"

    def create(self, ctx: Context) -> Made:
        """Subscribes."""
        arn = ctx.client("sns").subscribe(
            TopicArn=ctx.properties["TopicArn"],
            Protocol=ctx.properties["Protocol"],
            Endpoint=ctx.properties["Endpoint"],
            ReturnSubscriptionArn=True,
        )["SubscriptionArn"]
        return Made(arn, {"Arn": arn})

    def delete(self, ctx: Context) -> None:
        """Unsubscribes."""
        with absent_is_fine():
            ctx.client("sns").unsubscribe(SubscriptionArn=ctx.physical_id)


class TopicPolicy(ResourceModel):
    """Who may publish."""

    type = "AWS::SNS::TopicPolicy"

    def create(self, ctx: Context) -> Made:
        """Puts the policy on every topic."""
        self._put(ctx, ctx.properties)
        return Made(ctx.name())

    def update(self, ctx: Context) -> Attributes:
        """Changes the policy."""
        self._put(ctx, ctx.properties)
        return {}

    def delete(self, ctx: Context) -> None:
        """The topics' default policy comes back with the topics; SNS takes no policy away."""

    @staticmethod
    def _put(ctx: Context, p: Properties) -> None:
        for topic in p["Topics"]:
            ctx.client("sns").set_topic_attributes(
                TopicArn=topic, AttributeName="Policy", AttributeValue=json.dumps(p["PolicyDocument"])
            )
