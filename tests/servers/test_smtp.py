from __future__ import annotations

import smtplib
from concurrent.futures import ThreadPoolExecutor
from email.message import EmailMessage

from tests.harness.fixtures import Smtp


def send(server: Smtp, recipient: str) -> None:
    message = EmailMessage()
    message["From"] = "desk@example.org"
    message["To"] = recipient
    message["Subject"] = "Your refund, Zoë"
    message["Message-ID"] = "<1@example.org>"
    message["X-Idempotency-Key"] = "key-1"
    message.set_content("It is on its way.")
    with smtplib.SMTP(server.host, server.port, timeout=60) as connection:
        connection.send_message(message)


def test_writes_down_what_arrived(smtp_server: Smtp) -> None:
    send(smtp_server, "zoe@example.org")
    [message] = smtp_server.messages()
    assert message["to"] == ["zoe@example.org"]
    assert message["subject"] == "Your refund, Zoë"
    assert message["message_id"] == "<1@example.org>"
    assert message["idempotency_key"] == "key-1"
    assert message["body"].strip() == "It is on its way."


def test_withholds_its_reply_after_the_message_was_written_down(smtp_server: Smtp) -> None:
    smtp_server.hold("zoe@example.org")
    send(smtp_server, "adam@example.org")
    with ThreadPoolExecutor() as threads:
        sent = threads.submit(send, smtp_server, "zoe@example.org")
        smtp_server.wait_held()
        assert len(smtp_server.messages()) == 2
        assert not sent.done()
        smtp_server.release()
        sent.result(timeout=60)
