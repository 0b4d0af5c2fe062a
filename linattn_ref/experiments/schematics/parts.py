"""The signs between boxes, and the arrays that several pictures have."""

from linattn_ref.experiments.schematics.drawing import Box, Sign

__all__ = ["EQUALS", "OF_SUMS", "PHI_K", "PHI_Q", "PLUS", "PRODUCT", "K", "O", "Q", "V", "becomes", "column", "row"]
__all__ += ["state", "sums"]

PRODUCT, EQUALS, PLUS = Sign("·", 0.4, product=True), Sign("=", 1.0), Sign("+", 1.0)


def becomes(text: str = "", width: float = 3.5) -> Sign:
    """An arrow with what is done written over it."""
    return Sign(text, width, arrow=True)


Q = Box("$Q$", "N", "D", "queries")
K = Box("$K$", "L", "D", "keys")
V = Box("$V$", "L", "M", "values")
O = Box("$O$", "N", "M", "output")
OF_SUMS = [V, Box("1", "L", "1", "values")]  # what S and z are sums of: the values, and a column of ones
PHI_Q = Box("$\\phi(Q)$", "N", "C", "weights")
PHI_K = Box("$\\phi(K)$", "L", "C", "weights")


def state(index: str) -> Box:
    """``S`` after one token."""
    return Box(f"$S_{{{index}}}$", "C", "M", "state")


def sums(index: str = "") -> list[Box]:
    """``S`` and ``z``, side by side; the index is that of ``S``."""
    return [state(index) if index else Box("$S$", "C", "M", "state"), Box("$z$", "C", "1", "state")]


def column(role: str) -> Box:
    """Of one token: its ``C`` features."""
    return Box("", "C", "1", role)


def row(role: str, width: str = "M") -> Box:
    """Of one token: a row of what it has."""
    return Box("", "1", width, role)
