from typing import Any

from django.db import migrations, models

from ._operations import (
    AddIndexOnBusyTable,
    AddPartialIndexOnBusyTable,
    RemoveIndexOnBusyTable,
)

# A reason belongs to a status, and PostgreSQL takes them for independent of each other: it would
# expect so few interrupted writes that it reads and sorts all of them for the first page of a list.
STATISTICS = "agentruns_status_and_reason"
CREATE = (
    f"CREATE STATISTICS IF NOT EXISTS {STATISTICS} (dependencies, mcv)"
    " ON status, termination_reason, resolution FROM agentruns_agentrun"
)


def create_statistics(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(CREATE)


def drop_statistics(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(f"DROP STATISTICS IF EXISTS {STATISTICS}")


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("agentruns", "0006_mariadb"),
    ]

    operations = [
        AddIndexOnBusyTable(
            model_name="agentrun",
            index=models.Index(fields=["status", "created_at", "id"], name="agentruns_status"),
        ),
        AddIndexOnBusyTable(
            model_name="agentrun",
            index=models.Index(fields=["agent", "created_at", "id"], name="agentruns_agent"),
        ),
        AddIndexOnBusyTable(
            model_name="agentrun",
            index=models.Index(
                condition=models.Q(("correlation_id", ""), _negated=True),
                fields=["correlation_id", "created_at", "id"],
                name="agentruns_by_correlation",
            ),
        ),
        AddIndexOnBusyTable(
            model_name="agentrun",
            index=models.Index(
                condition=models.Q(("requested_by", ""), _negated=True),
                fields=["requested_by", "created_at", "id"],
                name="agentruns_by_requester",
            ),
        ),
        AddPartialIndexOnBusyTable(
            model_name="agentrun",
            index=models.Index(
                condition=models.Q(
                    ("status", "running"),
                    ("termination_reason", "interrupted_write"),
                    _connector="OR",
                ),
                fields=["id"],
                name="agentruns_fenced",
            ),
        ),
        AddIndexOnBusyTable(
            model_name="agentrun",
            index=models.Index(
                condition=models.Q(("resolution", ""), ("termination_reason", "interrupted_write")),
                fields=["termination_reason", "resolution", "finished_at", "id"],
                name="agentruns_unresolved",
            ),
        ),
        RemoveIndexOnBusyTable(
            model_name="agentrun",
            name="agentruns_correlation",
        ),
        RemoveIndexOnBusyTable(
            model_name="agentrun",
            name="agentruns_requester",
        ),
        migrations.RunPython(create_statistics, drop_statistics),
    ]
