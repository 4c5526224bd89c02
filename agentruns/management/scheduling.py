"""Schedules of ours in django-q2: one for each name, made and repaired by a command."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.core.management.base import BaseCommand, CommandError
from django.db import router, transaction
from django.db.models import QuerySet
from django.utils import timezone

from .rendering import Data, emit


def run(
    command: BaseCommand, name: str, wanted: dict[str, Any], every: str, options: dict[str, Any]
) -> None:
    """Make the schedule what it is to be, or remove it, and print what was done."""
    if not apps.is_installed("django_q"):
        raise CommandError("django_q is not in INSTALLED_APPS")
    data: Data = {"name": name, "every": every}
    if options["remove"]:
        data["removed"] = remove(name)
    else:
        data["did"] = install(name, wanted)
    emit(command, options["json"], data, outcome_text)


def schedules(name: str) -> QuerySet[Any]:
    """The schedules of this name: one, unless two hosts installed it at the same moment."""
    model: Any = apps.get_model("django_q", "Schedule")
    named: QuerySet[Any] = model.objects.filter(name=name).order_by("pk")
    return named


def install(name: str, wanted: dict[str, Any]) -> str:
    """Make the schedule what it is to be; one that is so already keeps its next run."""
    with transaction.atomic(using=router.db_for_write(schedules(name).model)):
        found = list(schedules(name).select_for_update())
        if not found:
            schedules(name).create(name=name, **wanted)
            return "created"
        schedules(name).exclude(pk=found[0].pk).delete()
        if all(getattr(found[0], field) == value for field, value in wanted.items()):
            return "unchanged"
        schedules(name).update(next_run=timezone.now(), **wanted)
        return "changed"


def remove(name: str) -> bool:
    deleted, _by_model = schedules(name).delete()
    return bool(deleted)


def outcome_text(data: Data) -> str:
    if "removed" in data:
        return f"{data['name']}: {'removed' if data['removed'] else 'there was none'}"
    return f"{data['name']}: {data['did']}, every {data['every']}"
