"""What is measured in a process of its own, called in this one: what is counted, not how much."""

from functools import partial

from linattn_ref.experiments.cost.resource_methods import METHODS, REDUCED, Setting, prepared
from linattn_ref.experiments.measuring import points

SETTING = Setting(heads=2, width=8)


def made(calls, name, n, unit):
    """A call that keeps a record of itself and returns a number of bytes."""

    def call():
        calls.append((name, n))
        return n * unit

    return call


def test_every_name_is_timed_in_every_round():
    calls = []
    seconds = points.seconds_of(partial(made, calls), ["one", "other"], 10, (4,), 3)
    assert seconds.shape == (2, 3)
    assert (seconds >= 0).all()
    assert {name: calls.count((name, 10)) for name in ("one", "other")} == {"one": 4, "other": 4}  # once to warm up


def test_after_a_short_call_the_other_is_measured_and_what_it_returns_is_told():
    calls = []
    _, told = points.memory_of(partial(made, calls), "one", 10, (4,), 3)
    assert calls == [("one", 3), ("one", 10)]
    assert told == 40


def test_a_method_of_the_resource_figure_says_what_it_keeps():
    kept = prepared("online", REDUCED, SETTING, 0)()
    assert kept == 4 * METHODS["online"].kept(REDUCED, SETTING)
