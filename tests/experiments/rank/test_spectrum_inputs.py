import zipfile

import numpy as np
import pytest

from linattn_ref.attention import softmax
from linattn_ref.experiments.rank import spectrum_inputs
from linattn_ref.models import bert

RNG = np.random.default_rng(0)
Q = RNG.standard_normal((2, 3, 4, 7, 5), np.float32)  # sentences, layers, heads, N, D
K = RNG.standard_normal((2, 3, 4, 6, 5), np.float32)


def write(path, **arrays):
    np.savez(path / "user.npz", **arrays)
    return path / "user.npz"


def matrices(inputs, group="given"):
    return [np.stack(list(of_layers(*arguments))) for of_layers, *arguments in inputs.tasks[group]]


@pytest.mark.parametrize("axes", [2, 3, 4, 5])
def test_own_matrices_with_the_first_axes_left_out(tmp_path, axes):
    p = softmax.matrix(Q, K)[(0,) * (5 - axes)]
    inputs = spectrum_inputs.from_arrays(write(tmp_path, p=p), baselines=1, seed=0)
    assert np.array_equal(np.stack(matrices(inputs)).reshape(p.shape), p)
    assert inputs.shape == (4 if axes > 2 else 1, 7, 6)
    assert matrices(inputs, "gaussian")[0].shape == (1, *inputs.shape)


def test_own_queries_and_keys_give_softmax_matrices(tmp_path):
    inputs = spectrum_inputs.from_arrays(write(tmp_path, Q=Q, K=K, unrelated=np.array(["x"])), baselines=2, seed=0)
    assert np.array_equal(np.stack(matrices(inputs)), softmax.matrix(Q, K))
    assert inputs.shape == (4, 7, 6)
    assert len(inputs.tasks["gaussian"]) == 2
    assert inputs.title == "user.npz"
    assert len(inputs.sources["arrays_sha256"]) == 64


def test_dtype_of_own_matrices_is_kept(tmp_path):
    inputs = spectrum_inputs.from_arrays(write(tmp_path, p=np.eye(3)), baselines=0, seed=0)
    assert matrices(inputs)[0].dtype == np.float64


@pytest.mark.parametrize("dtype", [">f4", ">f8"])
def test_own_matrices_of_another_byte_order(tmp_path, dtype):
    given = softmax.matrix(Q, K).astype(dtype)
    found = np.stack(matrices(spectrum_inputs.from_arrays(write(tmp_path, p=given), baselines=0, seed=0)))
    assert np.array_equal(found, given)
    assert found.dtype == np.dtype(dtype).newbyteorder("=")
    assert found.dtype.isnative


def remarks(tmp_path, p):
    told = []
    spectrum_inputs.from_arrays(write(tmp_path, p=p), baselines=0, seed=0, say=told.append)
    return told


@pytest.mark.parametrize(
    ("p", "remark"),
    [
        ([[0.5, 0.5], [0.5, 0.6]], "1 of 2 rows of p do not sum to 1 (1.1 to 1.1)"),
        ([[1.5, -0.5], [0.5, 0.5]], "25.0% of the entries of p are negative"),
        (
            [[2.0, -3.0], [0.5, 0.5]],
            "1 of 2 rows of p do not sum to 1 (-1 to -1); 25.0% of the entries of p are negative",
        ),
        (
            [[1.0, -1.0], [0.5, 0.5]],
            "1 of 2 rows of p do not sum to 1 (0 to 0); 25.0% of the entries of p are negative",
        ),
    ],
)
def test_scores_in_the_place_of_attention_are_told(tmp_path, p, remark):
    told = remarks(tmp_path, np.array(p))
    assert told == [f"user.npz: {remark}. Scores before the softmax? They are taken as they are"]


@pytest.mark.parametrize("bits", [24, 11, 8])  # of precision, as float32, float16 and bfloat16 have
def test_of_attention_nothing_is_told(tmp_path, bits):
    p = softmax.matrix(Q, K)
    mantissa, exponent = np.frexp(p)
    p = np.ldexp(np.round(mantissa * 2**bits) / 2**bits, exponent)
    p[0, 0, 0, 0] = 0  # sees nothing
    assert remarks(tmp_path, p) == []


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"p": np.eye(3), "P": np.ones((3, 3))}, "holds both p and P; leave one of them out"),
        ({"k": K, "Q": Q, "K": K}, "holds both k and K; leave one of them out"),
        ({"x": Q}, "expected p, or q and k, in .*user.npz; it holds x"),
        ({}, "it holds nothing"),
        ({"q": Q}, "expected p, or q and k"),
        ({"p": Q, "q": Q, "k": K}, "expected p, or q and k"),
        ({"p": np.eye(3, dtype=int)}, "p must be float32 or float64, got int64"),
        ({"p": np.eye(3, dtype=np.float16)}, "p must be float32 or float64, got float16"),
        ({"p": np.ones(3)}, r"p must have 2 to 5 axes, none empty, got shape \(3,\)"),
        ({"p": np.ones((0, 3))}, r"got shape \(0, 3\)"),
        ({"p": np.ones((1,) * 6)}, "2 to 5 axes"),
        ({"p": np.array([[1, np.nan]])}, "p holds NaN or infinity"),
        ({"p": np.stack([np.eye(3), np.zeros((3, 3))])}, "p holds a matrix of zeros alone"),
        ({"q": Q.astype(np.float32), "k": K.astype(np.float64)}, "q is float32 and k float64"),
        ({"q": Q, "k": K[:1]}, "may differ only in the last but one"),
        ({"q": Q, "k": K[..., :4]}, "may differ only in the last but one"),
        ({"p": np.array([[{}]])}, "is no .npz file of numbers, or damaged"),
    ],
)
def test_wrong_arrays_say_what_is_wrong(tmp_path, arrays, message):
    with pytest.raises(ValueError, match=f"^arrays: .*{message}"):
        spectrum_inputs.from_arrays(write(tmp_path, **arrays), baselines=1, seed=0)


