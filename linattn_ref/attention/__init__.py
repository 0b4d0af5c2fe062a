"""The pages: one mechanism per file, its formula, forward pass and hand-derived backward pass, in plain NumPy.

    from linattn_ref.attention import linear
    out, saved = linear.forward(q, k, v, causal=True)
    grads = linear.backward(d_out, saved)        # grads.q, grads.k, grads.v

Each mechanism
--------------
``forward(...) -> (out, saved)``       ``saved`` is what the backward pass needs: its size is the memory story
``backward(d_out, saved) -> grads``    gradients of all arrays but masks and constants such as ``omega``, by their names
``matrix(q, k, ...)``                  the dense matrix that is applied to the values, ``out == matrix @ v``
``init_state(...)``, ``step(...)``     the recurrent form, one token per call, of those that have one

A page **is** the reference: a reader needs nothing else to follow it, and compiled backends are held against it. What
changes no number stands around the pages (`linattn_ref.op`): arguments are checked once, at the outermost call, by the
shapes in the signature, and ``forward.page`` is the page's function alone. Some mechanisms have other forms:
`online_softmax` of `softmax`, `chunked_linear` of `linear`, `exponential` of `linear` with exponential features, and
`delta_rule` and `chunked_delta` of the rule that `delta` and `gated_linear` share.

A state is a value: ``step`` returns a new one, and leaves the old one as it is, so that it can be continued again.

The common arguments
--------------------
Their meaning is the same everywhere, and a mechanism's own text only names them.

q, k, v : ndarray, ``(..., N, D)``, ``(..., L, D)``, ``(..., L, M)``
    Queries, keys and values, one token per row. All are float32 or all float64, and so are the work and the result.
    Leading axes, usually batch and heads, are equal in all three. ``N`` and ``L`` are at least 1.
causal : bool
    Query ``i`` sees keys ``j <= i + (L - N)``: aligned at the end, so that new queries see what was cached. Needs
    ``N <= L``.
key_mask : ndarray of bool ``(..., L)``, optional
    True = may be attended. A masked key has weight and gradient exactly 0; what is in it changes
    nothing. Gates and ``beta`` must be in range at masked tokens too.
scale : float, optional
    Factor of the scores ``q . k``; ``1/sqrt(D)`` unless given.
eps : float
    Added to the denominator of linear attention.
state : State, optional
    A state to continue from (needs ``causal=True``). It is left alone, and ``saved.state`` is the one after the last
    token.
offsets : ndarray of integers ``(P + 1,)``, optional
    Of `softmax`, `linear`, `gated_linear` and `delta`: one row of tokens holds ``P`` sequences, one after the other,
    and sequence ``p`` is tokens ``offsets[p]`` to ``offsets[p + 1]``. None sees another, and one may be empty. Then
    ``N = L``, arrays have the leading axes ``(H,)`` or none, and states ``(P, H)`` (`parts/packed.py`).
groups : int
    Of the same four: each head of keys serves ``groups`` heads of queries, neighbours. Queries have ``H`` heads; keys,
    values, masks, gates and states have ``H / groups``, on the axis before the tokens (`parts/shared_heads.py`).
    ``init_state`` takes it too, with the leading axes of queries.
d_out : ndarray ``(..., N, M)``
    The gradient of a loss with respect to ``out``.

Options of the call
-------------------
They change no number, and so they are on no page.

kernels : module
    The backend: ``linattn_ref.kernels.reference``, the pages themselves, ``.jit`` (Numba, CPU) or ``.cuda``, which also
    takes arrays of CuPy, PyTorch or Numba that are on a GPU and returns such arrays; or one of your own, with pages by
    name. Nothing falls back silently. ``backward`` runs where ``forward`` ran. Backends of the four pages just named
    also take arrays of 16 bits, float16 and ``ml_dtypes.bfloat16``. They compute in float32, states are float32, and
    outputs and gradients are rounded once.
out : ndarray ``(..., N, M)``, optional
    What the output is written into, with any strides, for callers that keep an array for it. Its elements share no
    memory with an input or with one another (a ``ValueError``), and the backward pass needs what is in it. Not on a
    GPU.
overwrite_state : bool
    Of ``step``: a backend may work in the arrays of the state it is given, whose content is undefined afterwards.
capacity : int, optional
    Of ``init_state``: for how many tokens a backend whose state grows sets memory aside.
like : array, optional
    Of ``init_state``: an array on a GPU, for a state there.

The common results
------------------
out : ndarray ``(..., N, M)``
    A query that may see nothing gets exactly 0, and so do all gradients through it.
saved : Saved
    Data: arrays, numbers and names. It can be pickled, copied, sent to another process.
grads : Gradients
    A NamedTuple whose fields have the names of the inputs; None where there was no such input.

Numbers at the edges
--------------------
A score beyond the range of its dtype counts as the largest, or the smallest, finite number. So the weights of a query
that sees a key sum to 1 whatever the size of its scores, and keys whose scores are equally out of range share the
weight. The same holds for the exponents of exponential features. (What is inf - inf on the way is NaN.) NumPy's numbers
are accepted as options like Python's.

NaN and infinity at one token, or in one row of ``d_out``, reach what depends on them and nothing else: outputs and
gradients of the queries that see the token, and gradients of the keys that these queries see. In a masked key they
reach nothing. One backend, ``cuda``, multiplies whole chunks of a causal product, with zeros for what is not seen, so
that they reach the rest of their chunk of 64 tokens too: outputs and gradients of everything but softmax.

Errors
------
``TypeError`` (the wrong kind of thing) and ``ValueError`` (the wrong shape or value) name the argument, say what was
expected and what came.
"""

from linattn_ref import lazy

__all__ = ["bigbird", "block_local", "chunked_delta", "chunked_linear", "delta", "delta_rule", "exponential"]
__all__ += ["feature_maps", "gated_linear", "linear", "linformer", "linformer_linear", "local", "long_short"]
__all__ += ["longformer", "nystromformer", "online_softmax", "patterns", "performer", "reformer", "rfa", "softmax"]
__all__ += ["sparse_transformer"]

FOLDERS = {
    "features": [
        "feature_map_protocol",
        "feature_maps",
        "feature_maps_exact",
        "feature_maps_favor",
        "feature_maps_random",
    ],
    "parts": ["decay_gate", "lsh_hashing"],
    "sparse": ["bigbird", "block_local", "local", "longformer", "pattern_softmax", "patterns", "sparse_transformer"],
}

__getattr__, __dir__ = lazy.modules(__name__, __all__, FOLDERS)
