"""Compiled kernels between guard pages: memory that ends the process if it is touched lies right behind an array, or
right before it, and what shares its pages stays what it was. Run in a process of its own; and what a kernel refuses."""

import contextlib
import ctypes
import ctypes.util
import os
import subprocess
import sys
from inspect import isfunction
from unittest import mock

import causal_page
import delta_page
import elu_page
import features_page
import lsh_page
import numpy as np
import pattern_page
import softmax_page

from linattn_ref.attention.sparse import part
from linattn_ref.kernels import jit, reference
from linattn_ref.kernels.jit import loops

IN_NUMPY = {
    "softmax": softmax_page,
    "causal_product": causal_page,
    "causal_product_plain": causal_page,
    "pattern_softmax": pattern_page,
    "lsh": lsh_page,
    "exponential_features": features_page,
    "delta_product": delta_page,
    "elu_plus_one": elu_page,
}

GROUPS = [getattr(loops, name) for name in loops.__all__]
MODULES = {name: getattr(group, name) for group in GROUPS for name in group.__all__}

LAYERS = (
    "layer_norm",
    "gelu",
    "cross_entropy",
    "ctc",
    "lstm",
    "unit_rows",
)  # these make the arrays of their results themselves

PAGE = 4096
CANARY = 0xA5


class Guarded:
    """Makes arrays whose memory begins where a page that nobody may touch ends, or ends where one begins."""

    def __init__(self, at_end):
        self.at_end, self.libc, self.pieces = at_end, ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True), []
        self.libc.mmap.restype = ctypes.c_void_p
        self.libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        self.libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def __call__(self, x):
        """A copy of ``x``, contiguous."""
        room = max(-(-x.nbytes // PAGE), 1) * PAGE
        address = self.libc.mmap(None, room + 2 * PAGE, 3, 0x22, -1, 0)  # private memory to read and write
        assert address not in (None, ctypes.c_void_p(-1).value)
        for guard in (address, address + PAGE + room):
            assert self.libc.mprotect(guard, PAGE, 0) == 0
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * room).from_address(address + PAGE))
        memory[:] = CANARY
        first = room - x.nbytes if self.at_end else 0
        self.pieces.append((memory, slice(first, first + x.nbytes)))
        array = memory[self.pieces[-1][1]].view(x.dtype).reshape(x.shape)
        array[...] = x
        return array

    def check(self, first=0):
        """That nothing beside the arrays, or beside those from ``first`` on, has changed."""
        for memory, used in self.pieces[first:]:
            assert (memory[: used.start] == CANARY).all()
            assert (memory[used.stop :] == CANARY).all()


def heads_last(place, x):
    """A view of a larger array: heads of rows that lie side by side."""
    return place(np.ascontiguousarray(x.swapaxes(-2, -3))).swapaxes(-2, -3) if x.ndim > 2 else place(x)


def gaps(place, x):
    """Every second number of an array that has the first or the last of them at its edge."""
    wide = np.repeat(x, 2, axis=-1)
    return place(wide)[..., 1::2] if place.at_end else place(wide)[..., ::2]


LAYOUTS = {"contiguous": lambda place, x: place(x), "heads last": heads_last, "gaps": gaps}


@contextlib.contextmanager
def new_arrays_by(place):
    """Within, what is around a compiled loop makes its arrays between guard pages too, full of NaN."""

    def empty(shape, dtype=float, **_):
        return place(np.full(shape, np.nan if np.dtype(dtype).kind == "f" else 0, dtype))

    def empty_like(x, dtype=None, **_):
        return empty(x.shape, dtype or x.dtype)

    with mock.patch.object(np, "empty", empty), mock.patch.object(np, "empty_like", empty_like):
        yield


class Rooms:
    """Calls a kernel of each room with the same arguments, the compiled one's between guard pages, and compares."""

    def __init__(self, place, layout):
        self.place, self.layout, self.called = place, layout, set()

    def put(self, x):
        if isinstance(x, tuple) and type(x) is tuple:
            return tuple(self.put(one) for one in x)
        return self.layout(self.place, x) if isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.ndim else x

    def __call__(self, kernel, function, *arguments, into=None, written=(), expected=None, **options):
        """``into`` are names of buffers with arrays like what they get; ``written`` are places of what is changed."""
        compiled = getattr(MODULES[kernel], function)
        self.called.add(compiled)
        first = len(self.place.pieces)
        given = [self.put(x) for x in arguments]
        if kernel in LAYERS:
            compiled(*map(copied, arguments), **options)  # compiles
        with new_arrays_by(self.place) if kernel in LAYERS else contextlib.nullcontext():
            results = compiled(*given, **options, **{name: self.put(x) for name, x in (into or {}).items()})
        if expected is None:
            copies = [x.copy() if isinstance(x, np.ndarray) else x for x in arguments]
            numpys = IN_NUMPY.get(kernel) or MODULES[kernel]
            expected = getattr(numpys, function)(*copies, **options), *(copies[i] for i in written)
            results = results, *(given[i] for i in written)
        compare(results, expected)
        self.place.check(first)  # of all others, at the end
        return expected