def test_files_that_are_no_npz(tmp_path):
    path = tmp_path / "x.npz"
    with pytest.raises(FileNotFoundError, match=r"^arrays: no such file"):
        spectrum_inputs.from_arrays(path, baselines=1, seed=0)
    whole = write(tmp_path, p=np.eye(50)).read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"^arrays: .*x\.npz is no .npz file of numbers, or damaged") as raised:
            spectrum_inputs.from_arrays(path, baselines=1, seed=0)
        assert "pickle" not in str(raised.value)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("p", b"text")
    with pytest.raises(ValueError, match=r"^arrays: p must be float32 or float64, got \|S4"):
        spectrum_inputs.from_arrays(path, baselines=1, seed=0)
    with path.open("wb") as file:
        np.save(file, np.eye(3))
    with pytest.raises(ValueError, match=r"^arrays: .*x\.npz is no .npz file"):
        spectrum_inputs.from_arrays(path, baselines=1, seed=0)


def from_model(model, text, **options):
    given = {"sentences": 3, "length": 20, "baselines": 2, "seed": 0, **options}
    return spectrum_inputs.from_model(model, text, **given)


def test_model_and_text_of_ones_own(tiny_model, tiny_text):
    inputs = from_model(tiny_model, tiny_text)
    assert {group: len(tasks) for group, tasks in inputs.tasks.items()} == {"given": 3, "untrained": 2, "gaussian": 2}
    assert inputs.title == "tiny"
    assert inputs.shape == (3, 20, 20)
    assert [p.shape for p in matrices(inputs)] == [(2, 3, 20, 20)] * 3
    model = bert.load(tiny_model)
    tokens = inputs.tasks["given"][1][2]
    assert np.array_equal(matrices(inputs)[1], np.stack([layer.p for layer in bert.layers(model, tokens)]))
    assert inputs.sources["model_sha256"] == model.sha256
    assert inputs.sources["text"] == "text.txt"


def test_untrained_network_reads_the_same_sentences(tiny_model, tiny_text):
    inputs = from_model(tiny_model, tiny_text)
    for given, untrained in zip(inputs.tasks["given"], inputs.tasks["untrained"], strict=False):
        assert np.array_equal(given[2], untrained[2])
        assert not np.array_equal(*(next(of_layers(*arguments)) for of_layers, *arguments in (given, untrained)))


def test_seeds_streams_do_not_depend_on_each_other(tiny_model, tiny_text):
    one, other = from_model(tiny_model, tiny_text), from_model(tiny_model, tiny_text, sentences=2, baselines=1)
    for group, tasks in other.tasks.items():
        ours = matrices(one, group)[: len(tasks)]
        assert all(np.array_equal(a, b) for a, b in zip(ours, matrices(other, group), strict=True)), group
    changed = from_model(tiny_model, tiny_text, seed=1)
    for group in one.tasks:
        assert not np.array_equal(matrices(one, group)[0], matrices(changed, group)[0])


def test_baselines_need_no_more_sentences_than_are_asked_for(tiny_model, tiny_text, tmp_path):
    """One sentence was refused where the text had but one: the untrained network wanted two."""
    (tmp_path / "one.txt").write_text(tiny_text.read_text().splitlines()[0])
    inputs = from_model(tiny_model, tmp_path / "one.txt", sentences=1, length=8, baselines=2)
    assert {group: len(tasks) for group, tasks in inputs.tasks.items()} == {"given": 1, "untrained": 1, "gaussian": 2}


def test_no_baselines(tiny_model, tiny_text):
    inputs = from_model(tiny_model, tiny_text, baselines=0)
    assert [group for group, tasks in inputs.tasks.items() if tasks] == ["given"]


def test_errors_of_model_and_text(tiny_model, tiny_text, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("a b\n\nc\n")
    with pytest.raises(ValueError, match="length: the model has positions for 40 tokens, got 41"):
        from_model(tiny_model, tiny_text, length=41)
    with pytest.raises(FileNotFoundError, match="no such directory"):
        from_model(tmp_path / "none", tiny_text)
    with pytest.raises(ValueError, match=r"short\.txt: 3 word pieces in all, 18 are needed for a sentence"):
        from_model(tiny_model, short)
    empty = tmp_path / "empty.txt"
    empty.write_text("\n \n")
    with pytest.raises(ValueError, match=r"empty\.txt: there is no text in it"):
        from_model(tiny_model, empty)


def test_noise_is_softmax_of_independent_normal_queries_and_keys():
    seed = np.random.SeedSequence(0)
    p = next(spectrum_inputs.of_noise(2, 30, 40, 16, seed))
    assert p.shape == (2, 30, 40)
    assert p.dtype == np.float32
    assert np.array_equal(p, next(spectrum_inputs.of_noise(2, 30, 40, 16, seed)))
    # log p plus the logarithm of its row's sum is q.k/sqrt(D), of variance 1. The row's part falls out of differences,
    # whose variance is 2.
    differences = np.diff(np.log(p)[:, :, ::2], axis=-1)[:, :, ::2]
    # 600 of them, dependent through 30 queries and 40 keys: 5 standard deviations of a variance over 30 rows.
    assert differences.var() == pytest.approx(2, rel=5 * np.sqrt(2 / 60))
