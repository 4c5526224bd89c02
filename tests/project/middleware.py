from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

POLICY = "default-src 'self'"


def strict_policy(answer: Callable[[HttpRequest], HttpResponse]) -> Callable[..., HttpResponse]:
    """Have browsers refuse every inline script and style, as a careful site does."""

    def respond(request: HttpRequest) -> HttpResponse:
        response = answer(request)
        response["Content-Security-Policy"] = POLICY
        return response

    return respond
