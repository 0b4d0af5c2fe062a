"""The comparison of Performers: what it runs and says. No time is tested."""

from types import SimpleNamespace

import pytest

from linattn_ref.experiments.benches import bench_performer

pytestmark = pytest.mark.slow  # kernels are compiled for float32 for the slow tests

SMALL = {"lengths": (5, 70), "heads": 2, "width": 4, "features": 6, "repeats": 2}
SETTINGS = {
    (task, passes) for task in (bench_performer.ALL, bench_performer.CAUSAL) for passes in bench_performer.PASSES
}


def fake_peer(torch, causal_error=0.0):
    """What of performer-pytorch is used, made of PyTorch's own operations."""

    def softmax_kernel(x, *, projection_matrix, is_query, eps):
        x = x * x.shape[-1] ** -0.25
        p = x @ projection_matrix.mT - (x**2).sum(-1, keepdim=True) / 2
        return torch.exp(p - p.amax((-1,) if is_query else (-1, -2), keepdim=True)) + eps

    def attend(similarity, v):
        return similarity / similarity.sum(-1, keepdim=True) @ v

    def causal_form(q, k, v, eps=1e-6):
        return attend(torch.tril(q @ k.mT), v) * (1 + causal_error)

    class FastAttention:
        def __init__(self, width, features, causal):
            self.projection_matrix = torch.zeros(features, width)
            self.form = causal_form if causal else module.linear_attention

        def __call__(self, q, k, v):
            q, k = (
                softmax_kernel(x, projection_matrix=self.projection_matrix, is_query=x is q, eps=1e-4) for x in (q, k)
            )
            return self.form(q, k, v)

    module = SimpleNamespace(
        softmax_kernel=softmax_kernel,
        linear_attention=lambda q, k, v: attend(q @ k.mT, v),
        causal_linear_attention_noncuda=causal_form,
        FastAttention=FastAttention,
    )
    return module


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="needs the extra: peers")


def test_beside_performer_pytorch(torch, monkeypatch):
    monkeypatch.setattr(bench_performer, "find_peer", lambda: fake_peer(torch))
    monkeypatch.setattr(bench_performer, "BOTH_LONGEST", 5)
    results = bench_performer.compute(**SMALL)
    assert set(results.versions) == {"PyTorch", "performer-pytorch"}
    theirs = {(row.task, row.passes, row.size) for row in results.rows if row.name == bench_performer.PEER}
    left_out = {("causal", "forward + backward", 70)}  # its memory
    assert theirs == {(*setting, n) for setting in SETTINGS for n in SMALL["lengths"]} - left_out
    assert "Not compared here" not in bench_performer.table(results)


def test_a_wrong_result_is_not_timed(torch, monkeypatch):
    monkeypatch.setattr(bench_performer, "find_peer", lambda: fake_peer(torch, causal_error=0.01))
    with pytest.raises(RuntimeError, match=r"forward, size=5: performer-pytorch and jit differ in out by 1\.0e-02"):
        bench_performer.compute(**SMALL)
