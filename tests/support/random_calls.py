"""Legal calls drawn by their number: ``check(seed)`` draws one of a mechanism, a layer or a model, and asks all that
holds of any: what it is called with is left alone, outputs are finite and of the inputs' dtype, the gradient is that of
the output, backends agree with loops and with each other, and pieces joined by a state are one pass.

A failure says its number and its call; ``python -c "import random_calls; random_calls.check(1234)"`` in this folder
makes it again.
"""

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import model_calls
import numpy as np
from case import Case, Sizes, assert_close, normal_like
from cases import CASES, Setting
from layouts import laid_out

from linattn_ref.attention import nystromformer
from linattn_ref.gradcheck import check_directions
from linattn_ref.gradcheck.inputs import float_arrays
from linattn_ref.kernels import reference
from linattn_ref.nested import leaves, map_arrays

KINDS = *CASES, *model_calls.KINDS
LEADING = (), (1,), (2,), (3,), (2, 1, 2)


def check(seed, *, everything=False):
    """Draw a call and check it; in ``jit`` only what a default test run has compiled, unless it is ``everything``."""
    rng = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]  # one after the other, so that few calls reach all
    dtype = np.float64 if rng.random() < 0.7 else np.float32
    call = (draw if isinstance(kind, Case) else model_calls.draw)(kind, rng, dtype, everything=everything)
    try:
        call.check(rng)
    except Exception as error:
        error.add_note(f"in call {seed}{', everything=True' * everything}: {call}")
        raise


# --- A call of a mechanism ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """A call of a mechanism, in one layout of its arrays."""

    setting: Setting
    call: object
    loops: bool  # whether it is small enough for plain loops

    def check(self, rng):
        call, case = self.call, self.setting.case
        dtype = call.arrays[call.first].dtype
        kept = map_arrays(np.copy, (call.arrays, *call.arrays.values(), *call.options.values())[1:])
        out, saved = call.forward()
        case, of_gradients = conditioned(case, saved)
        sizes = call.sizes
        assert out.shape == (*sizes.leading, sizes.n, sizes.m)
        d_out = laid_out(normal_like(out), rng)
        d_out_kept = d_out.copy()
        gradients = case.backward(d_out, saved)
        assert_unaltered((*call.arrays.values(), *call.options.values(), d_out), (*kept, d_out_kept))
        results = {"out": out, **named(gradients)}
        for name, x in results.items():
            assert x.dtype == dtype, name
            assert np.isfinite(x).all(), name
        if self.loops:
            assert_close(out, call.expected(), case, "out, against plain loops")
        if self.setting.room == "jit" or dtype == np.float32:
            other = call.astype(np.float64).change(**in_reference(call)).run(d_out.astype(np.float64))
            for name, x in other.named().items():
                assert_close(results[name], x, of_gradients, f"{name}, against reference in float64")
        if dtype == np.float64:
            assert_gradients(
                check_directions(call.function(), case.backward, *call.arrays.values(), rng=rng, directions=1)
            )
        if case.recurrent:
            self.check_pieces(out, rng)

    def check_pieces(self, out, rng):
        """Pieces of any lengths, the last ones token by token."""
        call, length = self.call, self.call.sizes.n
        mask, case = call.options.get("key_mask"), self.setting.case
        case = replace(case, roundings=max(case.roundings, length))  # one per row, where a state grows from row to row
        if length != call.sizes.n_keys:
            return
        by_step = 0 if mask is not None else int(rng.integers(0, length + 1))
        cuts = np.unique([0, *rng.integers(0, length - by_step + 1, 2), length - by_step])
        state, outs = call.init_state(), []
        for start, stop in pairwise(cuts):
            piece = call.block(int(start), int(stop))
            if mask is not None:
                piece = piece.change(key_mask=mask[..., start:stop])
            out_piece, saved = piece.forward(state=state)
            outs, state = [*outs, out_piece], saved.state
        for t in range(length - by_step, length):
            out_t, state = call.step(t, state)
            outs.append(out_t[..., None, :])
        assert_close(np.concatenate(outs, axis=-2), out, case, "out, in pieces")
        _, whole = call.forward(state=call.init_state())
        for (name, x), (_, y) in zip(float_arrays("state", state), float_arrays("state", whole.state), strict=True):
            infinite = np.isinf(y)  # the exponent of a state that has seen nothing
            np.testing.assert_array_equal(x[infinite], y[infinite], err_msg=name)
            if not infinite.all():
                assert_close(x[~infinite], y[~infinite], case, f"{name}, in pieces")

    def __str__(self):
        call = self.call
        options = {name: getattr(x, "__name__", x) for name, x in call.options.items()}
        dtype = call.arrays[call.first].dtype
        return f"{self.setting}, {call.sizes}, {dtype}, {options}"