def copied(x):
    if isinstance(x, tuple) and type(x) is tuple:
        return tuple(map(copied, x))
    return x.copy() if isinstance(x, np.ndarray) else x


def compare(got, expected):
    if isinstance(expected, tuple):
        for a, b in zip(got, expected, strict=True):
            compare(a, b)
    elif expected is not None:
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-11)


def attention_kernels(call, rng, leading, n, d, m):
    """What works on heads of queries, keys and values."""

    def drawn(*shape):
        return rng.standard_normal((*leading, *shape))

    q, k, v, d_out, d_s = drawn(n, d), drawn(n, d), drawn(n, m), drawn(n, m), drawn(d, m)
    into = {"out": np.zeros((*leading, n, m))}
    pattern = (part.band(n, n, -3, 2, dilation=2, without=[1]), part.columns(n, n, [1]))
    order = rng.permuted(np.broadcast_to(np.arange(n, dtype=np.int32), (*leading, 2, n)), axis=-1)
    kinds = {
        "softmax": (np.arange(n) != n // 2) & np.ones((*leading, n), bool),
        "pattern_softmax": np.ones((*leading, n), bool),
    }
    for kernel, mask in kinds.items():
        more = (mask, True, 0.5) if kernel == "softmax" else (mask, pattern, 0.5)
        results, *_ = call(kernel, "forward", q, k, v, *more, into=into)
        call(kernel, "backward", d_out, q, k, v, *results, *more)
    more = order, np.full(leading, n), 4, True, 0.5
    results, *_ = call("lsh", "forward", q, k, v, *more, into=into)
    call("lsh", "backward", d_out, q, k, v, *results, *more)

    z = abs(drawn(d))
    for s, d_z in ((None, None), (d_s, z)):
        call("causal_product", "forward", q, k, v, s, into=into)
        call("causal_product", "backward", d_out, s, q, k, v, s)
        more = q * q, k * k, v, s, d_z
        (out, denominator, *_), *_ = call("causal_product", "normalised_forward", *more, 0.5, into=into)
        call("causal_product", "normalised_backward", d_out, s, d_z, *more, out, denominator)
    call("causal_product_plain", "forward_by_row", q, k, v, d_s)
    call("causal_product_plain", "backward_by_row", d_out, d_s, q, k, v, d_s)
    erase, log_gate = 0.3 * drawn(n, d) / d, np.log(rng.uniform(0.5, 1, (*leading, n, d)))
    for e, g in ((None, log_gate[..., 0]), (erase, None), (erase, log_gate[..., 0]), (erase, log_gate)):
        (_, _, u), *_ = call("delta_product", "forward", q, k, v, e, g, d_s)
        call("delta_product", "backward", d_out, d_s, q, k, v, e, g, d_s, u)
    more = q, k, v, rng.random((*leading, n, 1)), True, 0.5
    call("unit_rows", "unit", q)
    call("unit_rows", "forward", *more)
    call("unit_rows", "backward", drawn(n, d), drawn(n, d), drawn(n, m), drawn(n, d), *more)
    (phi, _), *_ = call("elu_plus_one", "forward", q)
    call("elu_plus_one", "backward", q.copy(), phi)
    c = 2 * d + 1
    exponent, scale = drawn(n, c), drawn(c)
    for function, more in (("largest", ()), ("of_keys", (scale,)), ("of_queries", (scale,))):
        call("exponential_features", function, exponent.copy(), *more)
    call("exponential_features", "over_all_keys", q, k, rng.standard_normal((c, d)), v)


def steps(call, rng, leading, d, m):
    """One token."""

    def drawn(*shape):
        return rng.standard_normal((*leading, *shape))

    q, k, v, s, z = drawn(d), drawn(d), drawn(m), drawn(d, m), abs(drawn(d)) + 1
    for kernel in ("causal_product", "elu_plus_one"):
        call(kernel, "step", abs(q), abs(k), v, s.copy(), z.copy(), 0.5, written=(3, 4))
    keys, values = drawn(6, d), drawn(6, m)
    out, *_ = softmax_page.forward(q[..., None, :], keys[..., :4, :], values[..., :4, :], None, True, 0.5)
    call("softmax", "step", q, keys, values, 4, 0.5, expected=out[..., 0, :])
    erase, log_gate = 0.3 * drawn(d) / d, np.log(rng.uniform(0.5, 1, leading))
    call("delta_product", "step", q, k, v, erase, log_gate, s.copy())
    random_features(call, rng, leading, d, m)
    call.place.check()


def random_features(call, rng, leading, d, m):
    """Those of the Performer and of RFA, of which the texts are `linattn_ref.attention`'s."""
    from linattn_ref.attention import performer, rfa

    c = 2 * d + 1
    omega = rng.standard_normal((c, d))
    q, k, v = (rng.standard_normal((*leading, width)) for width in (d, d, m))
    for mechanism, kernel in ((performer, loops.linear.favor_positive), (rfa, loops.linear.rfa)):
        results = []
        for room, put in ((reference, np.copy), (jit, call.put)):
            state = mechanism.init_state(leading, d, m, put(omega))
            state = state._replace(s=put(state.s), z=put(state.z))
            for _ in range(2):
                token = put(q), put(k), put(v), state, put(omega)
                out, state = mechanism.step(*token, overwrite_state=True, kernels=room)
            results.append(out)
        compare(*results[::-1])
        call.called.add(kernel.step)


def layers(call, rng, shape):
    """What works on rows."""

    def drawn(*shape):
        return rng.standard_normal(shape)

    width, rows = shape[-1], int(np.prod(shape[:-1]))
    x, d_y = drawn(2, *shape)
    gain, bias = drawn(width), drawn(width)
    _, mean, s = call("layer_norm", "forward", x, gain, bias, 1e-3)[0]
    call("layer_norm", "backward", d_y, x, mean, s, gain)
    for b in (bias, None):
        call("gelu", "forward", x, b)
        call("gelu", "forward", x, b, with_slope=False)
    targets, share = rng.integers(0, width, shape[:-1]), rng.random(shape[:-1])
    call("cross_entropy", "forward", x, targets, share)
    scores, labels = drawn(2, rows, width), rng.integers(1, max(width, 2), (2, 2)) % width
    frames, lengths = np.array([rows, max(rows - 1, 1)]), np.array([min(2, rows // 2), 0])
    if width > 1:
        call("ctc", "forward", scores, labels, frames, lengths, share.ravel()[:1].repeat(2))
    hidden = width + 1
    steps, d_h = drawn(rows, 2, width), drawn(rows, 2, hidden)
    w, u, b = drawn(width, 4 * hidden), drawn(hidden, 4 * hidden), drawn(4 * hidden)
    kept = call("lstm", "forward", steps, w, u, b)[0]
    call("lstm", "backward", d_h, steps, w, u, *kept)
    for shape in ((width,), (3, width)):  # of one axis, and of two: a parameter that is moved by itself
        p, g, m, v = (abs(drawn(*shape)) for _ in range(4))
        more = {"betas": (0.8, 0.9), "size": 0.1, "root": 1.5, "eps": 1e-3}
        call("adam", "step", p, g, m, v, written=(0, 2, 3), **more)


def decoding(call):
    """A token of a small network."""
    from linattn_ref.attention import linear, softmax
    from linattn_ref.models import causal, decoding
    from linattn_ref.nn import mechanism

    params = causal.draw(np.random.default_rng(0), tokens=5, places=3, width=6, hidden=7, layers=1)
    for module in (linear, softmax):
        model = causal.Model(mechanism.of(module, causal=True, kernels=jit), heads=2)
        packed = decoding.pack(params, model)
        plain, _ = decoding.step(np.array([1, 3]), packed, decoding.init_state(2, packed))
        put = {name: call.place(x) for name, x in packed._asdict().items() if isinstance(x, np.ndarray)}
        state = decoding.init_state(2, packed)
        state = type(state)(*(call.place(x) if isinstance(x, np.ndarray) else x for x in state))
        scores, _ = decoding.step(np.array([1, 3]), packed._replace(**put), state, overwrite_state=True)
        compare(scores, plain)
    decode = loops.layers.decode
    call.called |= {decode.pack, decode.widened, decode.check, decode.step}


def public_kernels():
    """Every function that a module which `loops` shows lists, or defines."""
    for module in MODULES.values():
        defined = [word for word, x in vars(module).items() if isfunction(x) and x.__module__ == module.__name__]
        for word in getattr(module, "__all__", [word for word in defined if not word.startswith("_")]):
            yield f"{module.__name__}.{word}", getattr(module, word)


def main():
    """Ends with 0 if nothing was touched."""
    called = set()
    for at_end in (True, False):
        for layout in LAYOUTS.values():
            rng = np.random.default_rng(0)
            for leading, n, d, m in (((2, 1), 7, 3, 5), ((3,), 37, 16, 8)):
                call = Rooms(Guarded(at_end), layout)
                attention_kernels(call, rng, leading, n, d, m)
                steps(call, rng, leading, d, m)
                layers(call, rng, (*leading, 5, d))
                decoding(call)
                call.place.check()
                called |= call.called
    missing = [name for name, function in public_kernels() if function not in called]
    assert not missing, missing


def test_no_kernel_touches_what_is_beside_its_arrays():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False, env=environment)
    assert found.returncode == 0, f"{found.returncode}: {found.stderr[-3000:]}"


if __name__ == "__main__":
    main()
