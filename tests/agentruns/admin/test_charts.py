from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from agentruns.admin.charts import HEIGHT, Axis, Chart, Series, percentile, spread

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def at(hours: float) -> datetime:
    return BEGIN + hours * HOUR


def test_moments_are_counted_in_their_slots() -> None:
    axis = Axis(BEGIN, HOUR, 3)
    assert axis.count([at(-0.1), at(0), at(0.9), at(2), at(2.5), at(3)]) == [2, 0, 2]


def test_each_row_has_a_scale_of_its_own() -> None:
    axis = Axis(BEGIN, HOUR, 3)
    few, many = Series("few", "few", axis, [0, 1, 0]), Series("many", "many", axis, [0, 900, 1])
    assert few.bars[0].height == many.bars[0].height == HEIGHT - 2
    assert [bar.height for bar in many.bars] == [HEIGHT - 2, 1], "what is there is seen"
    assert (many.total, many.peak) == (901, 900)


def test_what_was_not_read_is_not_drawn_as_nothing() -> None:
    axis = Axis(BEGIN, HOUR, 4, read_from=at(2.5))
    chart = Chart("runs", axis, [Series("failed", "failed", axis, [0, 0, 1, 2])])
    assert axis.unread == 2
    assert [counts for _begin, counts in chart.table] == [None, None, [1], [2]]
    assert len(chart.rows[0].bars) == 2


@pytest.mark.parametrize("read_from", [None, at(-1), at(0)])
def test_all_was_read(read_from: datetime | None) -> None:
    assert Axis(BEGIN, HOUR, 4, read_from).unread == 0


def test_no_slot_was_read() -> None:
    assert Axis(BEGIN, HOUR, 4, at(9)).unread == 4


def test_percentiles_are_values_of_the_sample() -> None:
    sample = [float(number) for number in range(1, 101)]
    assert (percentile(sample, 0.5), percentile(sample, 0.95)) == (50, 95)
    assert percentile([7.0], 0.5) == percentile([7.0], 0.95) == 7


def test_a_spread_is_drawn_beside_the_longest() -> None:
    drawn = spread("agent", "send", "tool call", [1.0, 3.0, 2.0], longest=4.0)
    assert (drawn.median, drawn.slow, drawn.count) == ("2.0 s", "3.0 s", 3)
    assert (drawn.median_x, drawn.slow_x) == (500, 750)