def assert_gradients(report):
    """None is wrong; undecided only one next to 0 among the others: that of a query before a single key, say."""
    largest = max(abs(entry.numeric) for entry in report.worst_by_input)
    undecided = [abs(entry.numeric) for entry in report.worst_by_input if entry.undecided]
    if report.failed or max(undecided, default=0.0) > 1e-4 * largest:
        report.assert_ok()


def conditioned(case, saved):
    """The case with what its rounding is multiplied by in this call: of its output, and of its gradients.

    An error in ``A`` is multiplied by ``|Z|`` on its way to ``Z``, its pseudo-inverse, and a gradient has ``Z`` twice.
    Apart from that a gradient multiplies rounding once more.
    """
    size = np.linalg.norm(saved.z, 2, axis=(-2, -1)).max() if case.module is nystromformer else 1.0
    out = case.roundings * max(1.0, float(size))
    return replace(case, roundings=out), replace(case, roundings=16 * out * max(1.0, float(size)))


def in_reference(call):
    return {"kernels": reference} if "kernels" in call.options else {}


def named(gradients):
    return {leaf: x for name, part in gradients._asdict().items() for leaf, x in float_arrays(name, part)}


def assert_unaltered(now, before):
    pairs = zip(leaves(tuple(now), strict=False), leaves(tuple(before), strict=False), strict=True)
    for (name, x), (_, y) in pairs:
        np.testing.assert_array_equal(x, y, err_msg=f"argument {name} was written to")


def draw(case, rng, dtype, *, everything):
    """Any small shape or one of more than a tile, any mask, any options."""
    compiled = "jit" in case.rooms and (everything or (not case.slow and dtype == np.float64))
    room = "jit" if compiled and rng.random() < 0.5 else ("reference" if case.rooms else None)
    setting = Setting(case, room, masked=False)
    small = rng.random() < 0.9
    n, n_keys = (int(x) for x in rng.integers(1, 10 if small else 150, 2))
    if case.recurrent and rng.random() < 0.5:
        n = n_keys
    d, m = (int(x) for x in rng.integers(1, 10, 2))
    sizes = Sizes(n, n_keys, d, m, LEADING[rng.integers(len(LEADING))])
    call = setting.call(sizes, dtype=dtype, seed=int(rng.integers(1 << 31)))
    vary = OPTIONS.get(case.module.__name__.rpartition(".")[2])
    if vary:
        call = vary(call, rng)
    if case.takes("scale") and rng.random() < 0.5:
        call = call.change(scale=float(rng.uniform(-2, 2)))
    call = call.change(key_mask=mask_of(call, rng))
    if case.any_scale:
        size = dtype(rng.choice([1e-3, 0.1, 1.0, 1.0, 3.0]))
        call = call.change(arrays={call.first: call.arrays[call.first] * size})
    return Drawn(setting, call.change(arrays=map_values(partial(laid_out, rng=rng), call.arrays)), small)


def map_values(function, arrays):
    return {name: map_arrays(function, x) for name, x in arrays.items()}


