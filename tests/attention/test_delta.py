"""The delta rule and gated linear attention: what they are for, resets, and states that compose."""

import numpy as np
import pytest
from gate_cases import LOG_GATES, assert_gradient_of_gates
from joblib import Parallel, delayed

from linattn_ref.attention import decay_gate, delta, gated_linear, linear
from linattn_ref.experiments.measuring.counting import kept_bytes
from linattn_ref.gradcheck import check_elementwise
from linattn_ref.kernels import jit, reference

N, C, M = 37, 5, 3
MEMBERS = {
    "gated linear": (gated_linear, (), ()),
    "gated linear channels": (gated_linear, (), ("C",)),
    "delta": (delta, ("beta",), None),
    "delta gated": (delta, ("beta",), ()),
    "delta channels": (delta, ("beta",), ("C",)),
}
EACH = pytest.mark.parametrize("member", MEMBERS)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def draw(member, rng, n=N, c=C, m=M):
    """A module, and its arrays along a sequence after ``q``: those of :func:`forward`, in order."""
    module, with_beta, gate = MEMBERS[member]
    arrays = [rng.standard_normal((2, n, width)) for width in (c, c, m)]
    if with_beta:
        arrays.append(rng.uniform(0, 1.9, (2, n)))
    if gate is not None:
        arrays.append(np.log(rng.uniform(0.1, 1, (2, n, *[c] * len(gate)))))
    return module, arrays


# --- What it is for -------------------------------------------------------------------------------------------------


def test_orthonormal_keys_are_remembered_and_overwritten(rng):
    """With ``beta = 1``: each key says its last value, where linear attention says the sum."""
    keys = np.linalg.qr(rng.standard_normal((C, C)))[0]
    k, v = np.concatenate([keys, keys[:3]]), rng.standard_normal((C + 3, M))
    log_gate = np.zeros(C + 3)
    last = np.concatenate([v[C:], v[3:C]])
    state = delta.forward(k, k, v, np.ones(C + 3), normalise=False)[1].state.s
    np.testing.assert_allclose(keys @ state, last, atol=1e-13)
    added = gated_linear.forward(k, k, v, log_gate)[1].state.s
    np.testing.assert_allclose(keys[:3] @ added, v[:3] + v[C:], atol=1e-13)


def test_a_step_is_kaczmarz_projection(rng):
    """With ``beta = 1`` the state becomes the nearest of those that say ``v`` at ``k``."""
    s, k, v = rng.standard_normal((C, M)), rng.standard_normal(C), rng.standard_normal(M)
    k /= np.linalg.norm(k)
    _, state = delta.step(k, k, v, delta.State(s), np.array(1.0), normalise=False)
    np.testing.assert_allclose(state.s.T @ k, v, atol=1e-14)
    change = state.s - s
    np.testing.assert_allclose(change, np.linalg.pinv(k[None]) @ (v - s.T @ k)[None], atol=1e-14)  # of least length


def test_beta_of_two_reflects_and_forgets_nothing(rng):
    """``I - 2 k k^T``: the same key twice is the identity, and no state is longer than before."""
    k = rng.standard_normal((2, 1, C)).repeat(2, axis=1)
    piece = delta.summarise(k, np.zeros((2, 2, M)), np.full((2, 2), 2.0))
    np.testing.assert_allclose(piece.w, np.broadcast_to(np.eye(C), (2, C, C)), atol=1e-5)  # keys almost of length 1


def test_without_gate_and_correction_it_is_linear_attention_without_its_denominator(rng):
    q, k, v = (rng.standard_normal((2, N, width)) for width in (C, C, M))
    out, _ = gated_linear.forward(q, k, v, np.zeros((2, N)), scale=1.0)
    p = np.tril(q @ k.swapaxes(-1, -2))
    np.testing.assert_allclose(out, p @ v, atol=1e-12)
    phi_q, phi_k = (np.where(x > 0, x + 1, np.exp(x)) for x in (q, k))
    both, _ = gated_linear.forward(
        phi_q, phi_k, np.concatenate([v, np.ones((2, N, 1))], -1), np.zeros((2, N)), scale=1.0
    )
    np.testing.assert_allclose(
        both[..., :-1] / both[..., -1:], linear.forward(q, k, v, causal=True, eps=0.0)[0], atol=1e-12
    )


def test_retention_gates():
    np.testing.assert_allclose(np.exp(gated_linear.retention_gate(3))[:, 0], [31 / 32, 63 / 64, 127 / 128], rtol=1e-15)
    with pytest.raises(TypeError, match=r"^dtype: expected float32 or float64, got int64"):
        gated_linear.retention_gate(3, dtype=int)


