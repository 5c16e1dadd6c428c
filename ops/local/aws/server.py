"""The emulated AWS as one process: `python -m ops.local.aws.server --state-dir DIR`."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
ADDRESS_FILE = "aws-server.json"
LOG = logging.getLogger(__name__)


def _environment(port: int) -> None:
    """What moto reads while it is imported."""
    os.environ["MOTO_PORT"] = str(port)
    os.environ["MOTO_IAM_LOAD_MANAGED_POLICIES"] = "true"
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")


def _previous_port(state_dir: Path) -> int:
    """The port of the last server, so that addresses in deployed resources stay true; 0: any."""
    try:
        return int(json.loads((state_dir / ADDRESS_FILE).read_text())["port"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _bind(state_dir: Path) -> Any:
    import socket

    for port in (_previous_port(state_dir), 0):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError:
            listener.close()
            continue
        listener.listen(128)
        return listener
    raise OSError(f"no free port on {HOST}")


def serve(state_dir: Path) -> None:
    """Serves until SIGTERM; the address file tells others where."""
    state_dir.mkdir(parents=True, exist_ok=True)
    listener = _bind(state_dir)
    port = listener.getsockname()[1]
    _environment(port)
    from werkzeug.serving import make_server

    from ops.local.aws import clients, world
    from ops.local.aws.persistence import Store
    from ops.local.aws.settings import LIVE
    from ops.local.state_files import UnreadableStateError, end_server

    clients.use_endpoint(f"http://{HOST}:{port}")
    application = world.application()
    store = Store(state_dir)
    try:
        LIVE.follow(state_dir)
        store.load()
    except UnreadableStateError as error:
        end_server(error)
    server = make_server(
        HOST, port, application, threaded=True, request_handler=world.RequestHandler, fd=listener.fileno()
    )
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    store.save_forever()
    _announce(state_dir, port)
    threading.Thread(target=world.go, name="go", daemon=True).start()
    server.serve_forever(poll_interval=0.1)
    store.stop()


def _announce(state_dir: Path, port: int) -> None:
    partial = state_dir / f"{ADDRESS_FILE}.partial"
    partial.write_text(json.dumps({"pid": os.getpid(), "port": port}))
    partial.replace(state_dir / ADDRESS_FILE)


def main() -> None:
    """The process's entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state-dir", type=Path, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    serve(arguments.state_dir)


if __name__ == "__main__":
    main()
