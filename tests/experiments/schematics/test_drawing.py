import numpy as np
import pytest
from matplotlib.patches import Rectangle

from linattn_ref.experiments.publishing import style
from linattn_ref.experiments.publishing.pairs import PAIRS, paint
from linattn_ref.experiments.schematics.drawing import WIDTH, Box, Cells, Ghost, Sheet, Stack
from linattn_ref.experiments.schematics.parts import EQUALS, PRODUCT

Q, K = Box("Q", "N", "D", "queries"), Box("K", "D", "L", "keys")


def frames(sheet):
    with style.use("paper"):
        axes = sheet.figure("title").axes[0]
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)], [text.get_text() for text in axes.texts]


def test_boxes_are_as_large_as_their_letters_say():
    sheet = Sheet({"N": 7, "D": 2, "L": 5})
    end = sheet.row(1, 0, Q)
    sheet.row(end + 2, 0, K)
    drawn, _ = frames(sheet)
    assert [(patch.get_width(), patch.get_height()) for patch in drawn] == [(2, 7), (5, 2)]
    assert [patch.get_x() for patch in drawn] == [1, 5]
    assert sheet.boxes == [Q, K]


def test_a_product_says_what_is_summed():
    sheet = Sheet()
    sheet.row(0, 0, Q, PRODUCT, K, EQUALS, Box("A", "N", "L", "weights"))
    _, texts = frames(sheet)
    assert texts.count("sum over D") == 1
    assert {"Q", "K", "A", "N", "D", "L", "title"} <= set(texts)


def test_a_product_that_does_not_fit_cannot_be_drawn():
    with pytest.raises(ValueError, match=r"no product of .*: D columns, N rows"):
        Sheet().row(0, 0, Q, PRODUCT, Q)
    near = Cells(np.zeros((2, 2), int))
    both = [Box("", "N", "R", "weights"), near]
    values = Stack((Box("", "R", "M", "values"), Box("V", "L", "M", "values")))
    Sheet().row(0, 0, both, PRODUCT, values)  # R + L and R + L
    with pytest.raises(ValueError, match=r"R \+ L columns, L rows"):
        Sheet().row(0, 0, both, PRODUCT, values.boxes[1])


def test_a_ghost_is_multiplied_by_what_is_inside_it():
    p = Ghost(inside=Box("P", "N", "R", "weights"))
    Sheet().row(0, 0, p, PRODUCT, Box("V", "R", "M", "values"))
    with pytest.raises(ValueError, match="R columns, L rows"):
        Sheet().row(0, 0, p, PRODUCT, Box("V", "L", "M", "values"))


def test_what_is_wider_than_the_page_is_an_error():
    sheet = Sheet({"L": int(WIDTH)})
    sheet.row(0, 0, K)
    with pytest.raises(ValueError, match=r"the picture is .* wide, the page"):
        sheet.figure("title")


def test_cells_are_drawn_where_there_are_pairs_in_the_colour_of_their_reason():
    near, whole = np.eye(3, dtype=bool), np.tri(3, dtype=bool)
    painted = paint([("global", whole), ("window or block", near)])
    assert [list(PAIRS)[i] for i in painted[2]] == ["global", "global", "window or block"]
    sheet = Sheet()
    sheet.row(0, 0, Cells(painted))
    drawn, _ = frames(sheet)
    assert len(drawn) == 6 + 1  # and the frame
