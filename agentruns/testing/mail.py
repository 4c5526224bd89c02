from __future__ import annotations

from collections.abc import Sequence

from django.core.mail import EmailMessage
from django.core.mail.backends.base import BaseEmailBackend

from .reporting import report_effect


class ReportedMail(BaseEmailBackend):
    """Reports each message as the effect `mail` and sends nothing: for the crash kit."""

    def send_messages(self, email_messages: Sequence[EmailMessage]) -> int:
        for message in email_messages:
            report_effect("mail", to=message.recipients(), subject=message.subject)
        return len(email_messages)
