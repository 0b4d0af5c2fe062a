"""Layers, losses and optimisers beside PyTorch's, in float64: outputs, gradients, and twenty steps."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra peers)")

from linattn_ref.kernels import jit, reference  # noqa: E402
from linattn_ref.nn import (  # noqa: E402
    affine,
    cross_entropy,
    ctc,
    feed_forward,
    gelu,
    layer_norm,
    lstm,
    positions,
)
from linattn_ref.training import adam, clip, radam, schedule, sgd  # noqa: E402

rooms = pytest.mark.parametrize("room", [reference, jit], ids=["reference", "jit"])
RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 5, 4))


def leaf(x):
    return torch.tensor(x, requires_grad=True)


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-11, atol=1e-13)


def test_affine():
    params = affine.draw(4, 3, RNG)
    y, saved = affine.forward(X, params)
    layer, x = torch.nn.Linear(4, 3, dtype=torch.float64), leaf(X)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(params.w.T))
        layer.bias.copy_(torch.tensor(params.b))
    theirs = layer(x)
    theirs.square().sum().backward()
    grads = affine.backward(2 * y, saved)
    close(y, theirs)
    close(grads.x, x.grad)
    close(grads.params.w, layer.weight.grad.T)
    close(grads.params.b, layer.bias.grad)


@rooms
def test_gelu(room):
    x = leaf(X)
    theirs = torch.nn.functional.gelu(x)
    theirs.sum().backward()
    y, saved = gelu.forward(X, kernels=room)
    close(y, theirs)
    close(gelu.backward(np.ones_like(y), saved).x, x.grad)


@rooms
def test_layer_norm(room):
    params = layer_norm.Params(*RNG.standard_normal((2, 4)))
    x, gain, bias = leaf(X), *(leaf(array) for array in params)
    theirs = torch.nn.functional.layer_norm(x, (4,), gain, bias)
    theirs.square().sum().backward()
    y, saved = layer_norm.forward(X, params, kernels=room)
    grads = layer_norm.backward(2 * y, saved)
    close(y, theirs)
    close(grads.x, x.grad)
    close(grads.params.gain, gain.grad)
    close(grads.params.bias, bias.grad)


@rooms
@pytest.mark.parametrize(("weighted", "smoothing"), [(False, 0.0), (True, 0.0), (False, 0.2)])
def test_cross_entropy(weighted, smoothing, room):
    """PyTorch has a weight a class: the weight of a target is that of its class."""
    scores, targets = RNG.standard_normal((7, 4)), RNG.integers(0, 4, 7)
    targets[3] = cross_entropy.IGNORE
    of_class = RNG.random(4) + 0.5 if weighted else None
    weights_of_class = None if of_class is None else torch.tensor(of_class)
    x = leaf(scores)
    theirs = torch.nn.functional.cross_entropy(
        x, torch.tensor(targets), weight=weights_of_class, label_smoothing=smoothing
    )
    theirs.backward()
    weight = None if of_class is None else of_class[np.maximum(targets, 0)]
    loss, saved = cross_entropy.forward(scores, targets, weight=weight, label_smoothing=smoothing, kernels=room)
    close(loss, theirs)
    close(cross_entropy.backward(1.0, saved).scores, x.grad)


@pytest.mark.parametrize("infinite_to_zero", [False, True])
def test_ctc(infinite_to_zero):
    """Repeated labels, none, and with the option also more than the frames can say; PyTorch's gradient is NaN there."""
    scores, targets = RNG.standard_normal((4, 9, 5)), RNG.integers(1, 5, (4, 4))
    targets[1], frames, lengths = 2, np.array([9, 7, 6, 9]), np.array([4, 4, 0, 3])
    frames[1] -= infinite_to_zero
    x = leaf(scores)
    log_y = x.log_softmax(dim=-1).transpose(0, 1)
    theirs = torch.nn.functional.ctc_loss(
        log_y, *map(torch.tensor, (targets, frames, lengths)), zero_infinity=infinite_to_zero
    )
    theirs.backward()
    loss, saved = ctc.forward(scores, targets, frames=frames, lengths=lengths, infinite_to_zero=infinite_to_zero)
    close(loss, theirs)
    close(ctc.backward(1.0, saved).scores, x.grad)


