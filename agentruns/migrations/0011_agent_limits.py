from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("agentruns", "0010_digest_key"),
    ]

    operations = [
        migrations.CreateModel(
            name="AgentLimit",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("agent", models.CharField(max_length=200, unique=True)),
            ],
            options={
                "verbose_name": "limit of an agent",
                "verbose_name_plural": "limits of agents",
                "default_permissions": (),
                "base_manager_name": "objects",
            },
        ),
        migrations.AddField(
            model_name="agentrun",
            name="waits_for_slot",
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]
