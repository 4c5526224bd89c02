from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def append_line(path: Path, entry: dict[str, Any]) -> None:
    """Append one JSON line and flush it to the disk before returning: a witness must not forget."""
    with path.open("a", encoding="utf-8") as log:
        log.write(json.dumps(entry) + "\n")
        log.flush()
        os.fsync(log.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
