"""One flat array and the layers' views of it; clipping over either."""

import sys
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest

from linattn_ref.nn import affine, feed_forward
from linattn_ref.training import adam, checkpoint, clip, folder, loop, parameters, sgd


def drawn(dtype=np.float64):
    return feed_forward.draw(3, 5, np.random.default_rng(0), dtype=dtype)


def test_views_share_the_memory_in_order():
    params = drawn()
    flat, views = parameters.flatten(params)
    assert [name for name, _ in parameters.leaves(views)] == ["inner.w", "inner.b", "outer.w", "outer.b"]
    assert flat.size == 3 * 5 + 5 + 5 * 3 + 3
    np.testing.assert_array_equal(flat, np.concatenate([x.ravel() for _, x in parameters.leaves(params)]))
    flat[:] = np.arange(flat.size)
    assert views.inner.b[0] == 15
    assert isinstance(views.inner, affine.Params)
    views.outer.b[:] = -1
    assert np.all(flat[-3:] == -1)
    assert not np.shares_memory(flat, params.inner.w)


def test_gradients_are_added_and_tied():
    """Of two batches; of an array that stands in two places, the sum, in one array."""
    rng, params = np.random.default_rng(1), drawn()
    x, y = rng.standard_normal((2, 4, 3))
    parts = [feed_forward.backward(d, feed_forward.forward(x[some], params)[1]).params
             for some, d in ((np.s_[:1], y[:1]), (np.s_[1:], y[1:]))]  # fmt: skip
    whole = feed_forward.backward(y, feed_forward.forward(x, params)[1]).params
    total = parameters.add(*parts)
    assert total is parts[0]
    for (_, a), (_, b) in zip(parameters.leaves(total), parameters.leaves(whole), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13)
    e, g = rng.standard_normal((2, 3))
    tied = parameters.tied((e, np.ones(2), e), (g, np.ones(2), 2 * g))
    assert tied[0] is tied[2]
    np.testing.assert_allclose(tied[0], 3 * g, rtol=1e-15)
    assert clip.by_global_norm(tied, np.inf) == pytest.approx(np.sqrt(9 * (g @ g) + 2))


def test_what_is_no_parameter_is_an_error():
    class Odd(NamedTuple):
        w: np.ndarray
        name: str

    with pytest.raises(TypeError, match="name: expected arrays in NamedTuples, got str"):
        parameters.flatten(Odd(np.ones(2), "x"))
    with pytest.raises(
        TypeError, match=r"params: expected arrays all float32 or all float64, got \['float32', 'float64'\]"
    ):
        parameters.flatten((np.ones(2), np.ones(2, np.float32)))
    with pytest.raises(TypeError, match="1: expected arrays in NamedTuples, got float64"):
        parameters.flatten((np.ones(2), 2 * np.array(3.0)))  # it was an array without axes
    with pytest.raises(ValueError, match=r"flat: expected shape \(38,\), the numbers of params, got \(3,\)"):
        parameters.views(np.ones(3), drawn())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_clipping_keeps_the_direction(dtype):
    flat, views = parameters.flatten(drawn(dtype))
    before, length = flat.copy(), float(np.linalg.norm(flat))
    assert clip.by_global_norm(flat, length * 2) == pytest.approx(length)
    np.testing.assert_array_equal(flat, before)  # short enough
    clip.by_global_norm(flat, length / 4)
    np.testing.assert_allclose(flat, before / 4, rtol=1e-5)
    clip.each(views, 0.01)
    assert all(np.linalg.norm(x) == pytest.approx(0.01, rel=1e-3) for _, x in parameters.leaves(views) if x.any())


def test_a_huge_gradient_is_clipped_and_not_lost():
    """The square of 1e30 is more than float32 holds."""
    grads = np.full(4, 1e30, np.float32)
    assert clip.by_global_norm(grads, 1.0) == pytest.approx(2e30)
    np.testing.assert_allclose(grads, 0.5, rtol=1e-5)


@pytest.mark.parametrize("size", [1, clip.PIECE, clip.PIECE + 1, 2 * clip.PIECE - 1])
def test_the_length_is_of_every_number_once(size):
    """An array alone is read in pieces, and the last of them may be a single number."""
    assert clip.by_global_norm(np.ones(size), np.inf) == pytest.approx(np.sqrt(size), rel=1e-15)


@pytest.mark.parametrize("function", [clip.by_global_norm, clip.each])
@pytest.mark.parametrize("grads", [np.array(3.0), [3.0, 4.0], (), None, np.array([3, 4]), {"w": np.ones(2)}], ids=repr)
def test_what_cannot_be_clipped_is_refused(grads, function):
    with pytest.raises(TypeError, match=r"^grads: expected (an array with axes, or arrays in|float32 or|arrays in)"):
        function(grads, 1.0)


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), None])
def test_a_limit_is_a_number_above_0(limit):
    with pytest.raises(ValueError, match="limit: expected a number above 0"):
        clip.by_global_norm(np.ones(2), limit)


