# %% [markdown]
# # 16. GPU kernels: from Algorithm 1 to a hundred thousand threads
#
# How does a loop in which each step waits for the one before become work for a hundred thousand threads, and how do
# you check it without a GPU?
#
# At the end of this chapter you will have
#
# 1. two small kernels of your own, one with a thread for each number, one with a tile in shared memory, and their reads
#    counted;
# 2. Algorithm 1 cut into three steps, two of which wait for nothing, and what that costs in memory;
# 3. the package's kernels for linear and softmax attention, read and run, and softmax a second time on tensor cores;
# 4. the three gradients as three calls of one product;
# 5. what a simulator can show about a kernel, and what only a compiler can (float64 that crept in, and registers);
# 6. a formula for which part waits for memory and which for arithmetic.
#
# You need chapter 7: the causal product, its gradient and chunks. The letters are $N$ tokens, $C$ features, $M$
# values, and $T$ for the rows of a chunk, which are also those of a tile.
#
# Everything here runs on the processor, in Numba's *simulator*: each GPU thread is a Python thread, and the kernels are
# the same. What can be said without a GPU is counted, compiled or derived. At the end we say what happened when the
# kernels met one, and how fast they were there.
#
# Numba chooses the simulator when it is first imported, so this has to come first. *On a GPU* (with
# `pip install -e '.[cuda12]'` in a clone) leave this line out of your own program; nothing else changes.

# %%
import os

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # without this line: on the GPU

import math
import sys
import threading
from collections import defaultdict
from contextlib import contextmanager
from typing import NamedTuple
from unittest import mock

import numpy as np
from numba import cuda
from numba.cuda.simulator.cudadrv.devicearray import FakeWithinKernelCUDAArray

from linattn_ref import gradcheck
from linattn_ref.attention import gated_linear, linear, online_softmax, softmax
from linattn_ref.experiments.cost import cuda_occupancy
from linattn_ref.experiments.publishing import chapter, style
from linattn_ref.experiments.recurrence import causal_cost
from linattn_ref.kernels import cuda as gpu
from linattn_ref.kernels import reference
from linattn_ref.kernels.cuda.loops import device, half_tiles, simulated_warp, tile
from linattn_ref.kernels.cuda.loops.arrays import Call, fill
from linattn_ref.kernels.cuda.loops.linear import causal_chunks, causal_product, causal_product_plain, causal_states
from linattn_ref.kernels.cuda.loops.softmax import half_softmax_tiles, softmax_tiles
from linattn_ref.kernels.cuda.loops.softmax import softmax as softmax_loop

assert device.SIMULATED
EPS_32 = np.finfo(np.float32).eps


