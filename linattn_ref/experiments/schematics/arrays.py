"""The arrays that several pictures have."""

from linattn_ref.experiments.schematics.drawing import Box

__all__ = ["OF_SUMS", "PHI_K", "PHI_Q", "E", "F", "K", "O", "Q", "V", "column", "row", "sums"]

Q = Box("$Q$", "N", "D", "queries")
K = Box("$K$", "L", "D", "keys")
V = Box("$V$", "L", "M", "values")
O = Box("$O$", "N", "M", "output")
OF_SUMS = [V, Box("1", "L", "1", "values")]  # what S and z are sums of: the values, and a column of ones
PHI_Q = Box("$\\phi(Q)$", "N", "C", "weights")
PHI_K = Box("$\\phi(K)$", "L", "C", "weights")
# Linformer's, learned
E = Box("$E$", "R", "L", "fixed")
F = Box("$F$", "R", "L", "fixed")


def sums(index: str = "") -> list[Box]:
    """``S`` and ``z``, side by side; the index is that of ``S``."""
    return [Box(f"$S_{{{index}}}$" if index else "$S$", "C", "M", "state"), Box("$z$", "C", "1", "state")]


def column(role: str) -> Box:
    """Of one token: its ``C`` features."""
    return Box("", "C", "1", role)


def row(role: str, width: str = "M") -> Box:
    """Of one token: a row of what it has."""
    return Box("", "1", width, role)
