"""`environment.schema.json`, for editors: `python -m environments.schema` writes it anew."""

from __future__ import annotations

import json
from pathlib import Path

from environments.environment import Environment

PATH = Path(__file__).with_name("environment.schema.json")


def schema_text() -> str:
    """JSON schema of an environment file. The rules of environments/rules are not in it."""
    schema = Environment.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Steadfast environment"
    return json.dumps(schema, indent=1) + "\n"


if __name__ == "__main__":
    PATH.write_text(schema_text(), encoding="utf-8")
