"""The counts are those of the operations that were done, no more and no less."""

import numpy as np
import pytest

from linattn_ref.attention import online_softmax, softmax
from linattn_ref.experiments.measuring.counting import Counts, count, kept_bytes, peak_bytes

N, L, D, M = 5, 7, 4, 3


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return [rng.standard_normal((2, 3, n, width)) for n, width in ((N, D), (L, D), (L, M), (N, M))]


def test_products_exponentials_and_the_rest():
    x, y = np.ones((6, 2, 3)), np.ones((6, 3, 4))
    assert count(np.matmul, x, y) == Counts(multiply_adds=6 * 2 * 3 * 4)
    assert count(lambda x: np.exp(x), x) == Counts(exponentials=36)
    assert count(lambda x: x.sum(axis=-1) + 1, x) == Counts(elementwise=36 + 12)
    assert count(lambda x: np.cumsum(x, axis=-1), x) == Counts(elementwise=36)


def test_rows_times_rows_are_counted_entry_by_entry():
    x = np.ones((2, 3, 4))
    for product in (np.vecdot, lambda a, b: np.einsum("...d,...d->...", a, b)):
        assert count(product, x, x) == Counts(elementwise=2 * 3 * 4)
        assert count(product, x[:1, :1], x) == Counts(elementwise=2 * 3 * 4)
    count(lambda a, out: np.einsum("...d,...d->...", a, a, out=out), x, out := np.zeros((2, 3)))
    assert (out == 4).all()


def test_a_dot_product_of_vectors():
    assert count(lambda a, b: a @ b, np.ones(8), np.ones(8)) == Counts(multiply_adds=8)


def test_counts_go_on_through_where_in_place_work_and_out():
    def function(a):
        b = np.where(a > 0, a, 0)
        b += 1
        np.exp(b, out=b)
        return b @ b.T

    assert count(function, np.ones((2, 3))) == Counts(multiply_adds=2 * 3 * 2, exponentials=6, elementwise=12)


def test_the_work_is_done_on_the_real_numbers(arrays):
    seen = []
    count(lambda q, k, v: seen.append(softmax.forward(q, k, v)[0]), *arrays[:3])
    np.testing.assert_array_equal(np.asarray(seen[0]), softmax.forward(*arrays[:3])[0])


def test_softmax_attention(arrays):
    q, k, v, d_out = arrays
    pairs = 2 * 3 * N * L
    for page, again in ((softmax, 0), (online_softmax, D)):  # the scores, which the one keeps
        forward, (_, saved) = count(page.forward, q, k, v), page.forward(q, k, v)
        assert forward.multiply_adds == pairs * (D + M)
        assert forward.exponentials >= pairs

        def backward(d_out, q, k, v, page=page, saved=saved):
            return page.backward(d_out, saved._replace(q=q, k=k, v=v))

        assert count(backward, d_out, q, k, v).multiply_adds == pairs * (2 * D + 2 * M + again)


def test_two_counts_do_not_mix():
    x = np.ones((4, 4))
    first, second = count(lambda a: a @ a, x), count(lambda a: a @ a @ a, x)
    assert (first.multiply_adds, second.multiply_adds) == (64, 128)


@pytest.mark.parametrize(
    "product",
    [
        np.dot,
        np.inner,
        np.linalg.solve,
        lambda a, _: np.fft.fft(a),
        lambda a, b: np.einsum("ij,jk->ik", a, b),
        lambda a, b: a.dot(b),
        lambda a, b: np.convolve(a[0], b[0]),
    ],
)
def test_products_that_cannot_be_counted_are_refused(product):
    with pytest.raises(TypeError, match="cannot be counted, use @"):
        count(product, np.ones((2, 2)), np.ones((2, 2)))


def test_kept_bytes_counts_an_array_once(arrays):
    q, k, v, _ = arrays
    saved = softmax.forward(q, k, v)[1]
    assert kept_bytes(saved) == 2 * 3 * (N * D + L * D + L * M + N * L) * 8
    assert kept_bytes((q, [q, (q,)], None, 3.0)) == q.nbytes


def test_peak_bytes_sees_what_is_gone_at_the_end():
    size = 1 << 20

    def function(times):
        for _ in range(times):
            np.ones(size, np.uint8)

    # Beyond the array there are Python's own objects: some kilobytes.
    assert size <= peak_bytes(function, 3) < size + 20_000
