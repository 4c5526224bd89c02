from typing import Any

from django.db import migrations, models

from ._operations import AddIndexOnBusyTable

# A run's row is updated at its claim, at every stamp, record and heartbeat, and at its end. Room in
# its page keeps these updates on the page, where they touch no index (heap-only).
# By the server's defaults a vacuum would wait for a fifth of the table: with a hundred million runs,
# for twenty million dead rows, which the few pages of the indexes of running and of queued runs would
# be full of. A hundredth is still seldom for the table and often enough for them.
HOT = {
    "fillfactor": "85",
    "autovacuum_vacuum_scale_factor": "0.01",
    "autovacuum_vacuum_threshold": "1000",
    "autovacuum_analyze_scale_factor": "0.02",
}
# Steps and events are written once and seldom changed: what counts is that new rows are frozen and
# marked all-visible in small portions, not in one vacuum of the whole table.
APPENDED = {
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_insert_scale_factor": "0.02",
    "autovacuum_analyze_scale_factor": "0.02",
}
TABLES = {"agentruns_agentrun": HOT, "agentruns_step": APPENDED, "agentruns_event": APPENDED}


def set_storage(apps: Any, schema_editor: Any) -> None:
    for table, parameters in TABLES.items():
        pairs = ", ".join(f"{name} = {value}" for name, value in parameters.items())
        alter(schema_editor, f"ALTER TABLE {table} SET ({pairs})")


def reset_storage(apps: Any, schema_editor: Any) -> None:
    for table, parameters in TABLES.items():
        alter(schema_editor, f"ALTER TABLE {table} RESET ({', '.join(parameters)})")


def alter(schema_editor: Any, sql: str) -> None:
    # A lock that neither readers nor writers of rows wait for.
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(sql)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("agentruns", "0003_approval_void")]

    operations = [
        AddIndexOnBusyTable(
            model_name="step",
            index=models.Index(
                condition=models.Q(
                    ("effect", "non_idempotent_write"), ("state__in", ["started", "uncertain"])
                ),
                fields=["run"],
                name="agentruns_step_in_doubt",
            ),
        ),
        migrations.RunPython(set_storage, reset_storage),
    ]
