"""Scores beyond the range of their dtype."""

import numpy as np
import pytest
from case import assert_close
from cases import each_setting

from linattn_ref.attention import delta, online_softmax, patterns, softmax
from linattn_ref.kernels import jit, reference


def is_softmax(setting):
    """Whether the weights of every query sum to 1, of values as they came."""
    call, names = setting.call(), {"q", "k", "v"}
    if not (setting.case.takes("scale") and names <= {*call.arrays}) or setting.case.bounded:
        return False
    ones = call.change(arrays={"v": np.ones_like(call.arrays["v"])}, kernels=reference)  # no kernel while collecting
    out, _ = ones.forward()
    return bool((np.isclose(out, 1) | (out == 0)).all())


def huge(call, signs=1):
    """Queries above 0, and keys above and below it: all scores are beyond the range, and none is inf - inf."""
    q, k = (1e200 * (abs(call.arrays[name]) + 1) for name in "qk")  # finite, but not their product
    return call.change(arrays={"q": q, "k": signs * k})


@each_setting(lambda s: is_softmax(s))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # gradients of keys and queries are beyond the range too
def test_weights_sum_to_one_whatever_the_size_of_the_scores(setting):
    for sign in (1, -1):
        call = huge(setting.call(), sign)
        call = call.change(arrays={"v": np.ones_like(call.arrays["v"])})
        seen = setting.call().change(arrays={"v": call.arrays["v"]}).forward()[0]
        out, saved = call.forward()
        np.testing.assert_allclose(out, seen, rtol=1e-14)
        gradients = setting.case.backward(np.ones_like(out), saved)
        # each query's weights once more, as what it hands to the values
        np.testing.assert_allclose(gradients.v.sum(axis=(-1, -2)), out.sum(axis=(-1, -2)), rtol=1e-13)


@each_setting(lambda s: s.room == "jit" and is_softmax(s))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # as above
def test_beyond_the_range_all_rooms_are_the_same(setting):
    call = setting.call()
    call = huge(call, np.where(np.arange(call.sizes.n_keys) % 3 == 1, 1, -1)[:, None])
    found, expected = call.run(), call.change(kernels=reference).run()
    assert_close(found.out, expected.out, setting.case)
    assert_close(found.gradients.v, expected.gradients.v, setting.case)


@each_setting(lambda s: s.room == "jit" and is_softmax(s) and "w_p" not in s.call().arrays)  # mixtures repeat a key
def test_large_scores_are_rounded_alike_forward_and_backward(setting):
    """Scores of 1e16 and more have neighbours 2 apart: rounded in another way, a weight would be e^2 times as large."""
    call = setting.call()
    call = call.change(arrays={name: 1e8 * call.arrays[name] for name in "qk"}, scale=0.3)
    found, expected = call.run(), call.change(kernels=reference).run()
    assert_close(found.out, expected.out, setting.case)
    assert_close(found.gradients.v, expected.gradients.v, setting.case)


@each_setting(lambda s: s.room == "jit" and is_softmax(s))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # as above
def test_a_query_beyond_the_range_leaves_the_others_alone(setting):
    """Their outputs and gradients are those of the page."""
    call = setting.call()
    q, k = (call.arrays[name].copy() for name in "qk")
    q[..., -1, :], k[..., 0] = 0, abs(k[..., 0]) + 9
    q[..., -1, 0] = 1e308
    call = call.change(arrays={"q": q, "k": k})
    found, expected = call.run(), call.change(kernels=reference).run()
    assert_close(found.out, expected.out, setting.case)
    assert_close(found.gradients.v, expected.gradients.v, setting.case)


