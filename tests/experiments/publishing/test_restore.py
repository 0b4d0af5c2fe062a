import json

import numpy as np

from linattn_ref.experiments.publishing import record
from linattn_ref.experiments.publishing.restore import Results, restore

VALUE = Results(
    array=np.float32([[0.1, np.inf]]),
    some=np.array([np.nan, 0.5]),
    ragged=[[1.0], [2.0, 3.0]],
    words=("a", "b"),
    nothing=None,
    inner=(Results(x=float("nan")), Results(x=1.5)),
    anything={"k": [1, "b"], "x": {"y": 3}},
)


def test_what_was_plain_is_what_it_was():
    text = record.json_text(record.plain(VALUE))
    back = restore(json.loads(text))
    np.testing.assert_array_equal(back.array, [[0.1, np.inf]])
    np.testing.assert_array_equal(back.some, VALUE.some)
    assert back.array.dtype == back.some.dtype == np.float64
    assert [row.tolist() for row in back.ragged] == [[1.0], [2.0, 3.0]]
    assert (back.words, back.nothing, back.anything.x.y) == (("a", "b"), None, 3)
    assert np.isnan(back.inner[0].x)
    assert (back.inner[1].x, type(back), type(back.inner[1])) == (1.5, Results, Results)
    assert record.json_text(record.plain(back)) == text
