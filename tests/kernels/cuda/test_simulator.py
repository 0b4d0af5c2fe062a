"""The contract tests with ``kernels=cuda``, in Numba's simulator, which has to be chosen before Numba is imported."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
CONTRACT = TESTS / "contract"
RANGE, KERNELS, HALF = map(
    Path(__file__).with_name, ("range_in_simulator.py", "in_simulator.py", "half_in_simulator.py")
)


def simulate(*arguments, least):
    """Run pytest there; at least so many tests have to pass, that a selection which selects nothing shows."""
    command = [sys.executable, str(Path(__file__).with_name("simulator.py")), *map(str, arguments), "-q", "-x"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"})
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, done.stdout
    assert int(passed[1]) >= least, done.stdout


def test_both_passes_numbers_at_the_edges_what_callers_pass_and_what_is_none():
    """A case of each kernel that is quickly done; output arrays, states with gaps, devices; masked and later numbers
    that are NaN or infinite, in one format of 16 bits. All others are among the slow ones.

    One process for all of it: to start one takes seconds.
    """
    quick = "softmax-causal-cuda-masked or linear-causal-cuda-masked or local-dilated-causal-cuda-masked"
    edges = "(range_in_simulator and float64 and not inf) or the_benchmark_calls or new_axis"
    passed = "output_array or gaps or each_device or unit_is"
    none = "none_reaches_no_gradient or (may_be_none and not bfloat16) or (denominators_state and bfloat16)"
    chosen = f"both_passes and ({quick} or delta-channels-cuda-masked) or {edges} or {passed} or {none}"
    simulate(CONTRACT / "test_rooms.py", RANGE, KERNELS, HALF, "-k", chosen, least=95)


@pytest.mark.slow
def test_numbers_at_the_edges_of_float32():
    simulate(RANGE, "-k", "float32", least=36)


@pytest.mark.slow
def test_both_passes_in_float32():
    """The mechanisms that use the kernels most directly; patterns that are seen through parts: a window, columns,
    blocks, two orders."""
    direct = "softmax or linear-causal or linear-cuda or rfa-gated or reformer-cuda-masked"
    patterns = "masked and (local-dilated or longformer-cuda or bigbird-cuda or strided-cuda)"
    simulate(CONTRACT / "test_rooms.py", "-k", f"cuda and both_passes and ({direct} or ({patterns}))", least=15)


@pytest.mark.slow
def test_what_nan_reaches():
    chosen = "cuda and depends_on_its_token and (softmax-causal or linear-causal or delta-channels or local-dilated)"
    simulate(CONTRACT / "test_nan.py", "-k", chosen, least=8)


@pytest.mark.slow
def test_kernels():
    """What contract tests do not reach: all modes, 16 bits, device arrays, errors, no barrier missing."""
    files = ("patterns_in_simulator.py", "lsh_in_simulator.py")
    simulate(KERNELS, HALF, *map(Path(__file__).with_name, files), least=145)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("chosen", ["softmax", "causal_product"])
def test_kernels_of_16_bits_at_more_sizes(chosen):
    simulate(Path(__file__).with_name("half_in_simulator.py"), "-m", "slow", "-k", chosen, least=4)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("numbers", ["bfloat16", "float16"])
@pytest.mark.parametrize("chosen", ["softmax", "causal_product"])
def test_kernels_of_16_bits_at_real_sizes(chosen, numbers):
    chosen = f"{chosen} and {numbers}"
    simulate("--real-sizes", Path(__file__).with_name("half_at_real_sizes.py"), "-k", chosen, least=1)


@pytest.mark.slow
def test_every_mechanism():
    simulate("--float64", CONTRACT / "test_rooms.py", "-k", "cuda and both_passes", least=60)


@pytest.mark.slow
def test_packed_sequences_and_shared_heads():
    chosen = "cuda-masked and (softmax-causal or linear-causal or delta-channels) and (separate or repeated)"
    simulate("--float64", CONTRACT / "test_axes.py", "-k", chosen, least=6)


@pytest.mark.slow
def test_states():
    chosen = "cuda and (softmax-causal or linear-causal or delta-channels) and not gradients and not float64"
    simulate(CONTRACT / "test_state.py", "-k", chosen, least=10)


@pytest.mark.slow
@pytest.mark.thorough
def test_patterns_at_real_sizes():
    simulate("--real-sizes", Path(__file__).with_name("patterns_at_real_sizes.py"), least=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanisms", ["local-dilated or longformer-cuda", "bigbird-cuda or strided-cuda", "reformer"], ids=str
)
def test_masks(mechanisms):
    chosen = f"cuda and masked and (gradient_zero or sequence_that_sees) and ({mechanisms})"
    simulate(CONTRACT / "test_masks.py", "-k", chosen, least=4)
