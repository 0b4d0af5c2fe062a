"""Pieces of TeX put side by side: fractions between their factors, spaces, brackets that are high enough."""

from typing import NamedTuple

__all__ = ["Item", "grown", "joined", "with_fractions"]

FACTORS = ("atom", "function", "big")


class Item(NamedTuple):
    """A piece of TeX and what it is: "atom", "function", "big", "operator", "relation", "fraction", "comma", "text"."""

    kind: str
    tex: str
    bare: str = ""  # without its brackets, if it is nothing but something in brackets
    tight: bool = False  # nothing stood between it and what came before


def grown(inside: str, bracket: str, side: str) -> str:
    """A bracket as high as what is in it."""
    return side + bracket if r"\frac" in inside or r"\sum" in inside else bracket


def with_fractions(items: list[Item], display: bool) -> list[Item]:
    """Strokes between their numerators and denominators."""
    done: list[Item] = []
    rest = list(items)
    while rest:
        item = rest.pop(0)
        if item.kind == "quotient" and done and rest:
            done.append(Item("atom", rf"\lfloor {done.pop().tex} / {rest.pop(0).tex} \rfloor"))
        elif item.kind == "stroke" and display and not item.tight and done and rest and rest[0].kind != "text":
            at = len(done)
            while at and (done[at - 1].kind in ("atom", "function") or done[at - 1].tex in (r"\odot", r"\cdot")):
                at -= 1
            above, below = done[at:], _denominator(rest)
            del done[at:]
            done.append(Item("atom", rf"\frac{{{_unbracketed(above)}}}{{{_unbracketed(below)}}}"))
        else:
            done.append(Item("atom", "/", tight=True) if item.kind == "stroke" else item)
    return done


def _denominator(rest: list[Item]) -> list[Item]:
    """One factor, a function with its argument, a number with the letter that touches it, or a whole sum."""
    below = [rest.pop(0)]
    while below[-1].kind == "function" and not below[-1].tex.endswith(")") and rest:
        below.append(rest.pop(0))
    if below[0].kind == "big":
        while rest and (rest[0].kind in ("atom", "function", "big") or rest[0].tex == r"\cdot"):
            below.append(rest.pop(0))
    elif below[0].tex.isdigit():
        while rest and rest[0].kind == "atom" and rest[0].tight:
            below.append(rest.pop(0))
    return below


def _unbracketed(items: list[Item]) -> str:
    return items[0].bare if len(items) == 1 and items[0].bare else joined(items)


def joined(items: list[Item]) -> str:
    """One line of TeX: thin spaces between factors, words with their spaces."""
    out, last = "", None
    for item in items:
        if item.kind == "text" and last is not None and last.kind == "text":
            out = f"{out[:-1]} {item.tex}}}"  # one piece of prose
        else:
            out += _between(last, item) + (rf"\text{{{item.tex}}}" if item.kind == "text" else item.tex)
        last = item
    return out


def _between(last: Item | None, item: Item) -> str:
    if last is None or item.kind == "comma":
        return ""
    if "text" in (last.kind, item.kind):
        return r"\ "
    if last.kind == "comma":
        return r"\; " if last.tex == ";" else r"\, "
    if last.kind in FACTORS and item.kind in FACTORS:
        beside = item.tight or last.tex in ("/", r"\dots") or item.tex == "/"
        return " " if beside or (last.kind != "atom" and not last.tex.endswith(")")) else r"\, "
    return " "
