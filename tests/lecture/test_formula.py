"""The docstrings' notation, typeset: each rule, and that no equation of the package is left as it is typed."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import linattn_ref
from linattn_ref.lecture.site import beside, pages, prose
from linattn_ref.lecture.site.formula import FormulaError, is_formula, tex

PACKAGE = Path(linattn_ref.__file__).parent
NUMBERED = re.compile(r"^ {4}.*?\S\s+\((\d+)\)(?:\s|$)", re.MULTILINE)


@pytest.mark.parametrize(
    ("typed", "set_"),
    [
        ("S = sum_j phi(k_j) v_j^T", r"S = \sum_{j} \phi(k_{j})\, v_{j}^{\top}"),
        ("P_ij = exp(A_ij) / sum_l exp(A_il)", r"P_{ij} = \frac{\exp(A_{ij})}{\sum_{l} \exp(A_{il})}"),
        (
            "out_i = phi(q_i)^T S / (phi(q_i)^T Z + eps)",
            r"\mathrm{out}_{i} = \frac{\phi(q_{i})^{\top}\, S}{\phi(q_{i})^{\top}\, Z + \varepsilon}",
        ),
        ("P~ = softmax(scale Q K~^T)", r"\tilde{P} = \operatorname{softmax}(\mathrm{scale}\, Q\, \tilde{K}^{\top})"),
        ("dK- += dA W_p^T", r"\mathrm{d}\bar{K} \mathrel{+}= \mathrm{d}A\, W_{p}^{\top}"),
        ("d_k^_i = d_e_i", r"\mathrm{d}\hat{k}_{i} = \mathrm{d}e_{i}"),
        ("d_ij . d_v_i", r"d_{ij} \cdot \mathrm{d}v_{i}"),
        ("|q^ - k^|^2/2", r"|\hat{q} - \hat{k}|^{2} / 2"),
        ("|A|_1 |A|_inf", r"|A|_{1}\, |A|_{\infty}"),
        ("-<A_t, S_{t-1}> / n", r"- \frac{\langle A_{t},\, S_{t - 1}\rangle }{n}"),
        ("v_(i + t - K // 2)", r"v_{i + t - \lfloor K / 2 \rfloor}"),
        ("sum_{j in W_i u G} P_ij", r"\sum_{j \in W_{i} \cup G} P_{ij}"),
        ("x + 1 if x > 0 else exp(x)", r"x + 1\ \text{if}\ x > 0\ \text{else}\ \exp(x)"),
        ("log sum_j exp(a_j) / c_j", r"\log \sum_{j} \frac{\exp(a_{j})}{c_{j}}"),
        ("A * (dA - rowsum(dA * A))", r"A \odot (\mathrm{d}A - \operatorname{rowsum}(\mathrm{d}A \odot A))"),
        ("x / 2m y", r"\frac{x}{2 m}\, y"),
        ("sum of path_t over all t", r"\text{sum of path_t over all}\ t"),
        ("Z <- 1e-3 Z", r"Z \leftarrow 10^{-3}\, Z"),
        ("blank'(l) = y(-)", r"\operatorname{blank}^{\prime}(l) = y(-)"),
        ("dlog P_k / dlog s_k", r"\frac{\mathrm{d}\log P_{k}}{\mathrm{d}\log s_{k}}"),
        ("x / log 2", r"\frac{x}{\log 2}"),
    ],
)
def test_each_rule_of_the_notation(typed, set_):
    assert tex(typed, display=True) == set_


@pytest.mark.parametrize("typed", ["(a + b", "a + b)", "[a)", "a # b", "x_", "dK of parts/masks.py", "1 / sqrt width"])
def test_what_is_no_formula_is_an_error(typed):
    with pytest.raises(FormulaError):
        tex(typed)


@pytest.mark.parametrize("text", ["phi(q_i) . phi(k_j)", "O(N^2 max(D, M))", "dK~", "eps", "i >= j", "1/sqrt(D)"])
def test_mathematics_between_backticks(text):
    assert is_formula(text)


@pytest.mark.parametrize(
    "text", ["forward", "(..., N, M)", "(R, L)", "linear.py", "key_mask", "causal=True", "x @ y", "d_out", "saved.v"]
)
def test_code_between_backticks(text):
    assert not is_formula(text)


def files():
    return [path for part in pages.LITERATE for path in sorted((PACKAGE / part).glob("*.py"))]


def test_every_numbered_equation_of_every_mechanism_is_typeset():
    found = 0
    for path in files():
        source = path.read_text(encoding="utf-8")
        docstring = inspect.cleandoc(ast.get_docstring(ast.parse(source)) or "")
        numbers = set(NUMBERED.findall(docstring))
        typeset = prose.equations(docstring)
        assert numbers <= set(typeset), path
        if "kernels" not in path.parts:  # whose numbers are those of their page
            in_prose = prose.REFERENCE.findall(re.sub(r"^ {4}.*", "", docstring, flags=re.MULTILINE))
            assert {x for tags in beside.tags(source).values() for x in tags} <= {*typeset, *in_prose}, path
        found += len(typeset)
        for number, row in typeset.items():
            bare = re.sub(r"\\(?:text|texttt|mathrm|operatorname)\{[^}]*\}", "", row.tex)
            assert bare.count("{") == bare.count("}"), (path, number)
            raw = re.search(r"(?<![\\a-z])(?:sum|phi|exp|sqrt|softmax|eps|scale)_?(?![a-z}])", bare)
            assert raw is None, (path, number)
            assert not re.search(r"\^(?!\{)|_(?!\{)|[~`]|<-", bare.replace(r"\_", "")), (path, number, bare)
            assert not re.search(r"\\(?:log|sin|cos|exp)\}|[^&]\\qquad =", row.tex), (path, number)  # of nothing
            assert not re.search(r"\{\\sum \w+\\, \(", row.tex), (path, number)  # what was to follow the fraction
    assert found > 250


def test_a_docstring_becomes_html():
    docstring = inspect.cleandoc(
        """
        One ``x_i`` of ``forward``.

            y = x / 2                                        (1)  (N, M)
            z = y
                + x                                          (2)

        :Time: ``O(N)``

        By hand
        -------
        From (1), ``dx = dy / 2``.

        >>> 1 < 2
        True
        """
    )
    page = prose.to_html(docstring, link='<a href="#{0}">({0})</a>'.format, anchor="eq-")
    assert r'<span class="math">\(x_{i}\)</span> of <code>forward</code>' in page
    assert '<div class="equation" id="eq-1" data-equations="1">' in page
    assert r"\[y = \frac{x}{2}\]" in page
    assert '<span class="remark"><code>(N, M)</code></span>' in page
    assert r"\begin{aligned}&amp;z = y \\ &amp;\qquad + x\end{aligned}" in page
    assert '<h3>By hand</h3><p>From <a href="#1">(1)</a>, ' in page
    assert '<table class="fields"><tr><th>Time</th>' in page
    assert "1</span> <span" in page  # coloured
    assert "&lt;" in page
