from __future__ import annotations

from django.dispatch import Signal

# Sent when a line of a run's history has been committed, in the process that wrote it, with `uuid`,
# `agent`, `kind` (EventKind), `actor`, `epoch` and `data`. For an application's own alerts; a receiver
# that raises is logged and changes nothing.
event_recorded = Signal()
