"""TeX of single symbols, and the words that formulas know; any other is prose. A new mechanism may need one more."""

import re

__all__ = ["BIG", "FUNCTIONS", "NAMES", "accent", "escaped", "function", "index_tex", "is_symbol", "number"]
__all__ += ["symbol"]

# eps is the round one
GREEK = set(
    """alpha beta gamma delta eps kappa lambda mu omega phi pi rho sigma theta Phi Omega""".split()  # noqa: SIM905
)
FUNCTIONS = set(
    """exp log sin cos tanh cosh erf max min argmax softmax sigmoid softplus diag mean var rowsum tril norm taylor_exp
    Pr rank ceil""".split()  # noqa: SIM905
)
STANDARD = {"exp", "log", "sin", "cos", "tanh", "cosh", "max", "min"}  # those that TeX has
BIG = {"sum": r"\sum", "prod": r"\prod", "int": r"\int"}
# Numbers that have a word for a name, and other quantities that do.
NAMES = set(
    """out scale gate block window dilation chunk order rounds buckets root decay size keep
    lse""".split()  # noqa: SIM905
)
UPRIGHT = NAMES | set("loss dt_bias window_blocks value key random ratio pairs SM MSE bias".split())  # noqa: SIM905
INDEX = re.compile(r"[ijlrt]{1,2}\Z")  # of d_i: a letter d with an index, and no gradient


def symbol(word: str) -> str | None:
    """TeX of a word that stands for a quantity; None if it is prose."""
    base, _, index = word.partition("_")
    if word in UPRIGHT:
        return rf"\mathrm{{{escaped(word)}}}"
    if index and (base == "log" or (base == "d" and not INDEX.match(index))):
        inner = symbol(index)
        return inner and (r"\log " if base == "log" else r"\mathrm{d}") + inner
    drawn = letter(base)
    if drawn is None:
        return None
    return f"{drawn}_{{{','.join(index_tex(part) for part in index.split('_'))}}}" if index else drawn


def letter(base: str) -> str | None:
    if base in GREEK:
        return r"\varepsilon" if base == "eps" else rf"\{base}"
    if base in UPRIGHT:
        return rf"\mathrm{{{base}}}"
    if len(base) == 1:
        return base
    if base.startswith("d") and (len(base) == 2 or base[1:] in GREEK or base[1:] in UPRIGHT):
        return rf"\mathrm{{d}}{letter(base[1:])}"
    if base[1:] in ("sin", "cos", "log") and base[0] == "d":
        return rf"\mathrm{{d}}\{base[1:]}"
    return None


def index_tex(text: str) -> str:
    if text in GREEK:
        return letter(text) or text
    if text == "inf":
        return r"\infty"
    return ",".join(part if len(part) <= 2 or part.isdigit() else rf"\text{{{part}}}" for part in text.split("_"))


def function(name: str, index: str) -> str:
    upright = r"arg\,max" if name == "argmax" else escaped(name)
    drawn = rf"\{name}" if name in STANDARD else rf"\operatorname{{{upright}}}"
    return drawn + (f"_{{{index_tex(index)}}}" if index else "")


def number(text: str) -> str:
    digits, _, power = text.partition("e")
    digits = digits.replace("_", r"\,")
    if not power:
        return digits
    return f"10^{{{int(power)}}}" if digits == "1" else rf"{digits} \cdot 10^{{{int(power)}}}"


def accent(kind: str, base: str) -> str:
    """Over the letter alone, not over the d of a gradient."""
    d = r"\mathrm{d}"
    return rf"{d}\{kind}{{{base.removeprefix(d)}}}" if base.startswith(d) and base != d else rf"\{kind}{{{base}}}"


def escaped(word: str) -> str:
    return word.replace("_", r"\_")


def is_symbol(word: str) -> bool:
    base = word.partition("_")[0]
    return len(base) == 1 or base in GREEK or bool(re.fullmatch(r"d(?:[A-Za-z]|phi)", base)) or word in ("eps", "out")
