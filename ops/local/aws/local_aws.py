"""Starts, finds and stops the emulated AWS of a state directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock

from ops.errors import CloudError
from ops.interrupts import ended_if_interrupted
from ops.local.aws.server import ADDRESS_FILE, HOST
from ops.local.aws.settings import FILE_NAME, Failure, Settings, read
from ops.local.state_files import raise_if_refused

START_LIMIT_S = 60.0
STOP_LIMIT_S = 15.0
DEFAULT_REGION = "us-east-1"


class LocalAwsError(CloudError):
    """The emulated AWS could not be started or reached; the message says why and what to do."""


class LocalAws:
    """The emulated AWS whose whole state lies in one directory."""

    def __init__(self, state_dir: Path, region: str = DEFAULT_REGION) -> None:
        self.state_dir = state_dir.resolve()
        self.region = region

    def start(self, settings: Settings | None = None) -> None:
        """Starts the server unless it runs; with `settings`, writes them first. Returns once it answers.

        Raises UnreadableStateError for a state of another version, LocalAwsError if it does not start.
        """
        self.state_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(self.state_dir / "start.lock"):
            if settings is not None:
                self.configure(settings)
            if not self.is_running():
                self._spawn()

    def stop(self) -> None:
        """Saves the state and ends the server with all its threads; no error if none runs."""
        process = self._process()
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_LIMIT_S)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait(STOP_LIMIT_S)

    def is_running(self) -> bool:
        """Whether the server of this directory is alive."""
        return self._process() is not None

    @property
    def endpoint_url(self) -> str:
        """Where the server listens."""
        address = self._address()
        if address is None:
            raise LocalAwsError(f"the emulated AWS of {self.state_dir} has never been started")
        return f"http://{HOST}:{address['port']}"

    def environ(self) -> dict[str, str]:
        """The variables that make the AWS SDKs, the CDK CLI and boto3 talk to this server, and to nothing else."""
        home = self.state_dir / "home"
        home.mkdir(parents=True, exist_ok=True)
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "local",
            "AWS_SESSION_TOKEN": "local",
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": str(home / "none"),
            "AWS_SHARED_CREDENTIALS_FILE": str(home / "none"),
            # the CLI keeps account ids by access key under HOME: never mix them with real ones
            "HOME": str(home),
            "CDK_HOME": str(home / ".cdk"),
            "CDK_DISABLE_CLI_TELEMETRY": "1",
            "CDK_DISABLE_VERSION_CHECK": "1",
            "CDK_DEFAULT_ACCOUNT": "123456789012",
            "CDK_DEFAULT_REGION": self.region,
            "NO_PROXY": f"{HOST},localhost",
            "JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION": "20",
            "NODE_NO_WARNINGS": "1",
        }

    @property
    def settings(self) -> Settings:
        """The time scale, the Kubernetes and the failures that the server works with.

        Raises UnreadableStateError for a file that another version of the code has written.
        """
        path = self.state_dir / FILE_NAME
        return read(path) if path.exists() else Settings()

    def configure(self, settings: Settings) -> None:
        """Writes the settings; a running server takes them at once."""
        self.state_dir.mkdir(parents=True, exist_ok=True)
        partial = self.state_dir / f"{FILE_NAME}.partial"
        partial.write_text(settings.model_dump_json(indent=2))
        partial.replace(self.state_dir / FILE_NAME)

    def fail(self, *failures: Failure) -> None:
        """Asks for these failures from now on, and no others."""
        self.configure(self.settings.model_copy(update={"failures": failures}))

    def _spawn(self) -> None:
        log = self._log.open("ab")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "MOTO_"))}
        process = subprocess.Popen(
            [sys.executable, "-m", "ops.local.aws.server", "--state-dir", str(self.state_dir)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        log.close()
        with ended_if_interrupted(process):
            self._wait_until_announced(process)

    def _wait_until_announced(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while (self._address() or {}).get("pid") != process.pid:
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                raise_if_refused(process.poll(), self._log)
                raise LocalAwsError(f"the emulated AWS did not start; see {self._log}")
            time.sleep(0.05)

    @property
    def _log(self) -> Path:
        return self.state_dir / "server.log"

    def _address(self) -> dict[str, Any] | None:
        """Process and port of the last server; None if the file is not there or tells no such thing."""
        try:
            address = json.loads((self.state_dir / ADDRESS_FILE).read_text())
            return {"pid": int(address["pid"]), "port": int(address["port"])}
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _process(self) -> psutil.Process | None:
        """The server's process; a stale file that names another process names none."""
        address = self._address()
        if address is None:
            return None
        try:
            process = psutil.Process(address["pid"])
            command = process.cmdline()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return None
        ours = "ops.local.aws.server" in command and str(self.state_dir) in command
        return process if ours and process.status() != psutil.STATUS_ZOMBIE else None
