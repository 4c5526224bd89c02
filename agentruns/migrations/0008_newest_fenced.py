from django.db import migrations, models

from ._operations import AddPartialIndexOnBusyTable, RemovePartialIndexOnBusyTable


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("agentruns", "0007_list_indexes"),
    ]

    operations = [
        AddPartialIndexOnBusyTable(
            model_name="agentrun",
            index=models.Index(
                condition=models.Q(
                    ("status", "running"),
                    ("termination_reason", "interrupted_write"),
                    _connector="OR",
                ),
                fields=["created_at", "id"],
                name="agentruns_newest_fenced",
            ),
        ),
        RemovePartialIndexOnBusyTable(
            model_name="agentrun",
            name="agentruns_fenced",
        ),
    ]