def mask_of(call, rng):
    """None, anything, everything, nothing, nothing in one sequence; padding in front or behind."""
    shape = (*call.sizes.leading, call.sizes.n_keys)
    places, padding = np.arange(shape[-1]), rng.integers(0, shape[-1] + 1, (*shape[:-1], 1))
    one = rng.random(shape) < 0.6
    masks = {
        "none": None,
        "any": one,
        "all": np.ones(shape, bool),
        "nothing": np.zeros(shape, bool),
        "left": np.broadcast_to(places >= padding, shape),
        "right": np.broadcast_to(places < padding, shape),
        "one": one & (rng.random((*shape[:-1], 1)) < 0.5),
    }
    mask = masks[rng.choice([*masks], p=[0.3, 0.3, 0.05, 0.05, 0.1, 0.1, 0.1])]
    return None if mask is None else laid_out(mask, rng)


# --- Options of one mechanism alone ---------------------------------------------------------------------------------


def integer(rng, low, high):
    return int(rng.integers(low, high + 1))


def a_window(call, rng):
    return call.change(window=integer(rng, 1, call.sizes.n_keys + 2), dilation=integer(rng, 1, 4))


def a_block(call, rng):
    return call.change(block=integer(rng, 1, call.sizes.n_keys + 2))


def global_tokens(call, rng):
    n = call.sizes.n
    return a_window(call, rng).change(global_tokens=[integer(rng, -n, n - 1) for _ in range(integer(rng, 1, 4))])


def blocks(call, rng):
    call = a_block(call, rng)
    count = -(-call.sizes.n // call.options["block"])
    drawn = rng.integers(-count, count, (count, integer(rng, 0, 2)))
    return call.change(
        window_blocks=1 + 2 * integer(rng, 0, 2),
        global_blocks=tuple(integer(rng, -count, count - 1) for _ in range(integer(rng, 0, 2))),
        random_blocks=drawn if drawn.size else None,
    )


def a_stride(call, rng):
    stride = integer(rng, 1, call.sizes.n_keys + 2)
    return call.change(stride=stride, summary=integer(rng, 1, stride))


def a_segment(call, rng):
    return call.change(window=integer(rng, 1, call.sizes.n_keys + 2))


def a_hash(call, rng):
    rounds, half = integer(rng, 1, 4), integer(rng, 1, 4)
    rotations = rng.standard_normal((rounds, call.sizes.d, half)).astype(call.arrays["qk"].dtype)
    return call.change(chunk=integer(rng, 1, call.sizes.n + 2), rotations=laid_out(rotations, rng))


def landmarks(call, rng):
    if call.options.get("pinv") == "exact":
        return call
    most = min(call.sizes.n, call.sizes.n_keys)
    return call.change(landmarks=integer(rng, 1, most), iterations=integer(rng, 1, 8))


def rows(call, rng):
    """``R``, of both projections."""
    n_keys = call.sizes.n_keys
    places = rng.integers(0, call.arrays["e"].shape[-2], integer(rng, 1, n_keys))
    more = {name: np.take(call.arrays[name], places, axis=-2) for name in "ef"}
    return call.change(arrays={name: x * rng.uniform(0.5, 1.5, x.shape).astype(x.dtype) for name, x in more.items()})


def an_eps(call, rng):
    exponentials = call.options.get("eps") == 0.0
    return call if exponentials else call.change(eps=float(rng.choice([1e-6, 1e-3, 0.1])))


OPTIONS = {
    "local": a_window,
    "block_local": a_block,
    "longformer": global_tokens,
    "bigbird": blocks,
    "sparse_transformer": a_stride,
    "long_short": a_segment,
    "reformer": a_hash,
    "nystromformer": landmarks,
    "linformer": rows,
    "linformer_linear": lambda call, rng: an_eps(rows(call, rng), rng),
    "linear": an_eps,
    "rfa": an_eps,
    "delta": lambda call, rng: call.change(normalise=bool(rng.random() < 0.7)),
}
