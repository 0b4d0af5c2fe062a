"""`linattn_ref.nn.pre_norm`, keeping none of the norms' results: the backward pass makes them again."""

from linattn_ref.nn import layer_norm
from linattn_ref.nn import pre_norm as page

__all__ = ["Saved", "backward", "forward"]


class Saved(page.Saved):
    """What the backward pass needs, without what the norms returned."""


def forward(x, *args, **options):
    y, saved = page.forward.page(x, *args, **options)
    attention, inside = (with_x(one, None) for one in (saved.attention, saved.feed_forward))
    return y, Saved(*saved._replace(attention=attention, feed_forward=inside))


def backward(d_y, saved):
    attention = with_x(saved.attention, again(saved.norm_1))
    inside = with_x(saved.feed_forward, again(saved.norm_2))
    return page.backward.page(d_y, page.Saved(*saved._replace(attention=attention, feed_forward=inside)))


def again(norm):
    """What the norm returned."""
    return layer_norm.forward(norm.x, norm.params, eps=norm.eps)[0]


def with_x(saved, x):
    """What a layer saved, with this as its input."""
    return saved._replace(inner=saved.inner._replace(x=x))
