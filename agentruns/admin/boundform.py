from __future__ import annotations

from typing import Any

from django import forms


class BoundForm(forms.Form):
    """A form whose answer holds for the state that was shown, and for no other."""

    digest = forms.CharField(widget=forms.HiddenInput, required=False)

    def bind_to(self, digest: str) -> None:
        """Keep what was typed, for the state that is shown now."""
        typed: Any = self.data
        typed = typed.copy()
        typed["digest"] = digest
        self.data = typed
