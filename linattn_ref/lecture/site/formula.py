r"""From the notation of the docstrings to TeX, by rule, so that a formula is written once and read in both places.

The notation is what one types: ``P_ij = exp(A_ij) / sum_l exp(A_il)``. Its rules:

``x_ij  x_{i-1}  v_(i + t)``
    What follows ``_`` is the index; a word of three letters or more stands upright in it.
``x^2  D^(1/4)  K^T  A^+``
    An exponent, the transpose, the pseudo-inverse.
``x^  K~  K-  S'``
    With nothing after the sign: hat, tilde, bar; and a prime.
``dQ  d_v_i  dphi``
    The gradient with respect to what follows the d. ``d_i`` with an index alone is a letter d.
``a / b``  and  ``a/b``
    With spaces a fraction, of all factors before it, up to a sum or a logarithm, over the one factor after it, or the
    whole sum; without, a stroke.
``a . b  a * b  |x|  <A, B>  a // b  a mod b  W u G``
    Inner product, product element by element, length, inner product of matrices; floor of the quotient, remainder,
    union.
``exp  log  softmax  diag  mean ...``
    Functions stand upright, also without brackets: ``exp z``.

Any other word is prose, and set as such: ``x + 1 if x > 0 else exp(x)``.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from linattn_ref.lecture.site import symbols
from linattn_ref.lecture.site.layout import Item, grown, joined, with_fractions

__all__ = ["FormulaError", "is_formula", "tex"]

RELATIONS = {"=": "=", "==": "=", "<": "<", ">": ">", "<=": r"\le", ">=": r"\ge", "!=": r"\ne", "~": r"\approx"}
RELATIONS |= {"<-": r"\leftarrow", "->": r"\to", "+=": r"\mathrel{+}="}
SIGNS = {sign: Item("relation", drawn) for sign, drawn in RELATIONS.items()}
SIGNS |= {"//": Item("quotient", "//"), "...": Item("atom", r"\dots"), "!": Item("atom", "!", tight=True)}
SIGNS |= {",": Item("comma", ","), ";": Item("comma", ";"), ":": Item("comma", r"\mathrel{:}")}
OPERATORS = {"+": "+", "-": "-", "×": r"\times", "*": r"\odot", ".": r"\cdot", "⊗": r"\otimes"}
OPERATORS |= {"mod": r"\bmod", "u": r"\cup"}
CODE = re.compile(
    r"""[\w)]\.[a-z_]{2,} | \w_\w*_ | =[A-Za-z\d] | \w= | == | (?<!\.)\.\. [ ] | [ ]:[ ] | [#@"`] |
    \b[a-z]{2,}_[a-z]{3,} | \bd_out\b | ^\([^()]*,[^()]*\)$ | \(\.\.\. | \.\.\.[,\])] | ^\[\w,[ ]\w\]$ | ^\W$ """,
    re.VERBOSE,
)  # what only code has: attributes, keywords, assignments, shapes
PAIRS = {"(": ")", "[": "]", "{": "}", "|(": "|)", "<(": ">)"}
DRAWN = {"{": r"\{", "}": r"\}", "|(": "|", "|)": "|", "<(": r"\langle ", ">)": r"\rangle "}
TOKEN = re.compile(
    r"""(?P<space>\s+)
    | (?P<number>\d+(?:_\d{3})*(?:\.\d+)?(?:e-?\d+)?(?![\d_]))
    | (?P<word>[A-Za-z]+(?:_[A-Za-z0-9]+)*)
    | (?P<sign><=|>=|<-|->|\+=|==|!=|//|\.\.\.|[-+*×/=<>.,;:!~⊗()\[\]{}|'^_])""",
    re.VERBOSE,
)


class FormulaError(ValueError):
    """What is no formula in this notation; the message says what was met."""


class Token(NamedTuple):
    kind: str
    text: str
    before: str  # the characters beside it, a space at the ends
    after: str


def tex(formula: str, *, display: bool = False) -> str:
    """TeX of a formula; ``display`` sets fractions as such.

    Raises
    ------
    FormulaError
        A sign that the notation does not have, a bracket without its partner, or the name of a file.
    """
    if name := re.search(r"\w+\.py\b", formula):
        raise FormulaError(f"{name[0]} is a file, which belongs behind the number")
    return _Parser(list(_tokens(formula)), display).sequence("")


