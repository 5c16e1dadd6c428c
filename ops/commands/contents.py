"""image build, image push, data put: what goes into an environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ops.errors import InvalidInputError
from ops.options import Call, EnvironmentArgument, JsonOption, LocalOption

image_app = typer.Typer(name="image", no_args_is_help=True, help="The training image.")
data_app = typer.Typer(name="data", no_args_is_help=True, help="Input data.")


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    image_app.command(epilog="**Example:** `steadfast image build two-node-p5`")(build)
    image_app.command(epilog="**Example:** `steadfast image push two-node-p5`")(push)
    data_app.command(epilog="**Example:** `steadfast data put two-node-p5 ./tokens`")(put)
    app.add_typer(image_app)
    app.add_typer(data_app)


@data_app.callback()
def data() -> None:
    """Input data."""


def build(environment: EnvironmentArgument, local: LocalOption = False, as_json: JsonOption = False) -> None:
    """Build the image with the container engine of this machine."""
    from ops.aws.access import using_aws
    from ops.aws.image import build as build_image

    call = Call.of(environment, local=local, as_json=as_json)
    with using_aws(call) as aws:
        name = build_image(aws, call.output.say)
    call.output.result({"image": name}, lambda console: console.print(name, markup=False))


def push(environment: EnvironmentArgument, local: LocalOption = False, as_json: JsonOption = False) -> None:
    """Build and push the image, by CodeBuild where there is no engine, and write its digest into the file."""
    from environments.files import write_value
    from ops.aws.access import using_aws
    from ops.aws.image import push as push_image

    call = Call.of(environment, local=local, as_json=as_json)
    with using_aws(call) as aws:
        image = push_image(aws, call.output.say)
    write_value(call.path, "image", image)
    result = {"image": image, "file": str(call.path)}
    call.output.result(result, lambda console: console.print(f"{call.path}: image: {image}", markup=False))


def put(
    environment: EnvironmentArgument,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="train/ and eval/, each with index.json and shards.")
    ],
    local: LocalOption = False,
    as_json: JsonOption = False,
) -> None:
    """Upload a data set into the archive's input prefix; the file system shows it at /data."""
    from ops.aws.access import using_aws
    from ops.aws.upload import check_data_set
    from ops.aws.upload import put as upload

    call = Call.of(environment, local=local, as_json=as_json)
    if not folder.is_dir():
        raise InvalidInputError(f"DIR: {folder} is not a folder")
    check_data_set(folder)
    with using_aws(call) as aws:
        prefix = upload(aws, folder, call.output.say)
    call.output.result({"prefix": prefix}, lambda console: console.print(prefix, markup=False))
