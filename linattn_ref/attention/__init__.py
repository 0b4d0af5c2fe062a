"""The text: one mechanism a file, its formula, forward pass and hand-derived backward pass, in plain NumPy.

    from linattn_ref.attention import linear
    out, saved = linear.forward(q, k, v, causal=True)
    grads = linear.backward(d_out, saved)        # grads.q, grads.k, grads.v

Each mechanism
--------------
``forward(...) -> (out, saved)``       ``saved`` is what the backward pass needs: its size is the memory story
``backward(d_out, saved) -> grads``    the gradient of every array that ``forward`` was given, under the same name
``matrix(q, k, ...)``                  the dense matrix that it applies without forming it, ``out == matrix @ v``
``init_state(...)``, ``step(...)``     the recurrent form, of those that have one; ``ownership`` says who owns a state

The common arguments
--------------------
What they mean is the same everywhere, and a mechanism's own text only names them.

q, k, v : ndarray, ``(..., N, D)``, ``(..., L, D)``, ``(..., L, M)``
    Queries, keys and values, a token a row; float32 or float64, all the same, which is the dtype of the work and of the
    result. Leading axes, usually batch and heads, are equal in all three. Any ``N``, ``L`` of at least 1.
causal : bool
    Query ``i`` sees keys ``j <= i + (L - N)``: aligned at the end, so that new queries see what was cached. Needs
    ``N <= L``.
key_mask : ndarray of bool ``(..., L)``, optional
    True = may be attended. A masked key has weight and gradient exactly 0; what is in it (inf and NaN
    excepted) changes nothing.
scale : float, optional
    Of the scores ``q . k``; ``1/sqrt(D)`` unless given.
pattern : tuple of `linattn_ref.kernels.parts.Part`, optional
    Of sparse mechanisms: what ``parts_of`` gives for ``N`` and ``L``, for who calls more than once with the same
    lengths and builds it once. Then it alone says who sees whom, and the options it was built from are not looked at.
out : ndarray ``(..., N, M)``, optional
    What the output is written into, with any strides, for who keeps an array for it. It shares no memory with an input,
    and the backward pass needs what is in it. Not on a GPU.
eps : float
    Added to the denominator of linear attention.
state : State, optional
    A state to continue from (needs ``causal=True``). It is left alone, and ``saved.state`` is the one after the last
    token.
kernels : module
    The room that the loops are taken from: ``linattn_ref.kernels.reference`` (NumPy), ``.jit`` (Numba, CPU) or
    ``.cuda``, which also takes arrays of CuPy, PyTorch or Numba that are on a GPU and gives back such arrays; or one of
    your own. Nothing falls back silently.
d_out : ndarray ``(..., N, M)``
    The gradient of a loss with respect to ``out``.

The common results
------------------
out : ndarray ``(..., N, M)``
    A query that may see nothing gets exactly 0, and so do all gradients through it.
saved : Saved
    Data: arrays, numbers and names. It can be pickled, copied, sent to another process.
grads : Gradients
    A NamedTuple whose fields have the names of the inputs.

Numbers at the edges
--------------------
A score beyond the range of its dtype counts as the largest, or the smallest, finite number. So the weights of a query
that sees a key sum to 1 whatever the size of its scores, and keys whose scores are equally out of range share the
weight. (A score that is inf - inf on the way is NaN.) NaN and infinity at one token reach no query that does not see
that token, neither its output nor its gradient. Options that are numbers of NumPy's count as Python's.

Errors
------
``TypeError`` (the wrong kind of thing) and ``ValueError`` (the wrong shape or value) name the argument, say what was
expected and what came.

Who has checked the arguments once can skip the checks: ``linear.forward.unchecked`` is the function behind its door.
"""

from linattn_ref import lazy

__all__ = [
    "bigbird",
    "block_local",
    "delta",
    "feature_maps",
    "gated_linear",
    "linear",
    "linformer",
    "linformer_linear",
    "local",
    "long_short",
    "longformer",
    "nystromformer",
    "patterns",
    "performer",
    "reformer",
    "rfa",
    "softmax",
    "sparse_transformer",
]

__getattr__, __dir__ = lazy.modules(__name__, __all__)
