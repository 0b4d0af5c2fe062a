"""Who is called when; no time is tested."""

import numba
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from linattn_ref.experiments.measuring import timing
from linattn_ref.experiments.measuring.timing import in_turn, one_thread


def test_calls_take_turns_and_the_first_round_is_not_counted(monkeypatch):
    """A clock that gives the calls 9, 9, 1, 2, 3 and 4 seconds."""
    calls, now = [], [0.0]
    durations = iter([9, 9, 1, 2, 3, 4])

    def clock():
        return now[0]

    def call(name):
        calls.append(name)
        now[0] += next(durations)

    monkeypatch.setattr(timing.time, "process_time", clock)
    found = in_turn({"a": lambda: call("a"), "b": lambda: call("b")}, 2)
    assert calls == ["a", "b"] * 3
    assert found == {"a": [1, 3], "b": [2, 4]}


def test_one_thread_inside_and_as_before_afterwards():
    def threads():
        return [numba.get_num_threads(), *(pool["num_threads"] for pool in threadpool_info())]

    with threadpool_limits(2):  # conftest.py lets the tests have one
        before = threads()
        with one_thread():
            assert set(threads()) == {1}
        assert threads() == before


def test_one_thread_of_pytorch_too():
    torch = pytest.importorskip("torch")
    torch.set_num_threads(3)
    with one_thread(torch):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3
