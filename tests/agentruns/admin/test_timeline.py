from __future__ import annotations

import re

from django.test import Client

from tests.agentruns.cases import completed, interrupted, queued, writing

from .pages import page_of, source, words


def test_the_fence_is_drawn_where_it_stands(viewer: Client) -> None:
    for run in (interrupted(), writing()[0]):
        page = source(viewer, page_of(run))
        assert len(re.findall('<rect class="agentruns-fence" x="[0-9]+" y="8"', page)) == 1
        assert "send (call)" in words(page)
        assert "the fence stands here" in words(page)


def test_every_shape_stays_inside(viewer: Client) -> None:
    page = source(viewer, page_of(completed()))
    shapes = re.findall(r'<rect class="agentruns-tool" x="(\d+)" y="8" width="(\d+)"', page)
    assert shapes
    assert all(int(x) + int(width) <= 1003 for x, width in shapes)
    assert "claimed" in words(page)


def test_a_run_that_has_not_begun_has_no_timeline(viewer: Client) -> None:
    assert "agentruns-timeline" not in source(viewer, page_of(queued()))


def test_who_wishes_follows_a_run_that_is_not_settled(viewer: Client) -> None:
    run = writing()[0]
    refresh = '<meta http-equiv="refresh"'
    assert refresh not in source(viewer, page_of(run))
    assert 'href="?follow=1"' in source(viewer, page_of(run))
    followed = source(viewer, page_of(run), follow="1")
    assert refresh in followed
    assert 'href="?"' in followed
    assert refresh not in source(viewer, page_of(completed()), follow="1")