def is_formula(text: str) -> bool:
    """Whether ``text``, between two pairs of backticks, is mathematics: no code, no shape, no word of prose."""
    if CODE.search(text) or (re.fullmatch(r"\w{2,}", text) and not symbols.is_symbol(text)):
        return False
    try:
        made = tex(text)
    except FormulaError:
        return False
    functions = re.findall(r"\\operatorname\{(.+?)\}", made)
    return r"\text{" not in made and all(name.replace("\\", "") in symbols.FUNCTIONS for name in functions)


def _tokens(formula: str) -> Iterator[Token]:
    """The tokens, with bars and angles told apart: opening or closing, or comparison."""
    formula = re.sub(r"\b([A-Z]) x (?=[A-Z]\b)", r"\1 × ", formula)
    at, depth, angles = 0, 0, 0
    while at < len(formula):
        match = TOKEN.match(formula, at)
        if match is None:
            raise FormulaError(f"{formula[at]!r} in {formula!r}")
        before, after = formula[at - 1 : at] or " ", formula[match.end() : match.end() + 1] or " "
        kind, text = str(match.lastgroup), match.group()
        if text == "|":
            opens = not after.isspace() and (before in " \t\n([{|,;-+/" or depth == 0)
            text, depth = ("|(", depth + 1) if opens else ("|)", depth - 1)
        elif text == "<" and after.isalpha() and not before.isalnum():
            text, angles = "<(", angles + 1
        elif text == ">" and angles:
            text, angles = ">)", angles - 1
        if kind != "space":
            yield Token(kind, text, before, after)
        at = match.end()


