"""What makes of a page's function the one that users call: what it names, what it leads to, and how often it looks."""

import inspect
import pydoc
from itertools import product
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from cases import each_setting
from numpy.lib.stride_tricks import as_strided

from linattn_ref.attention import delta, linear, linformer, performer, rfa, softmax
from linattn_ref.kernels import jit, reference
from linattn_ref.op.backends import PAGES, backend_of
from linattn_ref.op.entry import Entry, op

X = np.random.default_rng(0).standard_normal((3, 4))
E = linformer.mean_pool(2, 3)


# --- What it says --------------------------------------------------------------------------------------------------


WRONG = {
    "missing": lambda f: f.forward(X, X, X),
    "unknown": lambda f: f.forward(X, X, X, scales=1.0),
    "too many": lambda f: f.forward(X, X, X, X, X, X, X, X),
    "twice": lambda f: f.forward(X, q=X),
    "nothing": lambda f: f.forward(),
    "missing in backward": lambda f: f.backward(X),
    "missing in step": lambda f: f.step(X[0]),
}


@pytest.mark.parametrize(("module", "call"), [*product([performer], WRONG), *product([rfa], [*WRONG][:-1])])
def test_a_wrong_call_is_told_as_python_tells_it(module, call):
    """In the words that the page's own function has for it, its name among them, and with nothing behind it."""
    page = SimpleNamespace(**{name: getattr(module, name).page for name in ("forward", "backward", "step")})
    with pytest.raises(TypeError) as expected:
        WRONG[call](page)
    with pytest.raises(TypeError) as told:
        WRONG[call](module)
    assert str(told.value) == str(expected.value)
    assert told.value.__context__ is None


@pytest.mark.parametrize("module", [softmax, linear, delta, rfa], ids=["softmax", "linear", "delta", "rfa"])
def test_so_is_a_wrong_call_of_what_is_written_once_for_all_pages(module):
    for call, match in (
        (lambda: module.step(X[0]), r"^step\(\) missing a required argument: 'k_t'"),
        (lambda: module.step(X[0], k=X), r"^step\(\) .*'k'|^step\(\) missing a required argument: 'k_t'"),
        (lambda: module.init_state(), r"^init_state\(\) missing [34] required positional arguments: 'leading'"),
    ):
        with pytest.raises(TypeError, match=match) as told:
            call()
        assert told.value.__context__ is None


def test_an_argument_of_another_kind_names_it():
    with pytest.raises(TypeError, match=r"^v: expected a numpy\.ndarray, got int") as told:
        softmax.forward(X, X, 3)
    assert told.value.__context__ is None


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (softmax.forward, ("... N D", "... L D", "... L M", "... L", "out", "kernels")),
        (softmax.step, ("... D", "... M", "overwrite_state", "kernels")),
        (softmax.matrix, ("... N D", "... L D")),
        (linear.init_state, ("capacity", "kernels")),
        (performer.forward, ("m D",)),
        (delta.forward, ("... N C", "... N", "... N C?")),
    ],
    ids=["forward", "step", "matrix", "init_state", "constant", "gate"],
)
def test_help_shows_shapes_and_what_stands_at_the_entrance(function, shapes):
    text = pydoc.plain(pydoc.render_doc(function))
    for shape in shapes:
        assert (f'"{shape}"' if " " in shape else f"{shape}=") in text.replace("'", '"'), shape


def test_its_page_is_the_function_alone():
    assert softmax.forward.__doc__ == softmax.forward.page.__doc__
    assert [*inspect.signature(softmax.forward).parameters][-2:] == ["out", "kernels"]
    assert not {"out", "kernels"} & {*inspect.signature(softmax.forward.page).parameters}
    half = X.astype(np.float16)
    with pytest.raises(TypeError, match=r"^q: expected float32 or float64, got float16"):
        softmax.forward(half, half, half)
    assert softmax.forward.page(half, half, half)[0].dtype == np.float16


# --- How often it looks ----------------------------------------------------------------------------------------------


@pytest.fixture
def looked(monkeypatch):
    """The names of the functions whose arguments were looked at."""
    from linattn_ref.op import entry

    names, check = [], entry.check

    def counted(arguments, *rest):
        names.append([*arguments])
        return check(arguments, *rest)

    monkeypatch.setattr(entry, "check", counted)
    return names


def never_seen():
    """An array of a shape that no other test has, so that no call with it is known."""
    never_seen.count = getattr(never_seen, "count", 40) + 1
    return np.ones((never_seen.count, 4))


def test_calls_within_a_call_are_not_looked_at_again(looked):
    """Performer calls linear attention, which calls its page of exponential features."""
    x = never_seen()
    _, saved = performer.forward(x, x, x, np.ones((2, 4)))
    assert [names[3] for names in looked] == ["omega"]
    performer.backward(x, saved)
    assert len(looked) == 2


def test_what_comes_again_is_not_looked_at_again(looked):
    x = never_seen()
    for _ in range(3):
        softmax.forward(x, x, x, scale=2.0)
    assert len(looked) == 1
    softmax.forward(x, x, x, scale=3.0)
    softmax.forward(x, x, x.astype(np.float64)[:, :2], scale=2.0)
    assert len(looked) == 3


