from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.paginator import Paginator
from django.utils.functional import cached_property

from ..models import AgentRun

if TYPE_CHECKING:
    RunPaginator = Paginator[AgentRun]
else:
    RunPaginator = Paginator

# A list leads no further than this: a person narrows it down, and the table may hold millions.
MAX_LISTED = 2_000


class BoundedPaginator(RunPaginator):
    """Counts no further than MAX_LISTED rows, so that no page's cost grows with the table."""

    @cached_property
    def count(self) -> int:
        runs: Any = self.object_list
        # In the order of the list, so that the index that serves the list serves this, too.
        return int(runs[:MAX_LISTED].count())

    @property
    def is_cut(self) -> bool:
        return self.count == MAX_LISTED