class _Parser:
    """Reads tokens from left to right; each method consumes what it makes TeX of."""

    def __init__(self, tokens: list[Token], display: bool) -> None:
        self.tokens, self.display, self.at = tokens, display, 0

    def peek(self) -> Token:
        return self.tokens[self.at] if self.at < len(self.tokens) else Token("end", "", " ", " ")

    def take(self) -> Token:
        token = self.peek()
        self.at += 1
        return token

    def sequence(self, closing: str) -> str:
        """All up to the bracket that closes, which is consumed, or to the end."""
        items: list[Item] = []
        while (token := self.peek()).kind != "end" and token.text != closing:
            if token.text in PAIRS.values():
                raise FormulaError(f"{token.text[0]!r} closes nothing")
            items.append(self.item(items[-1] if items else None))
        if self.take().text != closing and closing:
            raise FormulaError(f"{closing[0]!r} is missing")
        return joined(with_fractions(items, self.display))

    def item(self, last: Item | None) -> Item:
        token = self.take()
        tight = not token.before.isspace()
        if token.kind == "word":
            return self.word(token, last, tight)
        if token.kind == "number":
            return Item("atom", self.scripts(symbols.number(token.text)), tight=tight)
        if token.text in PAIRS:
            return self.bracket(token, tight)
        if token.text == "/":
            return Item("stroke", "/", tight=tight)
        if token.text in SIGNS:
            return SIGNS[token.text]
        if token.text == "*" and last is not None and (last.tex == "!" or self.peek().text in symbols.NAMES):
            return Item("operator", r"\cdot")  # of numbers
        if token.text in OPERATORS:
            return Item("operator", OPERATORS[token.text], tight=tight)
        raise FormulaError(f"{token.text!r} stands alone")

    def bracket(self, token: Token, tight: bool) -> Item:
        closing = PAIRS[token.text]
        inside = self.sequence(closing)
        left, right = DRAWN.get(token.text, token.text), DRAWN.get(closing, closing)
        whole = grown(inside, left, r"\left") + inside + grown(inside, right, r"\right")
        scripted = self.scripts(whole)
        bare = inside if scripted == whole and token.text == "(" else ""
        return Item("atom", scripted, bare, tight)

    def word(self, token: Token, last: Item | None, tight: bool) -> Item:
        text, follows = token.text, self.peek()
        if text == "mod" or (text == "u" and last is not None and re.match(r"[A-Z{]|random", follows.text)):
            return Item("operator", OPERATORS[text])
        if text == "in" and re.match(r"[A-Z{]", follows.text):
            return Item("relation", r"\in")
        if text == "inf":
            return Item("atom", r"\infty")
        if text == "sqrt":
            return Item("atom", self.root(), tight=tight)
        if text == "floor" and follows.text == "(":
            self.take()
            return Item("atom", rf"\lfloor {self.sequence(')')} \rfloor")
        base, _, index = text.partition("_")
        if follows.text == "of" and not index:
            return Item("text", text)  # a sum of these, the maximum of those
        if base in symbols.BIG:
            return Item("big", self.scripts(symbols.BIG[base] + (f"_{{{symbols.index_tex(index)}}}" if index else "")))
        name, of = (text, "") if text in symbols.FUNCTIONS else (base, index)
        if name in symbols.FUNCTIONS and (not of or (name != "log" and "_" not in of and len(of) <= 2)):
            made = self.scripts(symbols.function(name, of))
            called = self.peek().text == "(" and not self.peek().before.isspace()
            return Item("function", made + (self.bracket(self.take(), True).tex if called else ""), tight=tight)
        drawn = symbols.symbol(text)
        if drawn is None:
            after = next((x for x in self.tokens[self.at :] if x.text != "'"), follows)
            if after.text == "(" and not after.before.isspace():
                drawn = rf"\operatorname{{{symbols.escaped(text)}}}"
            else:
                return Item("text", text)
        made = self.scripts(drawn)
        if self.peek().text == "(" and not self.peek().before.isspace() and self.peek().before not in "^_":
            made += self.bracket(self.take(), True).tex  # phi(x), S_B(i)
            made = self.scripts(made)
        kind = "function" if text[1:] in symbols.FUNCTIONS else "atom"  # dlog
        return Item(kind, made, tight=tight)

    def root(self) -> str:
        follows = self.take()
        number = symbols.number(follows.text) if follows.kind == "number" else None
        inside = self.sequence(")") if follows.text == "(" else number or symbols.symbol(follows.text)
        if inside is None:
            raise FormulaError(f"no root of {follows.text!r}")
        return rf"\sqrt{{{inside}}}"

    def scripts(self, base: str) -> str:
        """What is over, under and beside a symbol, in any order."""
        below, above = [], ""
        if "_{" in base and base.endswith("}") and base.count("_{") == 1 and not base.startswith((r"\left", "(", "|")):
            base, _, index = base.partition("_{")  # an index that was part of the word
            below = [index[:-1]]
        while not (token := self.peek()).before.isspace() or not token.text:
            if token.text == "'":
                above += r"\prime "
            elif token.text == "~":
                base = symbols.accent("tilde", base)
            elif token.text == "-" and re.match(r"[\s^),=_;\]]", token.after) and re.search(r"[A-Za-z]\Z", base):
                base = symbols.accent("bar", base)
            elif token.text == "^" and re.match(r"[\s),=|_;^\]]", token.after):
                base = symbols.accent("hat", base)
            elif token.text == "^":
                self.take()
                above += self.script()
                continue
            elif token.text == "_":
                self.take()
                below.append(self.script())
                continue
            else:
                break
            self.take()
        return base + (f"_{{{','.join(below)}}}" if below else "") + (f"^{{{above.strip()}}}" if above else "")

    def script(self) -> str:
        """What follows ``_`` or ``^``: something in brackets, which are left out, or one word, number or sign."""
        token = self.take()
        if token.text in ("(", "{"):
            return self.sequence(PAIRS[token.text])
        if token.kind == "word":
            name, _, rest = token.text.partition("_")
            if rest:  # a^i_t: the index belongs to the a
                self.at -= 1
                below = Token("sign", "_", name[-1], rest[0]), Token("word", rest, "_", token.after)
                self.tokens[self.at : self.at + 1] = below
            return r"\top" if name == "T" and token.before == "^" else symbols.index_tex(name)
        if token.text in ("+", "-"):
            follows = self.peek()
            touches = follows.kind in ("word", "number") and follows.before != " "
            return token.text + (symbols.index_tex(self.take().text) if touches else "")
        if token.kind == "number":
            return token.text
        raise FormulaError(f"{token.text!r} as an index or exponent")
