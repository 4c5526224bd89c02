from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..enums import Resolution
from .boundform import BoundForm
from .jsonfield import JsonText
from .wording import moment


class ResolveForm(BoundForm):
    """A verdict, its reason, and the digest of what was shown when it was given."""

    verdict = forms.ChoiceField(label=gettext_lazy("Verdict"), widget=forms.RadioSelect)
    result = JsonText(
        label=gettext_lazy("Result"),
        required=False,
        help_text=gettext_lazy(
            "For 'it happened': what the step would have returned, as JSON. A text stands in double "
            "quotes; null if it returned nothing. One of megabytes is given with the command "
            "resolve_agent_run --result @file."
        ),
    )
    worker_may_act = forms.BooleanField(
        label=gettext_lazy("I know that the former worker may still perform this write"),
        required=False,
        help_text=gettext_lazy(
            "For 'it did not happen': if it does, the write happens twice. Confirm only if its "
            "process is known to be gone, or if twice is acceptable."
        ),
    )
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=1000,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text=gettext_lazy("How you know. It is kept in the run's history."),
    )

    def __init__(
        self,
        *args: Any,
        verdicts: list[tuple[str, Any]],
        may_act_until: datetime | None,
        **options: Any,
    ):
        super().__init__(*args, **options)
        self.may_act_until = may_act_until
        chosen = self.fields["verdict"]
        assert isinstance(chosen, forms.ChoiceField)  # noqa: S101
        chosen.choices = verdicts
        if may_act_until is None:
            del self.fields["worker_may_act"]
        if Resolution.HAPPENED not in dict(verdicts):
            del self.fields["result"]

    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        verdict = given.get("verdict")
        said = bool(self.data.get("result", "").strip())
        if verdict == Resolution.HAPPENED and not said:
            self.add_error("result", _("'It happened' needs the result that it returned."))
        if verdict and verdict != Resolution.HAPPENED and said:
            self.add_error(
                "result", _("Only what happened has a result. Empty this, or choose it.")
            )
        asked = "worker_may_act" in self.fields and not given.get("worker_may_act")
        if verdict == Resolution.DID_NOT_HAPPEN and asked:
            error = _(
                "Confirm this, or wait until %(at)s, when the former worker counts as gone."
            ) % {"at": moment(self.may_act_until)}
            self.add_error("worker_may_act", error)
        return given