# --- Resets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("member", [name for name, (*_, gate) in MEMBERS.items() if gate is not None])
def test_a_reset_starts_a_new_document(member, rng):
    """To rounding each document gets what it gets alone, forward and back, and its first gate has gradient 0."""
    module, arrays = draw(member, rng)
    arrays[-1][:, 20] = -np.inf
    d_out = rng.standard_normal((2, N, M))
    out, saved = module.forward(*arrays)
    gradients = module.backward(d_out, saved)
    assert not gradients.log_gate[:, 20].any()
    for rows in (slice(0, 20), slice(20, N)):
        alone, kept = module.forward(*(x[:, rows] for x in arrays))
        np.testing.assert_allclose(out[:, rows], alone, rtol=0, atol=1e-13)
        expected = module.backward(d_out[:, rows], kept)
        for name in gradients._fields[: len(arrays)]:
            found, single = (getattr(x, name) for x in (gradients, expected))
            np.testing.assert_allclose(found[:, rows], single, rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("gate", [0.0, 1e-300, 1e-12, 1 - 1e-12, 1.0])
def test_gates_near_0_and_1(gate, rng):
    """Every number there is, against the dense matrix, which is made row by row; and finite gradients."""
    module, arrays = draw("delta channels", rng)
    with np.errstate(divide="ignore"):
        arrays[-1][:, ::2] = np.log(gate)
    out, saved = module.forward(*arrays)
    p = module.matrix(*arrays[:2], *arrays[3:])
    np.testing.assert_allclose(out, p @ arrays[2], rtol=0, atol=1e-12)
    assert all(np.isfinite(x).all() for x in module.backward(np.ones_like(out), saved)[: len(arrays)])


# --- The gradient of gates ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log_gate", LOG_GATES)
@pytest.mark.parametrize(
    ("kernels", "dtype"),
    [
        (reference, np.float64),
        (reference, np.float32),
        (jit, np.float64),
        pytest.param(jit, np.float32, marks=pytest.mark.slow),  # compiled anew
    ],
    ids=["reference-float64", "reference-float32", "jit-float64", "jit-float32"],
)
def test_gradient_of_strong_gates(kernels, dtype, log_gate):
    """Each entry is right, however small it is beside others: from one that a gate of 1 has to one of 1e-18."""
    for module in (delta, gated_linear):
        for per_channel in (False, True):
            assert_gradient_of_gates(module, kernels, dtype, log_gate, per_channel, 75)


# --- States ---------------------------------------------------------------------------------------------------------


@EACH
def test_gradients_of_the_state_before_and_after(member, rng):
    module, arrays = draw(member, rng, 5)
    given = rng.standard_normal((2, C, M))

    def forward(*inputs):
        *rows, s = inputs
        out, saved = module.forward(*rows, state=module.State(s))
        return np.concatenate([out, saved.state.s], axis=1), saved

    def backward(d_both, saved):
        gradients = module.backward(d_both[:, :5], saved, d_state=module.State(d_both[:, 5:]))
        return (*gradients[: len(arrays)], gradients.state.s)

    check_elementwise(forward, backward, *arrays, given, rng=0).assert_ok()


@EACH
def test_pieces_compose_in_any_grouping(member, rng):
    module, (_, *arrays) = draw(member, rng, 12)
    a, b, c = (module.summarise(*(x[:, rows] for x in arrays)) for rows in (slice(0, 4), slice(4, 5), slice(5, 12)))
    whole = module.summarise(*arrays)
    for piece in (module.combine(module.combine(a, b), c), module.combine(a, module.combine(b, c))):
        for found, expected in zip(piece, whole, strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


@EACH
def test_a_piece_is_what_it_does_to_any_state(member, rng):
    """With a key mask: masked keys leave it as it is."""
    module, arrays = draw(member, rng, 9)
    key_mask = rng.random((2, 9)) < 0.5
    before = module.State(rng.standard_normal((2, C, M)))
    piece = module.summarise(*arrays[1:], key_mask=key_mask)
    after = module.forward(*arrays, state=before, key_mask=key_mask)[1].state
    np.testing.assert_allclose(module.apply(piece, before).s, after.s, rtol=0, atol=1e-13)


def piece_forward(module, arrays, d_out, before):
    """On one machine: its output, and what it asks of the state before it, were nothing after it."""
    out, saved = module.forward(*arrays, state=before)
    return out, module.backward(d_out, saved).state


def piece_backward(module, arrays, d_out, before, d_after):
    """On one machine: its gradients, given that of the state it handed on."""
    _, saved = module.forward(*arrays, state=before)
    return module.backward(d_out, saved, d_state=d_after)[: len(arrays)]


@EACH
def test_a_gradient_goes_back_through_a_piece(member, rng):
    """What a piece makes of the gradient after it is what its rows do, of which no output is asked."""
    module, arrays = draw(member, rng, 7)
    before, d_after = (module.State(rng.standard_normal((2, C, M))) for _ in range(2))
    out, saved = module.forward(*arrays, state=before)
    expected = module.backward(np.zeros_like(out), saved, d_state=d_after).state
    found = module.apply_backward(module.summarise(*arrays[1:]), d_after)
    np.testing.assert_allclose(found.s, expected.s, rtol=0, atol=1e-13)


@EACH
def test_compiled_passes_and_tokens_are_the_pages(member, rng):
    module, arrays = draw(member, rng, 9)
    before, d_after = (module.State(rng.standard_normal((2, C, M))) for _ in range(2))
    found = []
    for kernels in (reference, jit):
        out, saved = module.forward(*arrays, state=before, kernels=kernels)
        gradients = module.backward(np.cos(out), saved, d_state=d_after)
        tokens, state = [], before
        for t in range(9):
            q, k, v, *others = (x[:, t] for x in arrays)
            token, state = module.step(q, k, v, state, *others, kernels=kernels)
            tokens.append(token)
        found.append([out, np.stack(tokens, axis=1), state.s, *gradients[: len(arrays)], gradients.state.s])
    for page, compiled in zip(*found, strict=True):
        np.testing.assert_allclose(compiled, page, rtol=0, atol=1e-12)


@pytest.mark.slow
@EACH
def test_a_sequence_shared_by_two_processes(member, rng):
    """Three rounds of messages: pieces, what they ask of states, and the gradients."""
    module, arrays = draw(member, rng, 60)
    d_out = rng.standard_normal((2, 60, M))
    expected, saved = module.forward(*arrays)
    whole = module.backward(d_out, saved)
    rows = [slice(0, 20), slice(20, 40), slice(40, 60)]
    parts, asks = [[x[:, r] for x in arrays] for r in rows], [d_out[:, r] for r in rows]

    with Parallel(n_jobs=2) as parallel:
        pieces = parallel(delayed(module.summarise)(*part[1:]) for part in parts)
        states = [module.init_state((2,), C, M)]
        for piece in pieces[:-1]:
            states.append(module.apply(piece, states[-1]))
        outs, asked = zip(
            *parallel(delayed(piece_forward)(module, *each) for each in zip(parts, asks, states, strict=True)),
            strict=True,
        )
        of_second = module.State(asked[1].s + module.apply_backward(pieces[1], asked[2]).s)
        after = [of_second, asked[2], None]
        found = parallel(
            delayed(piece_backward)(module, *each) for each in zip(parts, asks, states, after, strict=True)
        )
    np.testing.assert_allclose(np.concatenate(outs, axis=1), expected, rtol=0, atol=1e-12)
    for part, gradient in zip(zip(*found, strict=True), whole[: len(arrays)], strict=True):
        np.testing.assert_allclose(np.concatenate(part, axis=1), gradient, rtol=0, atol=1e-12)


def test_states_do_not_add(rng):
    """Why there is no sum of two states: what the second piece faded and erased of the first would come back."""
    module, (_, *arrays) = draw("delta gated", rng, 8)
    a, b = (module.summarise(*(x[:, rows] for x in arrays)) for rows in (slice(0, 4), slice(4, 8)))
    whole = module.summarise(*arrays)
    assert abs(a.b + b.b - whole.b).max() > 0.1


def test_what_does_not_compose_is_refused(rng):
    module, (_, *arrays) = draw("delta", rng, 4)
    piece = module.summarise(*arrays)
    state = module.init_state((2,), C, M)
    for wrong, name in ((state, "piece_b"), (module.Piece(piece.b, piece.b), "piece_b.w")):
        with pytest.raises((TypeError, ValueError), match=rf"^{name}: expected "):
            module.combine(piece, wrong)
    with pytest.raises(ValueError, match=r"^state.s: expected shape .* = \(2, 5, 3\), got \(3, 5, 3\)"):
        module.apply(piece, module.init_state((3,), C, M))
    with pytest.raises(TypeError, match=r"^d_state: expected pieces.State, got pieces.Piece"):
        module.apply_backward(piece, piece)


# --- What is kept ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])
@EACH
def test_between_the_passes_rows_are_kept_and_no_state_a_row(member, kernels, rng):
    """At most ``N (6 C + 3 M + 3)`` numbers per head and two states, the inputs among them, where states of all rows
    would be ``N C M``. Every ``C``-th, which the page keeps, is ``N M`` of these."""
    n, c, m = 200, 32, 24
    module, arrays = draw(member, rng, n, c, m)
    _, saved = module.forward(*arrays, state=module.init_state((2,), c, m), kernels=kernels)
    assert kept_bytes(saved) <= 8 * 2 * (n * (6 * c + 3 * m + 3) + 2 * c * m) < 8 * 2 * n * c * m


@pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])
@pytest.mark.parametrize("member", ["gated linear", "delta gated"])
def test_no_gate_is_a_gate_of_1(member, kernels, rng):
    """Given as None, to a pass and to a step."""
    module, (q, k, v, *others, gate) = draw(member, rng)
    out, saved = module.forward(q, k, v, *others, None, kernels=kernels)
    expected, _ = module.forward(q, k, v, *others, np.zeros_like(gate), kernels=kernels)
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)
    assert module.backward(out, saved).log_gate is None
    state = module.init_state((2,), C, M, kernels=kernels)
    for t in range(N):
        rows = (x[:, t] for x in (q, k, v))
        out_t, state = module.step(*rows, state, *(x[:, t] for x in others), None, kernels=kernels)
        np.testing.assert_allclose(out_t, expected[:, t], rtol=1e-12, atol=1e-12)


