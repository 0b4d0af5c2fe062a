"""Mistakes that somebody could make, each of which the tests have to find: ``test_mutants.py`` makes them.

A mutant is a piece of text that stands once in a file of the package, and what stands there instead. Where the text no
longer is, the test says so, and the mutant is to be moved to where the mistake can be made now.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    what: str
    file: str  # in linattn_ref/
    old: str
    new: str
    chosen: str  # of the contract tests, for pytest's -k
    tests: str = "contract"  # file or folder in tests/
    thorough: bool = False  # found by slow tests of kernels that take a minute to compile


MUTANTS = (
    # --- The text ---
    Mutant(
        "a masked key erases",
        "attention/delta_rule.py",
        "k, v = shown(k, key_mask), shown(v, key_mask)\n"
        "    e = np.zeros_like(k) if erase is None else shown(erase, key_mask)",
        "v = shown(v, key_mask)\n    e = np.zeros_like(k) if erase is None else erase",
        "masked",
        "attention/test_delta_rule.py",
    ),
    Mutant(
        "the state fades at a masked key",
        "attention/delta_rule.py",
        "np.exp(shown(log_gate if log_gate.ndim == q.ndim else log_gate[..., None], key_mask))",
        "np.exp(log_gate if log_gate.ndim == q.ndim else log_gate[..., None])",
        "absent and delta-channels-reference-masked",
    ),
    Mutant(
        "beta gets no gradient through what it erases",
        "attention/delta.py",
        "(v * d_value).sum(axis=-1) + (unit_k * d_e).sum(axis=-1)",
        "(v * d_value).sum(axis=-1)",
        "delta-channels-reference",
    ),
    Mutant(
        "the gradient of a division by the length without that of the length",
        "attention/delta.py",
        "(d_y - y * (y * d_y).sum(axis=-1, keepdims=True)) / length(x)",
        "d_y / length(x)",
        "delta-channels-reference",
    ),
    Mutant(
        "scores times 1.3",
        "attention/softmax.py",
        "scores(q, k, scale), q.dtype",
        "scores(q, k, 1.3 * scale), q.dtype",
        "softmax-reference",
    ),
    Mutant(
        "a default scale that is too small",
        "attention/sparse/pattern_softmax.py",
        "scale = q.shape[-1] ** -0.5",
        "scale = (q.shape[-1] + 1) ** -0.5",
        "block-local-reference",
    ),
    Mutant(
        "a window one key short",
        "attention/sparse/local.py",
        "(band(n, n_keys, -window,",
        "(band(n, n_keys, 1 - window,",
        "local-reference",
    ),
    Mutant(
        "a key in the window and global counts twice",
        "attention/sparse/longformer.py",
        "dilation=dilation, without=tokens)",
        "dilation=dilation)",
        "longformer-reference",
    ),
    Mutant(
        "a summary one key short",
        "attention/sparse/sparse_transformer.py",
        ">= stride - summary)",
        "> stride - summary)",
        "transformer-fixed-reference",
    ),
    Mutant(
        "a window of blocks too wide",
        "attention/sparse/bigbird.py",
        "every[max(0, b - half) : b + half + 1]",
        "every[max(0, b - half) : b + half + 2]",
        "bigbird-reference",
    ),
    Mutant(
        "landmarks are means over masked keys too",
        "attention/parts/segment_means.py",
        "sums(shown(x, key_mask), landmarks) / counts",
        "sums(x, landmarks) / counts",
        "nystromformer-reference",
    ),
    Mutant(
        "the gradient of the convolution forgotten",
        "attention/parts/depthwise.py",
        "conv[..., ::-1]), d_conv",
        "conv[..., ::-1]), 0 * d_conv",
        "nystromformer-convolution-reference",
    ),
    Mutant(
        "keys get no gradient through the weights of the mixtures",
        "attention/parts/dynamic_projection.py",
        "p @ d_mixed_k + d_a @ w_p[..., None, :, :].mT",
        "p @ d_mixed_k",
        "long-short",
    ),
    Mutant(
        "a term of the layer norm's gradient missing",
        "nn/layer_norm.py",
        "(d_n - d_n.mean(axis=-1, keepdims=True) - n *",
        "(d_n - n *",
        "long-short",
    ),
    Mutant(
        "a masked key has the features of the zero vector",
        "attention/linear.py",
        "    phi_k = shown(phi_k, key_mask)\n",
        "",
        "linear-reference",
    ),
    Mutant(
        "the Performer's scale is softmax's",
        "attention/performer.py",
        "omega.shape[-1] ** -0.25",
        "omega.shape[-1] ** -0.5",
        "performer-positive-reference",
    ),
    Mutant(
        "the part of the gradient along a unit vector stays",
        "attention/features/feature_maps_random.py",
        "across = d_y - y * (y * d_y).sum(axis=-1, keepdims=True)",
        "across = d_y.copy()",
        "rfa-reference",
    ),
    Mutant(
        "a state is not brought to its new scale",
        "attention/exponential.py",
        "return f[..., None] * s + phi.mT @ v, f * z",
        "return s + phi.mT @ v, f * z",
        "performer-positive-causal-reference",
    ),
    Mutant(
        "a scale that does not rise in compiled steps",
        "kernels/jit/loops/favor_positive.py",
        "            s[head * width + c, i] *= decay\n",
        "            s[head * width + c, i] *= 1\n",
        "steps_are_those",
        "kernels/test_favor_positive.py",
    ),
    Mutant(
        "a compiled token that reads what has not faded",
        "kernels/jit/loops/delta_step.py",
        "store(columns, Y, gate * some_q)",
        "store(columns, Y, some_q)",
        "a_token_is_a_row",
        "kernels/test_delta_step.py",
    ),
    Mutant(
        "values mixed by E",
        "attention/linformer.py",
        "e @ k, f @ v",
        "e @ k, e @ v",
        "linformer-reference",
    ),
    # --- The pages' loops ---
    Mutant(
        "a sign in softmax attention's gradient",
        "attention/softmax.py",
        "d_p -= (d_p * p)",
        "d_p += (d_p * p)",
        "softmax-reference",
    ),
    Mutant(
        "queries aligned with the first keys",
        "attention/parts/masks.py",
        "np.arange(n, like=q)[:, None] + (keys - n) if causal",
        "np.arange(n, like=q)[:, None] if causal",
        "softmax-causal-reference",
    ),
    Mutant(
        "the gate acts on the state after its own key",
        "attention/delta_rule.py",
        "        s = decayed + k[row].mT @ u[row]  # (3)\n        out",
        "        s = decayed + gate[row].mT * (k[row].mT @ u[row])\n        out",
        "rfa-gated-reference",
    ),
    Mutant(
        "eps as a factor",
        "attention/linear.py",
        "phi_q[rows] @ z[..., None] + eps",
        "phi_q[rows] @ z[..., None] * (1 + eps)",
        "linear-causal-reference",
    ),
    Mutant(
        "a pair that meets in several rounds counts in each",
        "attention/reformer.py",
        "np.where(meets, 1 / np.maximum(c, 1), c.dtype.type(0))",
        "meets.astype(c.dtype)",
        "reformer-reference",
    ),
    Mutant(
        "what earlier rows of a chunk wrote is not erased",
        "attention/chunked_delta.py",
        "solve(a, v[rows] - (c * e[rows]) @ s)",
        "v[rows] - (c * e[rows]) @ s",
        "chunks_are_rows",
        "attention/test_delta_rule.py",
    ),
    Mutant(
        "the transposed system solved as the other",
        "attention/chunked_delta.py",
        "r = solve_transposed(a,",
        "r = solve(a,",
        "chunks_are_rows",
        "attention/test_delta_rule.py",
    ),
    Mutant(
        "a backward pass with states that have not faded",
        "attention/delta_rule.py",
        "few.append((row, saved.gate[row].mT * s))",
        "few.append((row, s))",
        "every_gradient",
        "attention/test_delta_rule.py",
    ),
    Mutant(
        "a gate that has nothing to do with its own row",
        "attention/chunked_delta.py",
        "for shift in (0, -1))",
        "for shift in (0, -2))",
        "chunks_are_rows",
        "attention/test_delta_rule.py",
    ),
    Mutant(
        "an LSTM whose way back begins in the padding",
        "nn/lstm.py",
        "rows[:n, b] = x[b, :n][:: -1 if backwards else 1]",
        "rows[:n, b] = x[b, -n:][:: -1 if backwards else 1]",
        "pads_a_sequence",
        "nn/test_lstm.py",
    ),
    # --- The compiled ones ---
    Mutant(
        "a buffer that is not cleared",
        "kernels/jit/loops/softmax.py",
        "        d_q[:] = 0\n",
        "",
        "softmax-jit",
    ),
    Mutant(
        "a masked key is seen",
        "kernels/jit/loops/pattern_softmax.py",
        "if not key_mask[j]:\n            scores[j] = -np.inf",
        "if not key_mask[j]:\n            scores[j] = scores[j]",
        "local-jit-masked",
    ),
    Mutant(
        "a state that does not fade from chunk to chunk",
        "kernels/jit/loops/delta_state.py",
        "add_scaled(zero_block(s), load_block(s, row), factors, row)",
        "load_block(s, row)",
        "both_passes and float32 and True-True and head",
        "kernels/test_jit_delta_product.py",
        thorough=True,
    ),
    Mutant(
        "a row that meets itself below the diagonal",
        "kernels/jit/loops/delta_chunk.py",
        "broadcast(zero) - some_a, 0, i - first, zero",
        "broadcast(zero) - some_a, 0, i - first + 1, zero",
        "both_passes and float32 and True-True and head",
        "kernels/test_jit_delta_product.py",
        thorough=True,
    ),
    Mutant(
        "a state whose gradient forgets what was erased",
        "kernels/jit/loops/delta_backward.py",
        "        product(a, chunk.e_since[:rows, : len(a)].T, faded, True)",
        "        pass",
        "both_passes and float32 and True-True and head",
        "kernels/test_jit_delta_product.py",
        thorough=True,
    ),
    Mutant(
        "an LSTM that multiplies the inputs of one step less together",
        "kernels/jit/loops/lstm.py",
        "count = min(together, len(x) - t) * (last - first)",
        "count = (min(together, len(x) - t) - 1) * (last - first)",
        "jit_is_the_reference and float32 and 1-2-1",
        "nn/test_lstm.py",
        thorough=True,
    ),
    Mutant(
        "an outer product that begins anew with each panel of terms",
        "kernels/jit/loops/outer_product.py",
        "a_some.T, panel, True)",
        "a_some.T, panel, False)",
        "outer_product and float32",
        "nn/test_lstm.py",
        thorough=True,
    ),
    Mutant(
        "a key that fades in its own row",
        "kernels/cuda/loops/delta_rows.py",
        "if i > j:\n                    key[c]",
        "if i >= j:\n                    key[c]",
        "test_both_passes_are_the_references",
        "kernels/cuda/test_simulator.py",
    ),
    Mutant(
        "a causal query that does not see itself",
        "kernels/cuda/loops/softmax_tiles.py",
        "key <= query + (n_keys - n)",
        "key < query + (n_keys - n)",
        "test_both_passes_are_the_references",
        "kernels/cuda/test_simulator.py",
    ),
)
