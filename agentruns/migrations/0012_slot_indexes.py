from typing import Any

from django.db import migrations, models

from ._operations import AddPartialIndexOnBusyTable

# As in 0006: what other databases index where it has a value, MariaDB leads by that value.
ON_MARIADB = {
    "agentruns_slots": ("status", "agent"),
    "agentruns_slot_waits": ("waits_for_slot", "status", "agent", "available_at", "id"),
}


def add_on_mariadb(apps: Any, schema_editor: Any) -> None:
    connection = schema_editor.connection
    if connection.vendor != "mysql":
        return
    quoted = schema_editor.quote_name
    exact = "utf8mb4_nopad_bin" if connection.mysql_is_mariadb else "utf8mb4_0900_bin"
    limits = quoted(apps.get_model("agentruns", "AgentLimit")._meta.db_table)
    schema_editor.execute(f"ALTER TABLE {limits} CONVERT TO CHARACTER SET utf8mb4 COLLATE {exact}")
    runs = quoted(apps.get_model("agentruns", "AgentRun")._meta.db_table)
    indexes = ", ".join(
        f"ADD INDEX {quoted(name)} ({', '.join(map(quoted, columns))})"
        for name, columns in ON_MARIADB.items()
    )
    schema_editor.execute(f"ALTER TABLE {runs} {indexes}")


def remove_on_mariadb(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "mysql":
        quoted = schema_editor.quote_name
        runs = quoted(apps.get_model("agentruns", "AgentRun")._meta.db_table)
        indexes = ", ".join(f"DROP INDEX {quoted(name)}" for name in ON_MARIADB)
        schema_editor.execute(f"ALTER TABLE {runs} {indexes}")


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("agentruns", "0011_agent_limits"),
    ]

    operations = [
        AddPartialIndexOnBusyTable(
            model_name="agentrun",
            index=models.Index(
                condition=models.Q(("status", "running")),
                fields=["agent"],
                name="agentruns_slots",
            ),
        ),
        AddPartialIndexOnBusyTable(
            model_name="agentrun",
            index=models.Index(
                condition=models.Q(("status", "queued"), ("waits_for_slot", True)),
                fields=["agent", "available_at", "id"],
                name="agentruns_slot_waits",
            ),
        ),
        migrations.RunPython(add_on_mariadb, remove_on_mariadb),
    ]