def test_lstm():
    """In both directions, with sequences of several lengths packed, from any beginning."""
    x, lengths = leaf(RNG.standard_normal((3, 7, 4))), np.array([7, 4, 2])
    starts = [leaf(start) for start in RNG.standard_normal((2, 2, 3, 5))]
    layer = torch.nn.LSTM(4, 5, bidirectional=True, batch_first=True, dtype=torch.float64)
    names = "weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"

    def as_ours(of):
        sides = ([of(getattr(layer, name + suffix)).numpy() for name in names] for suffix in ("", "_reverse"))
        return lstm.Params(*(lstm.Direction(w.T.copy(), u.T.copy(), (b, b_more)) for w, u, b, b_more in sides))

    params = lstm.Params(*(side._replace(b=sum(side.b)) for side in as_ours(lambda parameter: parameter.detach())))
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), batch_first=True)
    theirs, _ = torch.nn.utils.rnn.pad_packed_sequence(layer(packed, tuple(starts))[0], batch_first=True)
    theirs.square().sum().backward()
    h0, c0 = (start.detach().numpy() for start in starts)
    y, saved = lstm.forward(x.detach().numpy(), params, h0, c0, lengths=lengths)
    grads = lstm.backward(2 * y, saved)
    close(y, theirs)
    for ours, theirs in zip((grads.x, grads.h0, grads.c0), (x, *starts), strict=True):
        close(ours, theirs.grad)
    for ours, side in zip(grads.params, as_ours(lambda parameter: parameter.grad), strict=True):
        for a, b in ((ours.w, side.w), (ours.u, side.u), *((ours.b, b) for b in side.b)):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


OPTIMISERS = {
    "sgd": (sgd, torch.optim.SGD, {"lr": 0.05}, {}),
    "sgd, momentum": (sgd, torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}, {}),
    "sgd, nesterov": (sgd, torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}, {}),
    "adam": (adam, torch.optim.Adam, {"lr": 0.05}, {}),
    "adam, decay": (adam, torch.optim.Adam, {"lr": 0.05, "weight_decay": 0.1, "betas": (0.8, 0.9)}, {}),
    "adamw": (adam, torch.optim.AdamW, {"lr": 0.05, "weight_decay": 0.1}, {"decoupled": True}),
    "radam": (radam, torch.optim.RAdam, {"lr": 0.05, "betas": (0.9, 0.99)}, {}),
    "radam, decoupled": (
        radam,
        torch.optim.RAdam,
        {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True},
        {"decoupled": True},
    ),
}


@rooms
@pytest.mark.parametrize("name", OPTIMISERS)
def test_twenty_steps(name, room):
    """A feed-forward layer learns random numbers, from the same start, clipped in the same way."""
    optimiser, theirs, options, own = OPTIMISERS[name]
    goal = RNG.standard_normal(X.shape)
    params = feed_forward.draw(4, 6, RNG)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.GELU(), torch.nn.Linear(6, 4)).double()
    with torch.no_grad():
        for layer, ours in zip((model[0], model[2]), params, strict=True):
            layer.weight.copy_(torch.tensor(ours.w.T))
            layer.bias.copy_(torch.tensor(ours.b))
    step_theirs, state = theirs(model.parameters(), **options), optimiser.init_state(params)
    renamed = {"learning_rate" if key == "lr" else key: value for key, value in options.items()}
    renamed.pop("decoupled_weight_decay", None)
    if optimiser is not sgd:
        renamed["kernels"] = room
    for _ in range(20):
        step_theirs.zero_grad()
        (model(torch.tensor(X)) - torch.tensor(goal)).square().sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        step_theirs.step()
        y, saved = feed_forward.forward(X, params)
        grads = feed_forward.backward(2 * (y - goal), saved).params
        assert clip.by_global_norm(grads, 5.0) == pytest.approx(norm.item(), rel=1e-9)
        state = optimiser.step(params, grads, state, **renamed, **own)
    for layer, ours in zip((model[0], model[2]), params, strict=True):
        np.testing.assert_allclose(ours.w, layer.weight.detach().numpy().T, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(ours.b, layer.bias.detach().numpy(), rtol=1e-9, atol=1e-11)


def test_cosine():
    p = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([p], lr=0.3)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=7, eta_min=0.1)
    for t in range(7):
        assert schedule.cosine(t, peak=0.3, steps=7, last=0.1) == pytest.approx(optimiser.param_groups[0]["lr"])
        optimiser.step()
        theirs.step()


def test_learned_positions_are_an_embedding():
    params = positions.draw(9, 4, RNG)
    x, table = leaf(X), torch.nn.Embedding(9, 4, dtype=torch.float64)
    with torch.no_grad():
        table.weight.copy_(torch.tensor(params.table))
    theirs = x + table(torch.arange(2, 7))
    theirs.square().sum().backward()
    y, saved = positions.forward(X, params, first=2)
    grads = positions.backward(2 * y, saved)
    close(y, theirs)
    close(grads.x, x.grad)
    close(grads.params.table, table.weight.grad)