@each_setting(lambda s: s.room == "jit" and is_softmax(s))
@pytest.mark.filterwarnings("ignore:overflow encountered")  # of gradients, which may be beyond the range
@pytest.mark.parametrize("scale", [30.0, -32.0])
def test_a_scale_may_leave_the_range_where_no_score_does(setting, scale):
    """Neither ``scale q`` nor ``scale k`` is a number in the one call or the other."""
    call = setting.call()
    for large, small in ("qk", "kq"):
        arrays = {large: 1e307 * call.arrays[large], small: 1e-307 * call.arrays[small]}
        one = call.change(arrays=arrays, scale=scale)
        found, expected = one.run(), one.change(kernels=reference).run()
        assert_close(found.out, expected.out, setting.case)
        assert_close(found.gradients.v, expected.gradients.v, setting.case)
        for name, other in ("qk", "kq"):
            x, y = (np.nan_to_num(getattr(each.gradients, name)) for each in (found, expected))
            rounding = 1e-13 * abs(scale) * abs(arrays[other]).max()  # gradients of scores are differences
            np.testing.assert_allclose(x, y, rtol=1e-9, atol=rounding)


@pytest.mark.parametrize(
    ("page", "kernels"),
    [(softmax, reference), (softmax, jit), (online_softmax, reference)],
    ids=["softmax", "softmax jit", "online softmax"],
)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_equal_scores_at_the_end_of_the_range_share(page, kernels):
    """150 keys, more than a tile: the largest score is that of the first 100, whose values have the mean 49.5."""
    q, v = np.full((3, 1), 1e200), np.arange(150.0)[:, None]
    for k, mean in ((np.where(v < 100, 1e200, 1.0), 49.5), (np.full((150, 1), -1e200), 74.5)):
        out, _ = page.forward(q, k, v, kernels=kernels)
        np.testing.assert_allclose(out, mean, rtol=1e-14)
        np.testing.assert_allclose(patterns.matrix(q, k, np.ones((3, 150), bool)) @ v, mean, rtol=1e-14)


@pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_steps_beyond_the_range(kernels):
    q, v = np.full((5, 1), 1e200), np.arange(5.0)[:, None]
    for keys in ([1, -1, 1, 1, -1], [-1, -1, -1, 1, 0]):
        k = 1e200 * np.array(keys)[:, None]
        expected, _ = softmax.forward(q, k, v, causal=True)
        state = softmax.init_state((), 1, 1, kernels=kernels)
        for t in range(5):
            out, state = softmax.step(q[t], k[t], v[t], state, kernels=kernels)
            np.testing.assert_allclose(out, expected[t], rtol=1e-14)


@pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])
def test_a_step_whose_scale_leaves_the_range(kernels):
    """As above: more keys than fill the lanes, and the scores 0, 1, ..., 8 times -30."""
    q, k, v = np.array([1e307, 0.0]), np.stack([1e-307 * np.arange(9.0), np.ones(9)], axis=-1), np.eye(9)
    state = softmax.init_state((), 2, 9, kernels=kernels)
    for t in range(9):
        out, state = softmax.step(q, k[t], v[t], state, scale=-30.0, kernels=kernels)
        np.testing.assert_allclose(out[: t + 1], np.exp(-30.0 * np.arange(t + 1)), rtol=1e-12)


@pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])
@pytest.mark.parametrize("long", ["q", "k"])
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_rows_whose_length_leaves_the_range_pass_nothing_on(long, kernels):
    """One over their length is 0; the others' gradients are as if the row were 0."""
    q, k, v, d_out = np.random.default_rng(0).standard_normal((4, 5, 3))
    d_out, gradients = 1e3 * d_out, {}  # so that a product with a row is infinite
    for factor in (0, 1e307):
        rows = {"q": q.copy(), "k": k.copy()}
        rows[long][2] *= factor
        _, saved = delta.forward(**rows, v=v, beta=np.linspace(0.1, 1, 5), normalise=True, kernels=kernels)
        gradients[factor] = delta.backward(d_out, saved)
    assert not getattr(gradients[1e307], long)[2].any()
    for name in {"q", "k", "v", "beta"}:
        others = np.arange(5) != (2 if name == long else 9)
        x, y = (getattr(gradients[factor], name)[others] for factor in (1e307, 0))
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)