def draw_inputs(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def close(ours, expected):
    """Sums of some dozen products, added up in another order."""
    assert ours.dtype == expected.dtype
    np.testing.assert_allclose(ours, expected, rtol=0, atol=64 * EPS_32 * max(1, abs(expected).max()))


print("kernels run", "in the simulator" if device.SIMULATED else "on the GPU")

# %% [markdown]
# ## The smallest example, by hand
#
# A kernel for softmax attention reads the keys in tiles. For each query it keeps three numbers: the largest score $m$,
# the sum $s$ of the exponentials over $e^m$, and the sum of the values with these weights. Take one query, $q = 1$, the
# three keys 0, $\log 2$ and $\log 4$, whose exponentials are 1, 2 and 4, and the values 0, 7 and 14. The first tile
# holds two keys, the second one.
#
# | after | $e^m$ | $s$ | sum of values, over $e^m$ |
# | --- | ---: | ---: | ---: |
# | the first tile | 2 | $\tfrac12 + 1 = 1.5$ | $0 + 7 = 7$ |
# | the second | 4 | $1.5 \cdot \tfrac24 + 1 = 1.75$ | $7 \cdot \tfrac24 + 14 = 17.5$ |
#
# The output is $17.5 / 1.75 = 10$. With all three keys at once it is $(0 + 14 + 56) / 7 = 10$. So the keys can be read
# tile by tile, and one factor reconciles each tile with those before.

# %%
three_keys, three_values = np.log([[1.0], [2.0], [4.0]]), np.array([[0.0], [7.0], [14.0]])
in_tiles, tiles_saved = online_softmax.forward(np.array([[1.0]]), three_keys, three_values)
print("output:", in_tiles.item(), " m:", np.exp(tiles_saved.m).item(), "as e^m,  s:", tiles_saved.s.item())
assert abs(in_tiles.item() - 10) < 1e-12
assert abs(tiles_saved.s.item() - 1.75) < 1e-12

# %% [markdown]
# ## One thread, one number
#
# A **kernel** is a function that a great many **threads** run at the same time, each with its own index. Threads come
# in **blocks**, and the blocks of one launch are the **grid**. The GPU deals out blocks to its *multiprocessors*
# (about a hundred of them), in any order, and a block stays where it is. Within a block, threads run in **warps** of
# 32 that take each instruction together.
#
# The simplest kernel computes one number of the result per thread. Take the state after all tokens, $S = \phi(K)^\top
# V$, with the entries $S_{cm} = \sum_j \phi(k_j)_c V_{jm}$:


# %% native="It runs a kernel of the GPU in Numba's simulator, and a browser has neither Numba nor threads."
@cuda.jit
def one_number_a_thread(phi_k, v, s):
    m, c = cuda.grid(2)  # blockIdx * blockDim + threadIdx, for x and y
    if c < s.shape[0] and m < s.shape[1]:  # the last blocks stick out
        total = s.dtype.type(0)
        for j in range(phi_k.shape[0]):
            total += phi_k[j, c] * v[j, m]
        s[c, m] = total


N, C, M = 10, 8, 8
SIDE = 4
phi_k, v = draw_inputs(0, (N, C), (N, M))
s = np.zeros((C, M), np.float32)
grid, block = (M // SIDE, C // SIDE), (SIDE, SIDE)
one_number_a_thread[grid, block](phi_k, v, s)
close(s, phi_k.T @ v)
print("first row of S, by 64 threads:", s[0, :4].round(3), "...  by NumPy:", (phi_k.T @ v)[0, :4].round(3), "...")

# %% [markdown]
# There is no loop over $c$ and $m$: the grid is that loop. The code does not determine which comes first, and nothing
# may depend on it.
#
# What does it cost? Arithmetic is cheap on a GPU, and reading from its large *global memory* is not. Each of the $C M$
# threads reads $2 N$ numbers, for $N$ multiply-adds:
#
# $$\text{reads} = 2 N C M$$
#
# although $\phi(K)$ and $V$ together have only $N (C + M)$. A formula is soon wrong by a factor, so we also count. In
# the simulator an array in a kernel is a Python object, so we can watch it:


# %% native="It runs a kernel of the GPU in Numba's simulator, and a browser has neither Numba nor threads."
@contextmanager
def watched(**arrays):
    """The reads of device arrays by the kernels launched inside: for each name, (block, thread, place in memory)."""
    names = {id(x): name for name, x in arrays.items()}
    reads = defaultdict(list)
    read = FakeWithinKernelCUDAArray.__getitem__

    def read_and_note(array, index):
        if id(array._item) in names:
            place = np.ravel_multi_index(np.atleast_1d(index), array._item.shape)
            me = threading.current_thread()
            reads[names[id(array._item)]].append((tuple(me.blockIdx), me.thread_id, int(place)))
        return read(array, index)

    with mock.patch.object(FakeWithinKernelCUDAArray, "__getitem__", read_and_note):
        yield reads


def reads_of(kernel, grid, block, arrays, *rest):
    """What a launch reads, with ``arrays`` by name and other arguments after them; and the arrays as it left them."""
    on_device = {name: cuda.to_device(x) for name, x in arrays.items()}
    with watched(**on_device) as reads:
        kernel[grid, block](*on_device.values(), *rest)
    return reads, {name: x.copy_to_host() for name, x in on_device.items()}


reads, _ = reads_of(one_number_a_thread, grid, block, {"phi_k": phi_k, "v": v, "s": s})
counted = {name: len(each) for name, each in reads.items()}
assert counted == {"phi_k": N * C * M, "v": N * C * M}
print("numbers read:", counted, "- of arrays of", phi_k.size, "and", v.size)

# %% [markdown]
# ### Neighbours read neighbours
#
# A warp's 32 reads go out together, and memory answers in *sectors* of 32 bytes, eight float32. If the 32 threads of a
# warp read 32 neighbouring numbers, that is 4 sectors. If they read down a column, it is 32 sectors, and an eighth of
# each is used. Reading so that few sectors are fetched is called **coalescing**. A warp is filled along `threadIdx.x`
# first. The cell counts the sectors of one warp, along a row and down a column, and then those of our kernel:


# %% native="It runs a kernel of the GPU in Numba's simulator, and a browser has neither Numba nor threads."
def sectors(reads):
    """Sectors that the first warp of the first block fetches, for each of its reads in turn."""
    of_thread = defaultdict(list)
    for block, thread, place in reads:
        if block == (0, 0, 0) and thread < 32:
            of_thread[thread].append(place * 4 // 32)  # four bytes per number
    return [len(set(each)) for each in zip(*of_thread.values(), strict=True)]


@cuda.jit
def copy(x, out, along_rows):
    i = cuda.threadIdx.x
    if along_rows:
        out[0, i] = x[0, i]
    else:
        out[i, 0] = x[i, 0]


square = np.ones((32, 32), np.float32)
for along_rows, expected in ((True, 4), (False, 32)):
    reads, _ = reads_of(copy, 1, 32, {"x": square, "out": square}, along_rows)
    assert sectors(reads["x"]) == [expected]
    print("along a row:" if along_rows else "down a column:", expected, "sectors", end="; ")

wide = dict(zip(("phi_k", "v", "s"), draw_inputs(1, (3, 2), (3, 32), (2, 32)), strict=True))
reads, _ = reads_of(one_number_a_thread, (1, 2), (32, 1), wide)
assert sectors(reads["v"]) == [4, 4, 4]  # 32 neighbours
assert sectors(reads["phi_k"]) == [1, 1, 1]  # the same number for the whole warp
print("our kernel, per step:", sectors(reads["v"])[0], "of V,", sectors(reads["phi_k"])[0], "of phi(K)")

# %% [markdown]
# ## A tile that is shared
#
# The threads of a block read the same numbers over and over: all threads of one row read the same $\phi(k_j)_c$. A
# block has some tens of kilobytes of **shared memory**, close by and fast. So let the threads of the block fetch a tile
# of $\phi(K)$ and one of $V$ together, with one number of each per thread. Then let all of them read from there:


# %% native="It runs a kernel of the GPU in Numba's simulator, and a browser has neither Numba nor threads."
@cuda.jit
def shared_tiles(phi_k, v, s):
    left = cuda.shared.array((SIDE, SIDE), phi_k.dtype)
    right = cuda.shared.array((SIDE, SIDE), v.dtype)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    first_c, first_m = cuda.blockIdx.y * SIDE, cuda.blockIdx.x * SIDE
    total = s.dtype.type(0)
    for first in range(0, phi_k.shape[0], SIDE):
        left[y, x], right[y, x] = 0, 0
        if first + y < phi_k.shape[0]:
            if first_c + x < s.shape[0]:
                left[y, x] = phi_k[first + y, first_c + x]
            if first_m + x < s.shape[1]:
                right[y, x] = v[first + y, first_m + x]
        cuda.syncthreads()  # nobody reads before all have written
        for j in range(SIDE):
            total += left[j, y] * right[j, x]
        cuda.syncthreads()  # nobody writes before all have read
    if first_c + y < s.shape[0] and first_m + x < s.shape[1]:
        s[first_c + y, first_m + x] = total


reads, left_behind = reads_of(shared_tiles, grid, block, {"phi_k": phi_k, "v": v, "s": np.zeros((C, M), "f4")})
close(left_behind["s"], phi_k.T @ v)
shared_reads = {name: len(each) for name, each in reads.items()}
assert shared_reads == {"phi_k": N * C * M // SIDE, "v": N * C * M // SIDE}
print("numbers read:", shared_reads, "- before:", counted)

# %% [markdown]
# The number of reads falls by a factor of $T$, the side of a tile: $2 N C M / T$, with $T$ of 4 here and 64 in the
# package. The same thread computes the same sum in the same order. Only where it reads from has changed.
#
# ### The barrier, and a simulator in three lines
#
# `syncthreads` is a **barrier**: a thread waits there until every thread of its block has come. Forgetting one is *the*
# mistake of GPU programming, since the program still runs, and is often right. To see what happens we write a small
# simulator. A thread is a generator that stands still at each `yield`, our barrier. Without the barrier, half of the
# transpose is still missing:


# %%
def run_block(thread, side):
    """Run ``thread(x, y)`` for a block: each up to its next barrier, forwards and backwards by turns."""
    waiting = [thread(x, y) for y in range(side) for x in range(side)]
    while waiting:
        waiting = [each for each in waiting if next(each, "done") != "done"][::-1]


def transpose(a, barrier):
    shared, out = np.zeros_like(a), np.zeros_like(a)

    def thread(x, y):
        shared[y, x] = a[y, x]
        if barrier:
            yield
        out[y, x] = shared[x, y]  # what another thread has written, or not yet
        if not barrier:
            yield

    run_block(thread, len(a))
    return out


a = np.arange(1, 10).reshape(3, 3)
assert (transpose(a, barrier=True) == a.T).all()
print(transpose(a, barrier=False))
assert (np.triu(transpose(a, barrier=False), 1) == 0).all()  # had not been written

# %% [markdown]
# Numba's simulator lets threads run as they come, so that a missing barrier may go unseen. The package's tests make
# them take turns like these instead, forwards and backwards, always in the same order. A barrier that only some
# threads of a block reach, at which a GPU may hang for ever, is an error there.
#
# ## Algorithm 1 on a GPU, as it stands
#
# Now the causal product, $S_i = S_{i-1} + \phi(k_i) v_i^\top$ and $o_i = S_i^\top \phi(q_i)$ (chapter 7, equations 4
# and 3). Token $i$ waits for token $i - 1$. The columns of $S$ can run side by side: column $m$ takes part in output
# $m$ only. So take one thread per column, and no barrier anywhere:

# %%
chapter.source(causal_product_plain.columns_of_a_head, causal_product_plain.forward_by_row, doc=False)

# %% [markdown]
# The simulator takes its time for every thread, and a block of the package has 256. For this chapter we make the tiles
# small. The sizes are plain names in every module that uses them, and the simulator looks them up when it gets there:

# %%
print({name: getattr(tile, name) for name in ("SIDE", "EACH", "TILE", "PITCH", "STEP", "THREADS")})
SMALL = {"SIDE": 4, "EACH": 2, "TILE": 8, "PITCH": 9, "STEP": 4, "HALF": 2, "THREADS": 16, "BLOCK": (4, 4)}
SMALL |= {"WARPS": 1, "EDGE": 16, "PARTS": 2, "STEPS": 1, "WORDS": 8, "LANES": 32, "ROUNDS": 4, "WARP_BLOCK": (32, 1)}
for name, module in list(sys.modules.items()):
    if name.startswith(gpu.__name__):
        for size in SMALL.keys() & vars(module).keys():
            setattr(module, size, SMALL[size])

# %% jupyter={"source_hidden": true}
T = tile.TILE
phi_q, phi_k, v, d_out = draw_inputs(2, (1, 20, 8), (1, 20, 8), (1, 20, 6), (1, 20, 6))  # N = 20, a ragged end


def by_page(phi_q, phi_k, v, before):
    """Output and last state by the page `gated_linear`, without a gate."""
    out, saved = gated_linear.forward(phi_q, phi_k, v, None, scale=1.0, state=gated_linear.State(before))
    return out, saved.state.s


def gradients_by_page(d_out, d_last, phi_q, phi_k, v, before):
    """Of all four."""
    _, saved = gated_linear.forward(phi_q, phi_k, v, None, scale=1.0, state=gated_linear.State(before))
    d_phi_q, d_phi_k, d_v, _, d_before = gated_linear.backward(d_out, saved, d_state=gated_linear.State(d_last))
    return d_phi_q, d_phi_k, d_v, d_before.s


nothing = np.zeros((1, 8, 6), np.float32)
out, last = by_page(phi_q, phi_k, v, nothing)
gradients = gradients_by_page(d_out, nothing, phi_q, phi_k, v, nothing)

# %% native="It runs a kernel of the GPU in Numba's simulator, and a browser has neither Numba nor threads."
for ours, expected in zip(
    (
        *causal_product_plain.forward_by_row(phi_q, phi_k, v, None),
        *causal_product_plain.backward_by_row(d_out, None, phi_q, phi_k, v, None),
    ),
    (out, last, *gradients),
    strict=True,
):
    close(ours, expected)
print(
    "last output by the kernel:",
    causal_product_plain.forward_by_row(phi_q, phi_k, v, None)[0][0, -1, :3].round(3),
    end=" ",
)
print("by the page:", out[0, -1, :3].round(3))

# %% [markdown]
# This is correct, but useless in practice. With $H$ heads (and batches) there are $H M$ threads. A modern GPU has
# places for about two thousand threads on each of its hundred multiprocessors, more than it has arithmetic units: while
# one thread waits for memory, a hundred times as long as an addition takes, another runs. The share of the places that
# is taken is the **occupancy**. And each thread goes through $N$ steps, one after the other.
#
# ## Chunks: three steps, two of which wait for nothing
#
# Cut the tokens into chunks of $T$. Let $S^{(n)}$ be the state before chunk $n$, and $\phi_Q, \phi_K, V$ the chunk's
# rows. Chapter 7 had, one chunk after the other,
#
# $$O^{(n)} = \mathrm{tril}(\phi_Q \phi_K^\top)\, V + \phi_Q\, S^{(n)} \qquad (10)$$
#
# $$S^{(n+1)} = S^{(n)} + \phi_K^\top V \qquad (11)$$
#
# What waits here? Only the $+$ in (11) does. Take it out:
#
# 1. **sums** computes $\phi_K^\top V$ of every chunk, all at the same time;
# 2. **scan** computes $S^{(n)}$ as the sum of those before, all $C M$ numbers at the same time, with $N / T$ additions
#    one after the other;
# 3. **outputs** computes (10) for every chunk, all at the same time.
#
# In NumPy, where "at the same time" is an axis:


# %%
def three_steps(a, b, u, length):
    """``out_i = sum over j <= i of (a_i . b_j) u_j``, for ``a, b (N, C)`` and ``u (N, M)``."""
    a, b, u = (x.reshape(-1, length, x.shape[-1]) for x in (a, b, u))  # (chunks, T, ...)
    sums = b.swapaxes(1, 2) @ u  # (chunks, C, M)
    states = np.concatenate([np.zeros_like(sums[:1]), np.cumsum(sums, axis=0)[:-1]])  # before each chunk
    out = np.tril(a @ b.swapaxes(1, 2)) @ u + a @ states  # (10)
    return out.reshape(-1, u.shape[-1])


for length in (1, 4, 20):
    in_three_steps = three_steps(phi_q[0], phi_k[0], v[0], length)
    close(in_three_steps, out[0])
    print(f"chunks of {length}: last output", in_three_steps[-1, :3].round(3))

# %% [markdown]
# We count for one layer of the size that the paper uses, $H = 8$ heads, $C = M = 64$, $N = 2^{16}$. The table has the
# number of threads, the length of the longest chain of steps that wait for one another, and the multiply-adds per row.
# The scores are computed in full, above the diagonal too, since leaving some out would take longer.

# %%
rows = []
HEADS, LONG, WIDTH = 8, 2**16, 64
rows.append(("Algorithm 1", HEADS * WIDTH, LONG, 2 * WIDTH * WIDTH))
for length in (16, 64, 256):
    chunks = LONG // length
    threads = HEADS * chunks * 256  # a block of 256 for each chunk's output
    rows.append((f"chunks of {length}", threads, chunks, 2 * length * WIDTH + 2 * WIDTH**2))
chapter.table(("", "threads (outputs)", "steps that wait (scan)", "multiply-adds per row"), rows)
assert rows[2][1] == 4096 * rows[0][1] > 100_000
assert rows[2][3] == 2 * rows[0][3]  # T = C = M: twice the arithmetic

# %% [markdown]
# With $T = 64$ this is twice the arithmetic, and 4096 times the threads. There is another price. Algorithm 1 keeps
# *one* state: linear time, constant memory (Katharopoulos et al. 2020, section 3.3.1). Here all $N / T$ of them are in
# memory between step 2 and step 3: $N C M / T$ numbers per head, which for $T = M$ is as much as $\phi(K)$. That is
# linear, but not constant, and the module's docstring says so. For the backward pass in both forms, we watch the bytes
# of all arrays made on the GPU beyond the outputs:


# %% native="It runs a kernel of the GPU in Numba's simulator, and a browser has neither Numba nor threads."
def bytes_made(function, *arguments):
    """Bytes of all device arrays made by a call; copies of NumPy's arrays are not among them."""
    made = []

    def noted(make):
        def noting(call, shape, dtype, *value):
            made.append(call.heads * int(np.prod(shape)) * np.dtype(dtype).itemsize)
            return make(call, shape, dtype, *value)

        return noting

    with mock.patch.multiple(Call, empty=noted(Call.empty), full=noted(Call.full)):
        function(*arguments)
    return sum(made)


beyond = {"Algorithm 1": [], "chunks": []}
for n in (T, 2 * T, 3 * T):
    q, k, values, g = draw_inputs(3, *([(1, n, 8)] * 4))
    outputs = 3 * n * 8 * 4
    beyond["Algorithm 1"].append(
        bytes_made(causal_product_plain.backward_by_row, g, None, q, k, values, None) - outputs
    )
    beyond["chunks"].append(bytes_made(causal_product.backward, g, None, q, k, values, None) - outputs)
print("bytes beyond the outputs at N = T, 2 T, 3 T:", beyond)
one, two, three = beyond["Algorithm 1"]
assert one == two == three == 3 * 8 * 8 * 4  # claim 22: constant, a state for each gradient
one, two, three = beyond["chunks"]
assert three - two == two - one > 0  # linear
per_chunk = 2 * (8 * 8 + 8) + T  # S and A with their denominators; zeros
assert two - one == 4 * per_chunk

# %% [markdown]
# ## The package's kernels
#
# ### Tiles in registers
#
# Our `shared_tiles` reads two numbers from shared memory for each multiply-add, and shared memory cannot deliver that
# fast. The remedy is the same again, one level closer. A thread makes not one number but $4 \times 4$, in its
# **registers**, and for 8 numbers read it does 16 multiply-adds. So a block of $16 \times 16$ threads has a tile of
# $64 \times 64$:

# %%
chapter.source(tile.load_rows, tile.load_panel, tile.add_rows_by_rows, tile.add_rows_by_panel, tile.add_panel_by_panel)

# %% [markdown]
# `@inlined` puts a function in place of its call. Loops `for r in range(EACH)` are unrolled by the compiler, since
# registers have no addresses; that is why their bodies are so short. Why other loops say `while`, and what `& NATURAL`
# is for, a profiler showed: see "What a profiler saw" below.
#
# ### Sums and scan

# %%
chapter.source(causal_states.sums, causal_states.scan_number, causal_states.scan)

# %% [markdown]
# In `sums` a block has one chunk and one tile of the state; `z` is the sum of the keys, for the denominator (the column
# of ones of chapter 7). In `scan` a thread has one number of the state. This is the only loop from chunk to chunk, and
# it reads 32 chunks ahead, so that 32 reads are in flight at a time.
#
# ### A chunk's output

# %%
chapter.source(causal_chunks.scores_to_tile, causal_chunks.forward)

# %% [markdown]
# Read it next to (10). The first loop computes *both* products that sum over features, $\phi_Q \phi_K^\top$ and $\phi_Q
# S$, from one reading of $\phi_Q$. Then the scores go to shared memory, with 0 above the diagonal (`scores_to_tile`),
# since the second product sums over what other threads hold. The last loop adds $\mathrm{tril}(\cdot) V$. Nothing is
# ever written to global memory except `out` and the denominator.
#
# Here is the function that launches them, which the mechanism calls:

# %%
chapter.source(causal_product.forward_of_heads, causal_product.states_of_chunks, doc=False)

# %% native="It runs a kernel of the GPU in Numba's simulator, and a browser has neither Numba nor threads."
for ours, expected in zip(causal_product.forward(phi_q, phi_k, v, None), (out, last), strict=True):
    close(ours, expected)

before = np.random.default_rng(4).uniform(0.1, 1, (1, 8, 6)).astype(np.float32)
given = phi_q, phi_k, v, before
for ours, expected in zip(causal_product.forward(*given), by_page(*given), strict=True):
    close(ours, expected)
    print("with a state before: largest difference from the page", f"{abs(ours - expected).max() / EPS_32:.0f} eps")

# %% [markdown]
# And how often are the arrays read? With one block per chunk and $\lceil C / T \rceil \lceil M / T \rceil$ tiles of a
# state, `sums` reads $\phi_K$ once for each column of tiles and $V$ once for each row of them. `forward` has a block
# for every $T$ columns of a chunk's output, and each reads $\phi_Q$ and $\phi_K$, and its columns of $S$ and $V$. The
# cell counts both:

# %% native="It runs a kernel of the GPU in Numba's simulator, and a browser has neither Numba nor threads."
n, c, m = 2 * T, 2 * T, 2 * T
q, k, values = draw_inputs(5, (1, n, c), (1, n, c), (1, n, m))
ones = np.ones((1, n), np.float32)
states, z = np.zeros((1, n // T, c, m), np.float32), np.zeros((1, n // T, c), np.float32)
reads, results = reads_of(
    causal_states.sums,
    (n // T, c // T, m // T),
    tile.BLOCK,
    {"b": k, "u": values, "beside": ones, "states": states, "z": z},
)
for chunk, rows_of_it in enumerate((slice(0, T), slice(T, 2 * T))):
    close(results["states"][0, chunk], k[0, rows_of_it].T @ values[0, rows_of_it])
assert len(reads["b"]) == n * c * (m // T)
assert len(reads["u"]) == n * m * (c // T)
print("sums, with 2 x 2 tiles of a state, reads phi(K) and V", len(reads["b"]) // k.size, "times each;", end=" ")

states[0, 1] = results["states"][0, 0]  # the scan of two chunks
made = cuda.to_device(np.zeros((1, n, m), np.float32))
reads, results = reads_of(
    causal_chunks.forward,
    (n // T, m // T),
    tile.BLOCK,
    {"a": q, "b": k, "u": values, "states": states, "z": z},
    np.float32(0),
    made,
    cuda.to_device(np.zeros((1, n), np.float32)),
    False,
)
close(made.copy_to_host(), by_page(q, k, values, np.zeros((1, c, m), np.float32))[0])
assert len(reads["a"]) == len(reads["b"]) == n * c * (m // T)
assert len(reads["states"]) == n // T * c * m
assert len(reads["u"]) == n * m
print("forward reads phi(Q) and phi(K)", len(reads["a"]) // q.size, "times, V and the states once")

# %% [markdown]
# For $C, M \le T = 64$, the common case, every factor $\lceil \cdot / T \rceil$ is 1 and each kernel reads its arrays
# once.
#
# > **A break.** A GPU needs many threads that wait for nothing. Algorithm 1 has too few of them, so it is cut into
# > chunks: sums and outputs of all chunks run at the same time, and only one addition per chunk waits. Numbers are read
# > from global memory once, by neighbours, and reused in shared memory and in registers. After the break come the
# > gradients, softmax on tensor cores, and what limits a kernel.
#
# ## The gradient: the same product three times
#
# Write $\mathcal P(a, b, u)$ for what `three_steps` does:
#
# $$\mathcal P(a, b, u)_i = \sum_{j \le i} (a_i^\top b_j)\, u_j, \qquad
# O = \mathcal P\big(\phi(Q), \phi(K), V\big)$$
#
# Let $G = \partial \ell / \partial O$. From chapter 7, (6), (8) and (9), with the state written out as the sum that it
# is:
#
# *Queries.* $S_i = \sum_{j \le i} \phi(k_j) v_j^\top$, so
#
# $$\nabla_{\phi(q_i)} \ell = S_i\, G_i = \sum_{j \le i} \phi(k_j)\, (v_j^\top G_i)
# = \mathcal P\big(G, V, \phi(K)\big)_i$$
#
# $(6)$ is the product with $G$ as queries, $V$ as keys and $\phi(K)$ as values. Its state is
# $\sum_j v_j \phi(k_j)^\top = S^\top$: nothing new has to be summed.
#
# *Keys.* $A_j = \sum_{i \ge j} \phi(q_i) G_i^\top$, so
#
# $$\nabla_{\phi(k_j)} \ell = A_j\, v_j = \sum_{i \ge j} \phi(q_i)\, (G_i^\top v_j)
# = \overleftarrow{\mathcal P}\big(V, G, \phi(Q)\big)_j$$
#
# where the arrow means: from the last token to the first. Its state is $\sum_i G_i \phi(q_i)^\top = A^\top$.
#
# *Values.*
#
# $$\nabla_{v_j} \ell = A_j^\top \phi(k_j) = \sum_{i \ge j} G_i\, (\phi(q_i)^\top \phi(k_j))
# = \overleftarrow{\mathcal P}\big(\phi(K), \phi(Q), G\big)_j$$
#
# with the state $A$. That makes four products of one kind, with two states. The package has one kernel for the output
# and one for the three gradients, and both are made of the same functions for tiles.


# %%
def by_three_steps(phi_q, phi_k, v):
    return three_steps(phi_q, phi_k, v, 4), (phi_q, phi_k, v)


def gradients_by_three_steps(d_out, saved):
    phi_q, phi_k, v = saved

    def from_the_end(*arrays):
        return three_steps(*(x[::-1] for x in arrays), 4)[::-1]

    return causal_cost.Gradients(
        three_steps(d_out, v, phi_k, 4),  # (6)
        from_the_end(v, d_out, phi_q),  # (8)
        from_the_end(phi_k, phi_q, d_out),  # (9)
    )


for ours, expected in zip(gradients_by_three_steps(d_out[0], (phi_q[0], phi_k[0], v[0])), gradients[:3], strict=True):
    close(ours, expected[0])
report = gradcheck.check_elementwise(
    by_three_steps,
    gradients_by_three_steps,
    *(x[0, :8, :4].astype(np.float64) for x in (phi_q, phi_k, v)),
    rng=np.random.default_rng(6),
)
print(report)
report.assert_ok()

# %% [markdown]
# (In the source below, which has the numbers of its own page, these are (4), (5) and (6).) On the GPU the transposes of
# $S$ and $A$ are never made: `load_state` reads the state down or across, as told. Its `transposed` branch swaps the
# roles of the threads, so that neighbours read neighbours either way.

# %%
chapter.source(causal_chunks.load_state, causal_product.backward_of_heads, doc=False)

# %% native="It runs a kernel of the GPU in Numba's simulator, and a browser has neither Numba nor threads."
for ours, expected in zip(
    causal_product.backward(d_out, before, *given), gradients_by_page(d_out, before, *given), strict=True
):
    close(ours, expected)
    print(f"{abs(ours - expected).max() / EPS_32:.0f}", end=" ")
print("eps: largest differences of the four gradients from the page's")

# %% [markdown]
# The denominator adds one column on each side. In $o_i = n_i / d_i$ the values are $(v_j, 1)$, and the gradient of
# the numerator and denominator together is $(G_i, e_i) / d_i$ with $e_i = -G_i^\top o_i$ (chapter 7). So where $V$
# and $G$ are `a` and `b`, their inner product has one term more: $v_j^\top G_i + 1 \cdot e_i$. These are the
# arguments called `beside`; otherwise they would be a column of a copied array. This is all of linear attention, both
# passes:

# %% native="It runs a kernel of the GPU in Numba's simulator, and a browser has neither Numba nor threads."
heads = draw_inputs(7, (2, 11, 8), (2, 11, 8), (2, 11, 6), (2, 11, 6))  # two heads: the grid is twice as long
results = []
for backend in (gpu, reference):
    out_of_heads, saved = linear.forward(*heads[:3], causal=True, kernels=backend)
    results.append((out_of_heads, *linear.backward(heads[3], saved)))
for ours, expected in zip(*(each[:4] for each in results), strict=True):
    close(ours, expected)
    print(f"{abs(ours - expected).max() / EPS_32:.0f}", end=" ")
print("eps: largest differences of output and gradients, GPU kernel and page")

# %% [markdown]
# ## Softmax by the same tiles
#
# Softmax attention needs no scan. A block has $T$ queries, goes over the keys by tiles, and keeps for each query the
# largest score so far, the sum and the weighted sum of values. That is the online softmax of chapter 1, with
# `add_rows_by_rows` for $Q K^\top$ and `add_rows_by_panel` for $P V$:

# %%
chapter.source(softmax_tiles.forward_tile)

# %% native="It runs a kernel of the GPU in Numba's simulator, and a browser has neither Numba nor threads."
key_mask = np.random.default_rng(8).random((2, 11)) < 0.7
for causal in (False, True):
    ours, m, share = softmax_loop.forward(*heads[:3], key_mask, causal, 8**-0.5)
    expected, saved = online_softmax.forward(*heads[:3], key_mask=key_mask, causal=causal)
    close(ours, expected)
    seen = saved.s[..., 0] > 0
    assert ((share > 0) == seen).all()  # the share of a query that sees no key is 0
    close(np.where(seen, m, 0), np.where(seen, saved.m[..., 0], 0))
    close(share * saved.s[..., 0], seen.astype(np.float32))
    print(f"causal {causal}: outputs differ by {abs(ours - expected).max() / EPS_32:.0f} eps at most", end="; ")
    print(f"{(~seen).sum()} queries see nothing")

# %% [markdown]
# ## Tensor cores: sixteen bits in, thirty-two out
#
# So far a multiply-add was an instruction of a thread. In addition to the units for that, a GPU has *tensor cores*.
# The 32 lanes of a warp together pass them $A$ of $16 \times 16$, $B$ of $16 \times 8$ and $C$, and get $A B + C$
# back: 2048 multiply-adds by one instruction, `mma.sync.m16n8k16`. NVIDIA's data sheet of the A100 has 312 TFLOP/s
# for them and 19.5 without. The price is that $A$ and $B$ have 16 bits per number. $C$ and all sums are float32.
#
# There are two ways to spend 16 bits. float16 has 10 for the fraction, bfloat16 only 7, but the exponents of float32:

# %%
bits = {"float16": np.uint32, "bfloat16": np.int32}  # words of two numbers; the type says which, see `tensor_cores`


def in_16_bits(x, name):
    return simulated_warp.numbers(simulated_warp.words(x, bits[name]))


for name, spacing, survives in (("float16", 2**-10, False), ("bfloat16", 2**-7, True)):
    near_one = in_16_bits(1 + np.arange(256) / 2048, name)
    assert np.unique(np.diff(np.unique(near_one))) == [spacing]
    assert (in_16_bits([1e5, 0], name)[0] < np.inf) == survives
    print(f"{name}: 1, then {1 + spacing}; 100 000 becomes {in_16_bits([1e5, 0], name)[0]:.0f}")

# %% [markdown]
# The matrices have no place but the registers of the warp. Let $g = \lfloor l / 4 \rfloor$ and $t = l \bmod 4$ for
# lane $l$. Of $A$ it holds the pairs in rows $g$ and $g + 8$ at columns $2t, 2t + 1$ and $2t + 8, 2t + 9$; of $C$ it
# holds those in the same rows at columns $2t, 2t + 1$. Here it is drawn, with each number's lane in its place:

# %%
holds_a, holds_c = np.full((16, 16), -1), np.full((16, 8), -1)
holds_a[simulated_warp.A_ROW, simulated_warp.A_COLUMN] = np.arange(32)[:, None]
holds_c[simulated_warp.C_ROW, simulated_warp.C_COLUMN] = np.arange(32)[:, None]
print(holds_c[[0, 1, 7, 8, 15]])
assert (np.hstack([holds_c, holds_c]) == holds_a).all()

# %% [markdown]
# The assertion is worth a second look: two results $C$ side by side are distributed over the lanes just as an $A$ is.
# Attention is two products, one after the other, $P = \exp(Q K^\top)$ and $P V$. So the result of the first, rounded to
# 16 bits, *is* an operand of the second, in the very lane that needs it. $P$, for which the kernel above had a square
# of shared memory and a barrier before each use, never leaves the registers:

# %%
chapter.source(half_tiles.add_results_by_pairs, half_softmax_tiles.forward_tile)

# %% [markdown]
# A row's maximum and its sum are those of four lanes, which read one another's numbers (`max_of_quad`,
# `sum_of_quad`). Scores, maxima, sums and the output are float32; the inputs, $P$ and the result are rounded. The
# cost of that shows in a comparison with the reference in float64 on the same rounded inputs. A rounding to bfloat16,
# which has eight binary digits, moves a number by at most $2^{-8}$ of it. The simulator lets 32 threads meet for each
# instruction and multiplies with NumPy:

# %% native="It runs a kernel of the GPU in Numba's simulator, and a browser has neither Numba nor threads."
rng = np.random.default_rng(10)
exact = [in_16_bits(rng.standard_normal((1, 18, 8)), "bfloat16") for _ in range(3)]
words = [simulated_warp.words(x, bits["bfloat16"]).view("V2") for x in exact]  # NumPy has no bfloat16, only two bytes
got, m, share = softmax_loop.forward(*words, None, True, 8**-0.5)
expected, saved = online_softmax.forward(*(x.astype(float) for x in exact), causal=True)
difference = simulated_warp.numbers(np.ascontiguousarray(got).view(np.int32)) - expected
roundings = abs(difference).max() / abs(expected).max() / 2**-8
print(f"largest error: {roundings:.1f} roundings of the largest number")
assert roundings < 2
close(m - np.log(share), saved.lse[..., 0].astype(np.float32))  # a sum of float32 throughout

# %% [markdown]
# `gpu.causal_product` does the same with its three steps. Its states are float32 and are rounded where a chunk reads
# them, and there float16 has a trap: a sum over a hundred thousand tokens may exceed 65 504, its largest number.
#
# ## The same bits each time
#
# Where several blocks add to one number, a GPU offers *atomic* additions, in the order in which blocks happen to come.
# Floating-point sums depend on their order:

# %%
terms = np.random.default_rng(9).standard_normal(1000).astype(np.float32)
orders = {float(np.cumsum(np.random.default_rng(i).permutation(terms))[-1]) for i in range(20)}
print(len(orders), "results of 20 orders of the same 1000 terms")
assert len(orders) > 5

# %% [markdown]
# So training twice would lead to two models. These kernels have no atomic additions: every number is written by one
# block, and its sum has one order. (The simulator's threads do come as they like.) Two runs below agree in every bit:

# %% native="It runs a kernel of the GPU in Numba's simulator, and a browser has neither Numba nor threads."
short = [x[:, :11] for x in (d_out, phi_q, phi_k, v)]
first, second = (causal_product.backward(short[0], None, *short[1:], None) for _ in range(2))
for one, two in zip(first, second, strict=True):
    assert (one == two).all()
    print("first number, twice:", repr(float(one.flat[0])), repr(float(two.flat[0])))

# %% [markdown]
# ## What only a compiler can tell
#
# The simulator runs Python and NumPy, and some mistakes do not exist there. NumPy lets a Python number take on the
# type of the array; Numba's compiler has a type for each number, and that of `0.1` is float64. On a GPU float64 is
# 2 to 64 times slower, and results of the right size and shape hide it:

# %%
assert (np.float32(1) * 0.1).dtype == np.float32  # so the simulator sees nothing

compiled = chapter.results("cuda_occupancy")
chapter.table(
    ("in a float32 kernel", "float64 instructions in its PTX"),
    [(f"`{line.statement}`", "<br>".join(f"`{each}`" for each in line.float64) or "none") for line in compiled.lines],
)
assert [len(line.float64) > 0 for line in compiled.lines] == [True, False, False]

# %% [markdown]
# A tenth is not a float32, so the compiler has to widen, multiply and round. A half is one, and the compiler saw
# that. An argument of type float32 is always safe. That is why `forward_of_heads` passes `dtype.type(eps or 0)`, and
# sums start as `acc[r, s] = 0`, an integer stored to an array.
#
# The compiler needs no GPU. NVVM, which Numba calls, writes PTX, an assembly language; `ptxas` makes machine code for
# one architecture and reports what it needs. Both come from PyPI (with the extra `cuda12`), and a test compiles every
# kernel, looks for `.f64` and holds registers and shared memory to a budget. The numbers here are a record that
# `linattn-ref figures --only cuda_occupancy` makes again, by this function:

# %%
chapter.source(cuda_occupancy.compute, doc=False)
print("compiled by", compiled.compilers)
shown = [row for row in compiled.rows if row.architecture == "sm_90"]
chapter.table(
    ("kernel, sm_90", "", "registers", "bytes spilled", "bytes shared", "float64 instructions", "warps"),
    [
        (f"`{row.module}.{row.kernel}`", row.dtype, row.registers, row.spilled, row.shared, row.float64, row.warps)
        for row in shown
    ],
)
for row in compiled.rows:
    if row.dtype == "float32":
        assert row.float64 == row.spilled == 0
        assert row.shared <= 48 * 1024
    else:
        assert row.float64 > 0  # the count does find them

# %% [markdown]
# ### Occupancy
#
# A multiprocessor has 65 536 registers and room for 64 warps. A warp of threads with $r$ registers each takes $32 r$
# registers (rounded up to a multiple of 256), and blocks come whole. With 256 threads per block that allows
#
# $$\text{blocks} = \min\Big(\Big\lfloor \frac{65\,536}{8 \cdot 256 \lceil 32 r / 256 \rceil} \Big\rfloor,\;
# \Big\lfloor \frac{\text{shared memory}}{\text{of a block} + 1\,\text{KiB}} \Big\rfloor,\; 8\Big)$$
#
# Registers decide: tiles of $4 \times 4$ for scores and output at once need about a hundred. These kernels are compiled
# with a bound of 128, with which two blocks, i.e. 16 warps, just fit. With one register more, only one block fits. The
# scan has no such bound: the 32 numbers that a thread waits for need their registers, and serve the same end as warps.

# %%
chapter.show(
    cuda_occupancy.draw,
    compiled,
    alt="Staircases of warps over registers per thread and over shared memory per block. The tile kernels lie "
    "left of the step at 128 registers, at 16 to 32 warps; their shared memory alone would allow 64 warps in float32",
)
limits = cuda_occupancy.LIMITS["sm_90"]
assert cuda_occupancy.resident_warps(limits, 128, 20_800) == 16
assert cuda_occupancy.resident_warps(limits, 129, 20_800) == 8
assert min(row.warps for row in compiled.rows if row.kernel != "scan") == 16

# %% [markdown]
# The compiler's numbers are a record, but two of them can be computed without it. For the shared memory, count the
# arrays in the sources above. For the warps, fill a multiprocessor block by block until something runs out. For the
# registers there is a lower bound, the sums that a thread keeps in them.

# %%
STRIP, SQUARE = 16 * 65, 64 * 65  # numbers of (STEP, PITCH) and of (TILE, PITCH)
ASKS = {  # of a block's shared memory: numbers, and int32 beside them; of a thread's own: numbers
    ("causal_states", "sums"): (2 * STRIP + 16, 0, 16),  # left, right, factors; acc
    ("causal_states", "scan"): (0, 0, 32),  # ahead
    ("causal_chunks", "forward"): (SQUARE + STRIP + 16, 0, 32),  # tile, panel, beside; scores, acc
    ("causal_chunks", "gradient"): (SQUARE + STRIP, 0, 32),
    ("softmax_tiles", "forward_tile"): (SQUARE + STRIP + 3 * 64, 2 * 64, 32),  # and state, of
    ("softmax_tiles", "gradient_tile"): (SQUARE + STRIP + 2 * 64, 2 * 64, 32),
}


def warps_that_fit(registers, shared, shared_there):
    """Blocks of 256 threads, one after the other, until one does not fit: 65 536 registers, 64 warps."""
    warps, registers_left = 0, 65_536
    while True:
        for _ in range(8):  # a warp's registers come in portions of 256
            registers_left -= 256 * math.ceil(32 * registers / 256)
        shared_there -= 128 * math.ceil((shared + 1024) / 128)
        if min(registers_left, shared_there) < 0 or warps + 8 > 64:
            return warps
        warps += 8


for row in compiled.rows:
    shared, integers, own = ASKS[row.module, row.kernel]
    words = 2 if row.dtype == "float64" else 1
    assert row.shared == 4 * (words * shared + integers)
    assert words * own <= row.registers
    assert row.registers <= 128 or row.kernel == "scan"
    assert row.warps == warps_that_fit(row.registers, row.shared, {"sm_80": 164, "sm_90": 228}[row.architecture] * 1024)
print(f"{len(compiled.rows)} rows of the record: shared memory and warps as counted")

# %% [markdown]
# 16 of 64 warps may seem little. It is the usual compromise of matrix products. A thread with 16 sums in registers has
# 16 multiply-adds that do not wait for each other, which serves the same end as more threads. Whether it is the right
# compromise is one of the things that only a measurement can show.
#
# The other way to leave a GPU idle is a grid with fewer blocks than it has multiprocessors. Numba warns of that at each
# launch (`NumbaPerformanceWarning`). The package turns the warning off, since a short sequence is not a mistake.
#
# ## Which part waits for what: the roofline
#
# A kernel that does $F$ operations (a product and a sum count as two) and moves $B$ bytes takes at least
#
# $$t \ge \max\Big(\frac{F}{\text{rate}}, \frac{B}{\text{bandwidth}}\Big)$$
#
# and which of the two is larger depends on its **arithmetic intensity** $F / B$ alone. Rate and bandwidth below are
# from NVIDIA's data sheets, for float32 without tensor cores. Put the numbers of your own GPU there.


# %%
class Device(NamedTuple):
    rate: float  # float32 operations per second
    bandwidth: float  # bytes per second


DEVICES = {"A100 (40 GB)": Device(19.5e12, 1.555e12), "H100 (SXM)": Device(67e12, 3.35e12)}


def parts(t, c, m, size=4):
    """Operations and bytes of one chunk of ``t`` rows in each part, if every block reads its arrays once.

    A number has ``size`` bytes; those of states have four.
    """
    across, down = -(-m // t), -(-c // t)  # tiles
    state = c * m
    return {
        "a thread per number": (2 * t * c * m, size * 2 * t * c * m),  # of the sums, as in the chapter's first kernel
        "sums": (2 * t * c * m, size * (t * c * across + t * m * down) + 4 * state),
        "scan": (state, 4 * 2 * state),
        "forward": (
            2 * (t * t * c * across + t * c * m + t * t * m),
            size * (2 * t * c * across + 2 * t * m) + 4 * state,
        ),
    }


rows = []
for name, (operations, moved) in parts(64, 64, 64).items():
    bound = ("memory" if operations / moved < x.rate / x.bandwidth else "arithmetic" for x in DEVICES.values())
    rows.append((name, operations, moved, operations / moved, *bound))
chapter.table(
    (
        "T = C = M = 64, per chunk",
        "operations",
        "bytes",
        "operations per byte",
        *(f"{name}: waits for" for name in DEVICES),
    ),
    rows,
)
intensity = {row[0]: row[3] for row in rows}
assert (intensity["a thread per number"], intensity["scan"]) == (0.25, 0.125)
ratio = intensity["sums"] / intensity["a thread per number"]
assert ratio == 2 * 64**3 / (3 * 64**2)  # 2 T C M numbers against T C + T M + C M: two thirds of T

ideal = 4 * 64 * (2 * 64 + 2 * 64)  # phi_q, phi_k, v in, out out
moved = sum(each[1] for name, each in parts(64, 64, 64).items() if name != "a thread per number")
print(f"the three steps move {moved / ideal} times the bytes of inputs and output")
assert moved / ideal == 2.5

# %% [markdown]
# The two steps with products in them are near the corner where memory and arithmetic take equally long. The scan is far
# on the memory side, but has little to do. Moving 2.5 times what is needed is the price of three launches: $\phi(K)$
# and $V$ are read twice, and the states are written, read, written and read. These are bounds, not times. A kernel
# reaches some share of them; `linattn-ref bench cuda` measures which, together with the GPU's own copy bandwidth and
# matrix rate.
#
# The chunk length is the one size to choose. A longer chunk has fewer states to move, and more pairs within the chunk:


# %%
def panel(axes, t):
    intensities = np.logspace(-1.5, 2.5, 50)
    for (name, x), look in zip(DEVICES.items(), ("-", "--"), strict=True):
        axes.plot(intensities, np.minimum(x.rate, intensities * x.bandwidth) / 1e12, look, color=style.GREY, label=name)
    x = DEVICES["A100 (40 GB)"]
    colours = (style.ORANGE, style.GREEN, style.BLUE, style.VERMILLION)
    for (name, (operations, moved)), colour, marker in zip(parts(t, 64, 64).items(), colours, "xsoD", strict=True):
        bound = min(x.rate, operations / moved * x.bandwidth) / 1e12
        size = 9 if marker == "x" else 5  # it may lie under another
        axes.plot(operations / moved, bound, marker, color=colour, label=name, markersize=size, zorder=3)
    axes.set(xscale="log", yscale="log", xlabel="operations per byte", ylabel="at most ($10^{12}$ operations/s)")
    axes.label_outer()
    if t == 16:
        axes.legend(loc="upper left", fontsize="small")
        low, high = axes.get_ylim()
        axes.set_ylim(low, high * 12)  # room for the legend


chapter.explore(
    panel,
    (16, 64, 256),
    name="chunk length T",
    slider=(8, 16, 32, 64, 128, 256),
    sharey=True,
    alt="Rooflines of two GPUs. With T = 16 all parts lie on the slope, limited by memory; with 64 near the corner; "
    "with 256 sums and forward lie under the flat roof",
)

# %% [markdown]
# ## Exercises
#
# **1.** In `one_number_a_thread` let `threadIdx.x` be $c$ and `threadIdx.y` be $m$. What changes in the reads, and
# what in the writes?
#
# <details><summary>Solution</summary>
#
# The reads change places: the warp now reads 32 neighbours of $\phi(K)$ (4 sectors) and one number of $V$ (1 sector).
# But the results $S_{cm}$ for 32 values of $c$ lie a row apart: 32 sectors are written for 128 bytes. Writes could be
# watched like reads. The cell uses the formula instead: $S_{cm}$ is at place $c M + m$, in sector $\lfloor 4 (c M + m)
# / 32 \rfloor$.
#
# </details>

# %%
by_x = {"c": len({4 * (c * 64 + 0) // 32 for c in range(32)}), "m": len({4 * (0 * 64 + m) // 32 for m in range(32)})}
assert by_x == {"c": 32, "m": 4}
print("sectors written, by what threadIdx.x is:", by_x)

# %% [markdown]
# **2.** Shared memory has 32 *banks*: the number at place $p$ is in bank $p \bmod 32$, and each bank delivers one
# number at a time. Why are rows of `tile` `PITCH = 65` apart, and not 64?
#
# <details><summary>Solution</summary>
#
# In `add_rows_by_rows` thread $x$ reads `tile[x + SIDE s, STEP + c]`: 16 threads, one below the other. With rows 64
# apart all 16 are in one bank and wait for one another. With 65, each is in the bank next to that of the one before.
# (The other half of the warp, with the next $y$, reads the same 16 numbers, which costs nothing.)
#
# </details>

# %%
for pitch, banks in ((64, 1), (65, 16)):
    assert len({(x * pitch) % 32 for x in range(16)}) == banks
    print(f"rows {pitch} apart: 16 threads read from banks", *sorted({(x * pitch) % 32 for x in range(16)}))

# %% [markdown]
# **3.** A multiprocessor of the A100 does 64 float32 multiply-adds per clock, one of the H100 128; from shared memory
# each reads at most 32 numbers per clock, one warp at a time. A thread with `EACH = e` reads $2 e$ numbers for $e^2$
# multiply-adds. Which of the two limits `add_rows_by_panel`, and why not take $e = 8$?
#
# <details><summary>Solution</summary>
#
# For a warp, $e^2$ multiply-add instructions take $e^2 \cdot 32 / 64$ clocks on the A100 and $e^2 \cdot 32 / 128$ on
# the H100; $2 e$ reads take $2 e$ clocks. With $e = 4$ that is 8 against 8 on the A100, balanced. On the H100 it is 4
# against 8, so shared memory is the limit, at half the rate. With $e = 8$ shared memory is not the limit on either,
# with 32 and 16 against 16. But scores and output would take $2 \cdot 64$ registers by themselves, more than 128 with
# all the rest, and then only one block of 256 threads fits. (The next step would be tensor cores, which take whole
# tiles from registers.)
#
# </details>

# %%
for each, expected in ((4, (1, 2)), (8, (0.5, 1))):
    assert tuple(2 * each / (each**2 * 32 / rate) for rate in (64, 128)) == expected  # shared memory over arithmetic
    print(f"e = {each}: time for shared memory over time for arithmetic, A100 {expected[0]}, H100 {expected[1]}")

# %% [markdown]
# **4.** The scan takes $N / T$ steps, one after the other. Make it $\log_2(N / T)$: in step $d = 1, 2, 4, \dots$ add
# to every sum the one that lies $d$ chunks before. Is it worth it?
#
# <details><summary>Solution</summary>
#
# After the step with $d$, each place holds the sum of the last $2 d$ chunks. For $N = 2^{16}$ and $T = 64$ that is 10
# steps in place of 1024. But each step reads and writes *all* states, so 10 times the bytes are moved, and the scan is
# limited by memory. And the sums are added up in another order, though a fixed one. With 8 heads there are $8 \cdot
# 64^2 = 32\,768$ threads in the plain scan: enough to keep memory busy. With one head and a narrow state it can be
# worth it.
#
# </details>


# %%
def scan_by_doubling(sums):
    states, d, steps = sums.copy(), 1, 0
    while d < len(states):
        states[d:] = states[d:] + states[:-d]  # the right side is made before it is stored
        d, steps = 2 * d, steps + 1
    return states, steps


sums = np.random.default_rng(10).standard_normal((1024, 2, 2))
states, steps = scan_by_doubling(sums)
np.testing.assert_allclose(states, np.cumsum(sums, axis=0), rtol=0, atol=1e-12)
assert steps == 10
in_turn = sums[:, 0, 0].sum()
print(f"{len(sums)} chunks in {steps} steps; last sum by doubling {states[-1, 0, 0]:.6f}, in turn {in_turn:.6f}")

# %% [markdown]
# ## The first day on a GPU
#
# All this had been written, compiled and simulated before any of it ran on a GPU. Then, on 27 November 2026, it ran on
# an NVIDIA H200 (driver 580, PyTorch 2.11, numba-cuda 0.30.4). Of 1,777 tests 1,776 passed in the first whole run. The
# other one failed through a mistake in the test itself, which tried to copy a gradient that is not there. The judge of
# chapter 25 found no fault in softmax, linear, gated and delta attention in float32, nor in the two that it was given
# in 16 bits, softmax and linear. So a simulator that checks indices and barriers, and a compiler that counts registers,
# had found what was wrong in the kernels.
#
# What they had missed lay around the kernels: where a call failed, the function that frees an array's memory could be
# collected before the array, and the process ended with a segmentation fault. The benchmark called softmax with the
# arguments of the kernel behind it; a test in the simulator now runs those lines on any machine. And numba-cuda could
# not be imported with NumPy 2.5, which is why the extras ask for an older one.
#
# How fast are they? On that day `linattn-ref bench cuda` compared them with PyTorch's attention (SDPA) and with
# flash-linear-attention's kernels in Triton: causal, one sequence, 8 heads of 64, output and gradients. Its record is
# kept. In it a call of linear attention launched 24 kernels of ours.

# %% jupyter={"source_hidden": true}
NAMES = [name + form for name in ("linear", "flash-linear-attention", "softmax", "SDPA") for form in ("", " bfloat16")]


def times(record):
    """Milliseconds of both passes, by kernel and length."""
    both = (row for row in record["results"]["rows"] if row["task"] == "forward + backward")
    return {(row["kernel"], row["length"]): row["median_ms"] for row in both}


def show(ms, names):
    lines = [[f"{ms[name, 4**n]:.3g}" if (name, 4**n) in ms else "" for name in names] for n in range(5, 11)]
    chapter.table(("milliseconds, N =", *names), [(4**n, *line) for n, line in zip(range(5, 11), lines, strict=True)])


# %%
first_day = times(chapter.record("records/gpu_first_day"))
show(first_day, NAMES)
print(f"linear, N = 1024: {first_day['linear', 1024] / 24:.2f} ms of the call for each launch")

# %% [markdown]
# An empty cell means that a call at a shorter length, or the forward pass alone at this one, had taken more than a
# second. Four things can be read:
#
# - **Up to 16 384 tokens linear attention takes the same time, whatever $N$ is.** The GPU waits for Python, which
#   took a third of a millisecond for each launch and what lies around it. flash-linear-attention waits too, but less
#   than half as long, although its times here include bringing the arrays into its own order.
# - From 262 144 tokens on the kernels count. In bfloat16 ours is the faster of the two. In float32 it takes twice as
#   long, since Triton rounds the factors of its products to TF32, 10 binary digits for the fraction, to have them done
#   by tensor cores. The loops for bfloat16 are called by themselves here: `linear.forward(..., kernels=cuda)` takes
#   16 bits too, but widens them to float32 first.
# - Softmax by our tiles takes 6 to 11 times as long as PyTorch's from 4096 tokens on. The tile of this chapter is what
#   one can read in an evening. PyTorch's is written for this GPU: it loads the next tile while it multiplies.
# - Linear attention in bfloat16 overtakes PyTorch's softmax between 16 384 and 65 536 tokens. At 262 144 it is 40 times
#   as fast.
#
# ## What a profiler saw
#
# Two days later a GPU was there for a quarter of an hour, and Nsight Compute could watch. A warp's multiply-adds can be
# counted by hand; the profiler counted everything else as well:

# %%
profile = chapter.record("records/gpu_profile")["results"]
of_sums = profile["sums"]
by_hand = 8 * of_sums["length"] * 64 * 64 // 32  # H N C M, 32 at a time
counted = of_sums["instructions"]
print(f"sums, N = {of_sums['length']}: {by_hand:,} multiply-adds of a warp, {counted:,} instructions")
print(f"{counted / by_hand:.1f} instructions for each; the busiest unit is the {of_sums['busiest']}, for integers")

# %% [markdown]
# So each multiply-add brought six others along, and most of them computed addresses. The machine code, which the
# compiler writes on any machine, shows what they were:
#
# - **Indices that might be negative.** In Python `x[-1]` is the last number, so a compiled `x[i]` asks whether $i < 0$
#   and adds the length, at every access, unless the compiler knows better. `i & NATURAL` clears the sign, and with it
#   the question. For a thread's own place `max(cuda.threadIdx.x, 0)` does it, and costs nothing, since the compiler
#   knows that number's range and drops the `max`.
# - **Loops that stay loops.** A `for` over a `range` of 4 is unrolled, one of 16 is not. It counts down an iterator of
#   64 bits each time, and no address in it is a constant. A `while` up to 16 is unrolled.
# - **Divisions.** A block filled a tile by counting $e = t, t + 256, \dots$ and took row and column from $e / 16$ and
#   its remainder. But the threads stand in a square, which names row and column.
#
# Two more findings had nothing to do with instructions. The scan read 8 chunks ahead, too few to keep the memory busy,
# and took two launches, for $S$ and for $Z$. And arrays of zeros or ones were made by launches of ours, though CuPy
# and PyTorch can make their own. No formula has changed, and no sum has another order.

# %%
rows = [
    (f"`{row['kernel']}`", *(row[f"{what}_{when}"] for when in ("before", "after") for what in ("launches", "ms")))
    for row in profile["rows"]
]
chapter.table(
    (f"linear, float32, N = {profile['length']}", "launches", "ms for each", "launches now", "ms for each now"), rows
)


# %% native="It counts launches of the GPU's kernels, which need Numba, and a browser has none."
def launches(mechanism):
    """Of kernels, for the output and the gradients, where a library makes arrays of zeros and ones itself."""
    with mock.patch.object(device, "launch") as launch:
        out, saved = mechanism.forward(*heads[:3], causal=True, kernels=gpu)
        mechanism.backward(out, saved)
    return sum(each.args[0] is not fill for each in launch.call_args_list)


print("launches:", {"linear": launches(linear), "softmax": launches(softmax)})

# %%
now = times(chapter.record("bench_cuda"))
show(now, [name for name in NAMES if any(name == kernel for kernel, _ in now)])
for name, n in (("linear", 4**10), ("linear bfloat16", 4**10), ("softmax", 4**8), ("SDPA", 4**8)):
    print(f"{name}, N = {n}: {first_day[name, n]:.4g} ms, now {now[name, n]:.4g} ms")

# %% [markdown]
# From 65 536 tokens on PyTorch's attention, which nobody has touched, took the same on both days to a hundredth, so
# that these rows can be compared. At a million tokens linear attention takes 0.38 of its first time in float32. In
# bfloat16 the loops had been unrolled before, so only the scan is faster, and the time is 0.69 of the first. Softmax in
# float32 takes 0.67 of its first time at 65 536 tokens. In bfloat16 it takes longer than on the first day: to be right
# for large equal scores, it now keeps two numbers per row, which costs one more multiplication per weight. At 262 144
# tokens linear attention in bfloat16 is 58 times as fast as PyTorch's softmax.
#
# The quarter of an hour was over before flash-linear-attention's turn, so a ratio from one run is missing. Two days
# apart, at a million tokens in float32, it took 101 ms, bringing arrays into its order included, and ours take 78,
# without rounding to TF32. It was also over before the last 123 of 1,777 tests; those that had run had passed. Small
# changes to the kernels since then have run in the simulator and the compiler, and on no GPU.
#
# Up to 16 384 tokens, where Python is what takes time, ours took up to one and a half times as long as on the first
# day, with fewer launches. Whether that is the host, nobody has measured.
#
# The roofline says how much is left. For its bandwidth and rate take those of a copy and of a product of matrices,
# which were measured in the same run. Forward, any kernel has to make the products $\phi(K)^\top V$ and $\phi(Q)\, S$,
# and to move its four arrays once. Our three steps, one after the other, do what the roofline's table has for them. (In
# bfloat16 their states are still of float32.)

# %%
measured = chapter.record("bench_cuda")["results"]
LONGEST = 4**10


def least(x, operations, moved):
    """Milliseconds that a device needs for these in every chunk of eight heads."""
    return 1e3 * 8 * LONGEST / 64 * max(operations / x.rate, moved / x.bandwidth)


rows = []
for name, size, rate in (("linear", 4, "matrix_tflops"), ("linear bfloat16", 2, "bfloat16_tflops")):
    h200 = Device(1e12 * measured[rate], 1e9 * measured["copy_gb_s"])
    steps = [part for step, part in parts(64, 64, 64, size).items() if step != "a thread per number"]
    (took,) = (
        row["median_ms"]
        for row in measured["rows"]
        if (row["kernel"], row["task"], row["length"]) == (name, "forward", LONGEST)
    )
    any_kernel = least(h200, 2 * 2 * 64**3, size * 4 * 64**2)
    rows.append((name, f"{any_kernel:.1f}", f"{sum(least(h200, *part) for part in steps):.1f}", f"{took:.0f}"))
chapter.table((f"milliseconds, N = {LONGEST:,}", "any kernel, at least", "our three steps, at least", "measured"), rows)

# %% [markdown]
# Any kernel needs at least 2.7 ms in float32 and 1.0 ms in bfloat16, and our three steps at least 6.7 and 3.7 ms. They
# took 23 and 12 ms, with the feature map and the denominator, which are not counted here.

# %% [markdown]
# ## Where to go from here
#
# - On a machine with a GPU, `python -m pytest -m gpu` runs the tests of all mechanisms on it, and `linattn-ref bench
#   cuda` measures your own.
# - `linattn_ref/kernels/cuda/loops/sparse/pattern_tiles.py` and `lsh_tiles.py` are the softmax tile for chapters 12 and
#   14, whose keys are not neighbours.
# - Yang et al. (2024), *Gated linear attention transformers with hardware-efficient training*, sections 3.3 and 4.3:
#   the chunks on tensor cores. Dao et al. (2022), *FlashAttention*: softmax by tiles.

# %% [markdown]
# ## What to remember
#
# - Find what waits. In the causal product only one addition per chunk waits. Sums and outputs of all chunks run at the
#   same time, at the price of twice the arithmetic and $N / T$ states in memory.
# - Read from global memory once, with neighbouring threads reading neighbouring numbers, and reuse what was read: in
#   tiles in shared memory, then in registers.
# - All three gradients are the forward product again, two of them from the last token to the first.
# - A simulator finds wrong indices and missing barriers. Only a compiler finds float64 that crept in, and counts
#   registers. Only a measurement shows time.
# - Operations divided by bytes show whether memory or arithmetic is the limit.
# - Every sum has one order, without atomic additions, so the bits are the same each time.
#
# **Sources.** Katharopoulos et al. (2020), *Transformers are RNNs*, Algorithm 1. Dao et al. (2022), *FlashAttention*.
# Yang et al. (2024), *Gated linear attention transformers with hardware-efficient training*. Hillis and Steele (1986),
# *Data parallel algorithms* (the scan by doubling). Williams, Waterman and Patterson (2009), *Roofline: an insightful
# visual performance model for multicore architectures*. NVIDIA, *CUDA C++ programming guide* and *PTX ISA* (warps,
# barriers, `mma`).