# --- Kept and read again --------------------------------------------------------------------------------------------


def test_a_run_with_a_parameter_without_axes_can_be_resumed(tmp_path):
    """y = a x, and a becomes 2: stopped in the middle it ends at the same bits."""

    class Line(NamedTuple):
        a: np.ndarray

    def learn(params, x, share):
        return float(share * np.square((params.a - 2) * x)), Line(np.asarray(share * 2 * (params.a - 2) * x))

    task = loop.Task(learn, lambda rng: rng.random(), lambda params: {"loss": float((params.a - 2) ** 2)})
    start = Line(np.array(0.0))

    def run(out, steps, **more):
        settings = loop.Settings(steps, lambda t: 0.3, sgd, every=2, seed=1)
        return loop.run(task, start, settings, tmp_path / out, facts={"seed": 1}, **more)

    whole = run("whole", 8)
    run("parts", 4)
    parts = run("parts", 8, resume=True)
    assert parts.a.shape == ()
    assert parts.a == whole.a != 0


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (2, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrays_of_any_shape_come_back_as_they_were(tmp_path, shape, dtype):
    kept = np.random.default_rng(0).standard_normal(shape[::-1]).astype(dtype).T  # of any layout too
    checkpoint.save(tmp_path / "kept", (kept,), {})
    found, read = checkpoint.load(tmp_path / "kept"), np.full(shape, 9, dtype)
    checkpoint.restore((read,), found._replace(arrays={"params.0": found.arrays["0"]}), "params")
    assert found.arrays["0"].dtype == dtype
    np.testing.assert_array_equal(found.arrays["0"], kept, strict=True)
    np.testing.assert_array_equal(read, kept)


@pytest.mark.parametrize(
    "tie", [lambda e: e, lambda e: e[:], lambda e: e.T], ids=["one array", "a view", "turned over"]
)
def test_arrays_that_differ_cannot_be_read_into_one(tmp_path, tie):
    class Tied(NamedTuple):
        table: np.ndarray
        bias: np.ndarray
        u: np.ndarray

    rng = np.random.default_rng(0)
    table, before = rng.standard_normal((2, 3, 3))
    checkpoint.save(tmp_path / "own", Tied(table, np.ones(2), tie(table) + 1), {})
    checkpoint.save(tmp_path / "tied", Tied(table, np.array([1, np.nan]), tie(table)), {})
    own, tied = (
        checkpoint.Checkpoint({f"params.{name}": x for name, x in checkpoint.load(tmp_path / file).arrays.items()}, {})
        for file in ("own", "tied")
    )
    params = Tied(before.copy(), np.zeros(2), None)
    params = params._replace(u=tie(params.table))
    with pytest.raises(ValueError, match=r"of another model: params\.table and params\.u share their memory here, and"):
        checkpoint.restore(params, own, "params")
    np.testing.assert_array_equal(params.table, before)
    np.testing.assert_array_equal(params.bias, 0)
    checkpoint.restore(params, tied, "params")  # a number that is none is equal to itself here
    np.testing.assert_array_equal(params.table, table)


def test_a_read_only_array_leaves_the_others_as_they_were():
    tree, kept = (np.zeros(2), np.zeros(3)), {"params.0": np.ones(2), "params.1": np.ones(3)}
    tree[1].setflags(write=False)
    with pytest.raises(ValueError, match=r"^params\.1: expected an array that can be written to, got a read-only one"):
        checkpoint.restore(tree, checkpoint.Checkpoint(kept, {}), "params")
    np.testing.assert_array_equal(tree[0], 0)


@pytest.mark.parametrize("function", [clip.by_global_norm, clip.each])
def test_a_read_only_gradient_leaves_the_others_as_they_were(function):
    grads = np.full(2, 10.0), np.full(3, 10.0)
    grads[1].setflags(write=False)
    with pytest.raises(ValueError, match=r"^grads\.1: expected an array that can be written to"):
        function(grads, 1.0)
    np.testing.assert_array_equal(grads[0], 10)


def test_without_safetensors_nothing_is_begun(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", ModuleType("safetensors"))  # a page's stand-in
    folder.check_files(tmp_path, resume=False)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"checkpoints need safetensors .*: pip install"):
        folder.check_files(tmp_path, resume=False)


def test_what_shares_memory_is_one_array_or_refused():
    """A head that is tied by a view would be trained apart."""
    table = np.ones((4, 3))
    tied = affine.Params(table.T, np.ones(4)), table
    for function in (parameters.flatten, parameters.zeros_like, adam.init_state):
        with pytest.raises(ValueError, match=r"^params\.1: shares memory with params\.0\.w; expected"):
            function(tied)
    columns = np.ones((3, 4))
    assert parameters.flatten((columns[:, :2], columns[:, 2:], table, table))[0].size == 24


def test_what_has_two_names_is_added_once():
    class Pair(NamedTuple):
        first: np.ndarray
        second: np.ndarray

    total, more = np.array([2.0]), np.array([3.0])
    assert parameters.add(Pair(total, total), Pair(more, more)).first == 5
