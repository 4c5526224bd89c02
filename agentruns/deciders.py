"""Who decides: a user of this project, whose permission is judged, or a label from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.contrib.auth import get_user_model

from .exceptions import TransitionRefused

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractUser, AnonymousUser

    # A label stands for somebody whom another system knows: that system judges the permission.
    Decider = AbstractUser | AnonymousUser | str

DECIDE = "agentruns.decide_agentrun"
RESOLVE = "agentruns.resolve_agentrun"
RETRY = "agentruns.retry_agentrun"


def name_of(by: Decider) -> str:
    return by if isinstance(by, str) else by.get_username()


def key_of(by: Decider) -> str:
    """The primary key of a user's account, which stays when it is renamed; '' for a label."""
    return "" if isinstance(by, str) or by.pk is None else str(by.pk)


def identity_of(by: Decider, permission: str = DECIDE) -> dict[str, str]:
    """What a decision keeps of whoever made it, so that the permission can be judged again.

    The account is read anew: called under the run's lock, it sees a permission that was taken away
    while the lock was waited for.

    Raises:
        TransitionRefused: a user without the permission.
    """
    if isinstance(by, str):
        return {"by": by}
    if not by.has_perm(permission):
        raise TransitionRefused(f"{name_of(by) or 'nobody'} has no permission to decide")
    identity = {"by": by.get_username(), "user": key_of(by)}
    if why := why_not(identity, permission):
        raise TransitionRefused(why)
    return identity


def why_not(identity: Mapping[str, Any], permission: str = DECIDE) -> str:
    """Say why a decision of this user does not hold now; '' for a user who may decide, or a label."""
    key = identity.get("user")
    if key is None:
        return ""
    user = get_user_model()._default_manager.filter(pk=key).first()
    if user is None:
        return f"{identity.get('by')} does not exist any more"
    if not user.is_active:
        return f"{user.get_username()} is not active any more"
    may: bool = user.has_perm(permission)
    return "" if may else f"{user.get_username()} has no permission to decide any more"