@pytest.mark.parametrize(
    ("changed", "error", "match"),
    [
        ({"v": X[:2]}, ValueError, r"^v: expected shape"),
        ({"k": X.astype(np.float32)}, TypeError, r"^k: expected float64"),
        ({"key_mask": np.ones(3)}, TypeError, r"^key_mask: expected an array of bool"),
        ({"causal": 1}, TypeError, r"^causal: expected True or False"),
        ({"scale": np.nan}, ValueError, r"^scale: expected a finite number"),
        ({"scale": True}, TypeError, r"^scale: expected a number or None"),
        ({"kernels": np}, TypeError, r"^kernels: "),
        ({"out": np.broadcast_to(0.0, (3, 4))}, ValueError, r"^out: expected an array that can be written to"),
        ({"out": as_strided(np.ones(4), (3, 4), (0, 8))}, ValueError, r"^out: expected axes that do not overlap"),
        ({"out": np.ones((3, 4), np.float32)}, TypeError, r"^out: expected a numpy\.ndarray of float64"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else None,
)
def test_nothing_wrong_passes_for_what_was_seen(changed, error, match):
    """However like it that is."""
    options = {"causal": True, "scale": 1, "key_mask": np.ones(3, bool), "out": np.ones((3, 4)), "kernels": jit}
    call = {"q": X, "k": X, "v": X, **options}
    softmax.forward(**call)
    with pytest.raises(error, match=match):
        softmax.forward(**{**call, **changed})


@each_setting(lambda s: not s.masked)
def test_a_backward_pass_like_the_last_is_not_checked_again(setting, monkeypatch):
    call = setting.call()
    out, saved = call.forward()
    call.case.backward(out, saved)
    monkeypatch.setattr(Entry, "first_call", None)
    call.case.backward(out, saved)


def test_a_call_of_somebodys_own_page_is_remembered(monkeypatch):
    """What is decorated cannot become another."""
    mine = op(forward_of_mine)
    mine(X, scale=2.0)
    monkeypatch.setattr(Entry, "first_call", None)
    assert (mine(X, scale=2.0) == 2 * X).all()


def forward_of_mine(q: np.ndarray, *, scale: float = 1.0) -> np.ndarray:
    return scale * q


def test_kinds_of_calls_are_not_remembered_without_end(monkeypatch):
    """As of a cache that grows with every step."""
    from linattn_ref.op import entry

    of_softmax, remembered = softmax.forward.check.__self__, []
    monkeypatch.setattr(entry, "REMEMBERED", 3)
    monkeypatch.setattr(of_softmax, "known", {})
    for n in range(1, 6):
        softmax.forward(*np.ones((3, n, 2)))
        remembered.append(len(of_softmax.known))
    assert remembered == [1, 2, 3, 1, 2]
    monkeypatch.setattr(entry, "REMEMBERED", 1)  # as if other threads had added some at the same time
    softmax.forward(*np.ones((3, 6, 2)))
    assert len(of_softmax.known) == 1


def test_calls_by_name_are_remembered_too(monkeypatch):
    arrays = {"q": X, "k": X, "v": X}
    for module in (softmax, linear):
        _, saved = module.forward(**arrays)
        module.backward(d_out=X, saved=saved)
    monkeypatch.setattr(Entry, "first_call", None)
    for module in (softmax, linear):
        _, saved = module.forward(**arrays)
        module.backward(d_out=X, saved=saved)


def test_values_are_looked_at_every_time():
    beta = np.full(3, 0.5)
    delta.forward(X, X, X, beta)
    with pytest.raises(ValueError, match=r"^beta: expected numbers from 0 to 2"):
        delta.forward(X, X, X, beta + 2)
    out = np.empty_like(X)
    delta.forward(X, X, X, beta, out=out)
    with pytest.raises(ValueError, match=r"^beta: expected numbers from 0 to 2"):
        delta.forward(X, X, X, beta + 2, out=out)
    state, one = delta.init_state((), 4, 4), np.array(0.5)
    _, state = delta.step(X[0], X[0], X[0], state, one, overwrite_state=True)
    with pytest.raises(ValueError, match=r"^beta_t: expected numbers from 0 to 2"):
        delta.step(X[0], X[0], X[0], state, one + 2, overwrite_state=True)


# --- Backends --------------------------------------------------------------------------------------------------------


class Saved(NamedTuple):
    """What a backend of a test saved."""

    q: object
    k: object
    v: object
    state: object


def forward(q, k, v, *, state=None, **options):
    return np.full((*q.shape[:-1], v.shape[-1]), 7.0), Saved(q, k, v, state)


def backward(d_out, saved):
    return softmax.Gradients(saved.q + 1, saved.k + 2, saved.v + 3)


SEVENS = SimpleNamespace(softmax=SimpleNamespace(forward=forward, backward=backward, Saved=Saved))


def test_a_backend_of_your_own():
    """Anything with a page by its name. The backward pass is that of the module whose ``Saved`` it is."""
    out, saved = softmax.forward(X, X, X, kernels=SEVENS)
    assert (out == 7).all()
    for found, more in zip(softmax.backward(out, saved), (1, 2, 3), strict=True):
        np.testing.assert_array_equal(found, X + more)


def test_a_function_of_your_own_that_was_replaced_is_the_new_one():
    """As after a reload; in a module, which is the same object before and after."""
    mine = ModuleType("mine")
    for number in (1.0, 2.0):
        mine.softmax = SimpleNamespace(
            forward=lambda q, k, v, number=number, **_: (0 * v + number, Saved(q, k, v, None))
        )
        assert (softmax.forward(X, X, X, kernels=mine)[0] == number).all()


def test_a_backward_pass_that_is_nowhere_is_told(monkeypatch):
    out, saved = softmax.forward(X, X, X, kernels=SEVENS)
    monkeypatch.delattr(f"{__name__}.backward")
    with pytest.raises(TypeError, match=rf"saved: {__name__} has no function backward that goes with its class Saved"):
        softmax.backward(out, saved)


def test_what_a_backward_pass_computes_again_it_computes_where_the_forward_pass_did():
    """`reference` is the name of the pages themselves, and has none of them."""
    assert not hasattr(reference, "softmax")
    assert backend_of(softmax.forward(X, X, X)[1]) == PAGES
    assert backend_of(softmax.forward(X, X, X, kernels=jit)[1]) is jit


def test_a_page_made_of_others_runs_on_theirs():
    """Linformer is the softmax attention of mixed keys, and has no page in either backend."""
    out, saved = linformer.forward(X, X, X, E, E, kernels=SEVENS)
    assert (out == 7).all()
    assert type(saved.attention if hasattr(saved, "attention") else saved[-1]) is Saved
    _, saved = linformer.forward(X, X, X, E, E, kernels=jit)
    assert any(type(part) is jit.softmax.Saved for part in saved)


def test_what_a_backend_lacks_runs_as_it_stands():
    """Here a state, and a step, which is the forward pass of one row and so the backend's."""
    state = softmax.init_state((), 4, 4, kernels=SEVENS)
    assert type(state) is softmax.State
    out, after = softmax.step(X[0], X[0], X[0], state, kernels=SEVENS)
    assert (out == 7).all()
    assert after is state


def test_the_pages_themselves_go_by_the_name_that_help_shows():
    """Also if somebody types it, which makes another text of the same letters."""
    x, shown = never_seen(), inspect.signature(softmax.forward).parameters["kernels"].default
    for kernels in ("".join([*shown]), shown, reference):
        assert backend_of(softmax.forward(x, x, x, kernels=kernels)[1]) == PAGES


@pytest.mark.parametrize("kernels", [np, None, "jit", object(), np.ones(3), SimpleNamespace(linear=linear)])
def test_one_without_the_page_is_refused(kernels):
    names = r"linattn_ref\.kernels\.reference, linattn_ref\.kernels\.jit, linattn_ref\.kernels\.cuda"
    with pytest.raises(TypeError, match=rf"^kernels: expected a backend with the page 'softmax' \({names}, or your"):
        softmax.forward(X, X, X, kernels=kernels)
    with pytest.raises(TypeError, match=r"^kernels: expected a backend with the page 'linformer' or 'softmax'"):
        linformer.forward(X, X, X, E, E, kernels=kernels)


def test_the_name_of_a_backend_is_none():
    with pytest.raises(TypeError, match=r"^kernels: .* got the name 'linattn_ref.kernels.jit' alone"):
        softmax.forward(X, X, X, kernels=jit.__name__)


@pytest.mark.parametrize("wrong", [softmax.Gradients(X, X, X), softmax.init_state((), 4, 4)])
def test_what_else_a_page_returns_is_not_what_it_saved(wrong):
    with pytest.raises(
        TypeError, match=r"^saved: expected what forward returned second, softmax\.Saved, got softmax\."
    ):
        softmax.backward(X, wrong)


def test_pages_of_the_same_name_elsewhere_are_no_others():
    """What one page saved another's backward pass refuses, also where a backend saved it."""
    for kernels in (reference, jit):
        out, saved = softmax.forward(X, X, X, kernels=kernels)
        with pytest.raises(TypeError, match=r"^saved: expected what forward returned second, linear\.Saved, got so"):
            linear.backward(out, saved)


# --- out, and states that are worked in ------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", [reference, jit, SEVENS], ids=["reference", "jit", "own"])
def test_a_backend_that_cannot_write_there_is_copied_from(kernels):
    out = np.full((2, 3, 4), np.nan)[0]
    expected, _ = softmax.forward(X, X, X, kernels=kernels)
    got, _ = softmax.forward(X, X, X, out=out, kernels=kernels)
    assert got is out
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("overwrite_state", [1, None, "yes"])
def test_overwrite_state_is_true_or_false(overwrite_state):
    state = linear.init_state((), 4, 4)
    with pytest.raises(TypeError, match=rf"^overwrite_state: expected True or False, got {overwrite_state!r}"):
        linear.step(*X, state, overwrite_state=overwrite_state)
