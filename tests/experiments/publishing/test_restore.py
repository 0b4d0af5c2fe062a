import json

import numpy as np

from linattn_ref.experiments.publishing import record
from linattn_ref.experiments.publishing.restore import Results, restore


class Inner(Results):
    def double(self):
        return 2 * self.x


class Outer(Results):
    inner: tuple[Inner, ...]
    named: dict[str, Inner]


VALUE = Outer(
    array=np.float32([[0.1, np.inf]]),
    some=np.array([np.nan, 0.5]),
    ragged=[[1.0], [2.0, 3.0]],
    words=("a", "b"),
    nothing=None,
    inner=(Inner(x=float("nan")), Inner(x=1.5)),
    named={"a": Inner(x=2)},
    anything={"k": [1, "b"], "x": {"y": 3}},
)


def test_what_was_plain_is_what_it_was():
    text = record.json_text(record.plain(VALUE))
    back = restore(Outer, json.loads(text))
    np.testing.assert_array_equal(back.array, [[0.1, np.inf]])
    np.testing.assert_array_equal(back.some, VALUE.some)
    assert back.array.dtype == back.some.dtype == np.float64
    assert [row.tolist() for row in back.ragged] == [[1.0], [2.0, 3.0]]
    assert (back.words, back.nothing, back.anything.x.y) == (("a", "b"), None, 3)
    assert record.json_text(record.plain(back)) == text


def test_what_has_methods_of_its_own_has_them_again():
    back = restore(Outer, json.loads(record.json_text(record.plain(VALUE))))
    assert np.isnan(back.inner[0].double())
    assert back.inner[1].double() == 3.0
    assert (type(back), back.named["a"].double()) == (Outer, 4)
    assert type(back.anything) is type(restore(Results, {})) is Results
