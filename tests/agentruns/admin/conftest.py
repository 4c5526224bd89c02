from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

LogIn = Callable[..., Client]


@pytest.fixture
def log_in(transactional_db: None) -> LogIn:
    """Give the browser of somebody of the staff who has these permissions (code names)."""

    def browser(*permissions: str, name: str = "ada") -> Client:
        user = User.objects.create_user(name, password="secret", is_staff=True)
        known = Permission.objects.filter(content_type__app_label="agentruns")
        user.user_permissions.set(known.filter(codename__in=permissions))
        assert user.user_permissions.count() == len(permissions)
        client = Client()
        client.force_login(user)
        return client

    return browser


@pytest.fixture
def viewer(log_in: LogIn) -> Client:
    """Somebody who may look at runs, and nothing else."""
    return log_in("view_agentrun")
