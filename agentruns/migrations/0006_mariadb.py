"""What MariaDB needs besides; the other databases have nothing to do."""

from typing import Any

from django.db import migrations

# Without partial indexes, MariaDB has made these of every row, in an order that helps nobody.
LED_BY_STATUS = {
    "agentruns_running": ("status", "id"),
    "agentruns_due": ("status", "available_at", "id"),
    "agentruns_waiting": ("status", "created_at", "id"),
    "agentruns_dead_letters": ("status", "termination_reason", "finished_at"),
}


def adapt(apps: Any, schema_editor: Any) -> None:
    """Compare texts exactly, and lead by the status what other databases index where it has a value.

    The default collation takes 'order-7' for 'Order-7', and 'a' for 'a ': idempotency keys and the
    keys of steps would collide. One statement for each table: it happens as a whole or not at all.
    """
    connection = schema_editor.connection
    if connection.vendor != "mysql":
        return
    quoted = schema_editor.quote_name
    exact = "utf8mb4_nopad_bin" if connection.mysql_is_mariadb else "utf8mb4_0900_bin"
    indexes = [
        f"DROP INDEX {quoted(name)}, ADD INDEX {quoted(name)} ({', '.join(map(quoted, columns))})"
        for name, columns in LED_BY_STATUS.items()
    ]
    for name, changes in {"AgentRun": indexes, "Step": [], "Event": []}.items():
        table = quoted(apps.get_model("agentruns", name)._meta.db_table)
        convert = f"CONVERT TO CHARACTER SET utf8mb4 COLLATE {exact}"
        schema_editor.execute(f"ALTER TABLE {table} {', '.join([convert, *changes])}")


class Migration(migrations.Migration):
    # MariaDB has no transactional DDL, and Django refuses DDL in a transaction there.
    atomic = False

    dependencies = [("agentruns", "0005_versions")]

    operations = [migrations.RunPython(adapt, migrations.RunPython.noop)]