# --- The gate -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("x", "a_log", "dt_bias"), [((2, 3, 4), (3, 1), (3, 1)), ((2, 3, 4, 2), (3, 1, 1), (3, 1, 2))])
def test_gradient_of_the_gate(x, a_log, dt_bias, rng):
    inputs = (rng.standard_normal(shape) for shape in (x, a_log, dt_bias))
    check_elementwise(decay_gate.forward, decay_gate.backward, *inputs, rng=0).assert_ok()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gates_of_extreme_tokens(dtype):
    """Nothing overflows, and a state that is to be kept or to be forgotten is."""
    x = np.array([-1e30, -90, 0, 90, 1e30], dtype)
    log_gate, saved = decay_gate.forward(x, np.zeros(1, dtype), np.zeros(1, dtype))
    assert log_gate.dtype == dtype
    assert log_gate[0] == 0
    np.testing.assert_allclose(log_gate[1:], [-np.exp(-90.0), -np.log(2), -90, -1e30], rtol=1e-6)
    gradients = decay_gate.backward(np.ones_like(x), saved)
    np.testing.assert_allclose(gradients.x, [0, -np.exp(-90.0), -0.5, -1, -1], rtol=1e-6)
    assert all(g.dtype == dtype for g in gradients)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_infinite_gates_have_gradients(dtype):
    """A state that is thrown away, and a rate beyond the range where nothing fades."""
    x, zero = np.array([[1.0, np.inf]], dtype), np.zeros((1, 1), dtype)
    log_gate, saved = decay_gate.forward(x, zero, zero)
    assert log_gate[0, 1] == -np.inf
    d_a_log = decay_gate.backward(np.array([[1.0, 0.0]], dtype), saved).a_log
    np.testing.assert_array_equal(d_a_log[0, 0], log_gate[0, 0])
    with np.errstate(over="ignore"):
        log_gate, saved = decay_gate.forward(zero - dtype(1000), zero + dtype(1000), zero)
        assert not log_gate.any()
        assert not any(gradient.any() for gradient in decay_gate.backward(np.ones_like(log_gate), saved))


def test_a_gate_is_checked():
    x, one = np.zeros((2, 3)), np.zeros((2, 1))
    with pytest.raises(ValueError, match=r"^a_log: expected shape \(\.\.\.\) = \(2, 3\), got \(2,\)"):
        decay_gate.forward(x, np.zeros(2), one)
    with pytest.raises(TypeError, match=r"^dt_bias: expected float64 like the other arrays, got float32"):
        decay_gate.forward(x, one, one.astype(np.float32))


@pytest.mark.parametrize("page", [delta, gated_linear])
def test_a_compiled_state_begins_as_the_pages_does(page):
    for leading, groups in (((), 1), ((2, 4), 2)):
        ours, theirs = (page.init_state(leading, 4, 3, groups=groups, kernels=x) for x in (jit, reference))
        np.testing.assert_array_equal(ours.s, theirs.s)
        assert ours.s.dtype == theirs.s.dtype
