"""The mechanisms that read a sequence at once: what is multiplied with what, and which array is never made."""

from linattn_ref.attention.long_short import pattern
from linattn_ref.experiments.publishing.kit import Mask, Results, paint
from linattn_ref.experiments.schematics.drawing import TOY, Box, Cells, Ghost, Part, Sheet, Sign, Stack, picture
from linattn_ref.experiments.schematics.parts import EQUALS, OF_SUMS, PHI_K, PHI_Q, PRODUCT, K, O, Q, V, becomes, sums

__all__ = ["linear", "linformer", "linformer_linear", "long_short", "nystromformer", "performer", "softmax"]

E = Box("$E$", "R", "L", "fixed")  # Linformer's, learned
F = Box("$F$", "R", "L", "fixed")


@picture("Softmax attention: every query meets every key")
def softmax(sheet: Sheet) -> None:
    """Softmax attention. Arrays are boxes, with the letters of their sides, drawn to the scale of a toy: N queries
    and L keys, nine each, of width D = M = 3. Every query meets every key: both the scores and the weights P are N
    x L, and this square is what all other mechanisms do without.

    ``P = softmax(Q K^T)``, ``O = P V``.
    """
    p = Box("$P$", "N", "L", "weights")
    sheet.row(0, 0, Q, PRODUCT, K.T, becomes("softmax\nof each row", 5.5), p, PRODUCT, V, EQUALS, O)


@picture("Linformer: R mixed keys in place of L")
def linformer(sheet: Sheet) -> None:
    """Linformer. E mixes the L keys into R, and F the values: both learned, one column per position. The rest is
    softmax attention over R keys: of the N x L square only R columns are left.

    ``K~ = E K``, ``V~ = F V``; ``P~ = softmax(Q K~^T)``, ``O = P~ V~``.
    """
    mixed_k, mixed_v = Box("$\\tilde K$", "R", "D", "keys"), Box("$\\tilde V$", "R", "M", "values")
    x = sheet.row(3, 13.5, E, PRODUCT, K, EQUALS, mixed_k)
    sheet.row(x + 6, 13.5, F, PRODUCT, V, EQUALS, mixed_v)
    p = Ghost(inside=Box("$\\tilde P$", "N", "R", "weights"))
    sheet.row(8, 0, Q, PRODUCT, mixed_k.T, becomes("softmax\nof each row", 5.5), p, PRODUCT, mixed_v, EQUALS, O)


@picture("Nyströmformer: R landmarks between the queries and the keys")
def nystromformer(sheet: Sheet) -> None:
    """Nyströmformer. The means of R segments are landmark queries and landmark keys. Three small softmax matrices,
    of queries and landmark keys, of the landmarks, and of landmark queries and keys, stand for the N x L matrix;
    they are multiplied from the right.

    ``P ~ F A^+ B``, with ``F``, ``A``, ``B`` softmax matrices of the landmarks.
    """
    means = becomes("means of\nR segments", 5.0)
    x = sheet.row(1, 13.5, Q, means, Box("$\\tilde Q$", "R", "D", "queries"))
    x = sheet.row(x + 4, 13.5, K, means, Box("$\\tilde K$", "R", "D", "keys"))
    made = (("F", "Q\\,\\tilde K^\\top"), ("A", "\\tilde Q\\,\\tilde K^\\top"), ("B", "\\tilde Q\\,K^\\top"))
    lines = "\n".join(f"${name}$ = softmax of ${product}$" for name, product in made)
    sheet.text(x + 4, 13.5, lines, ha="left", size=1.2, linespacing=1.7)
    f, a, b = Box("$F$", "N", "R", "weights"), Box("$A^{+}$", "R", "R", "weights"), Box("$B$", "R", "L", "weights")
    sheet.row(1, 0, Ghost(label="$P$: never\nmade"), Sign("≈", 1.0), f, PRODUCT, a, PRODUCT, b, PRODUCT, V, EQUALS, O)


@picture("Linear attention: the sums over the keys come first")
def linear(sheet: Sheet) -> None:
    """Linear attention. Keys and values are multiplied first: the sums over all keys are S, one C x M array, and z, C
    numbers, which every query shares. The N x L matrix of similarities, phi(Q) phi(K)^T, is never made; a row of the
    output is a row of the last product over the number next to it.

    ``S = phi(K)^T V``, ``z = phi(K)^T 1``, ``O = phi(Q) S / phi(Q) z``.
    """
    _by_sums(sheet, PHI_K, OF_SUMS, Ghost(label="$\\phi(Q)\\,\\phi(K)^\\top$\nnever made"))


def _by_sums(sheet: Sheet, keys: Box, summed: list[Box], instead: Ghost, gap: float = 3) -> None:
    """The sums over keys, what queries read from them, and the matrix in whose place they stand."""
    x = sheet.row(0, 0, keys.T, PRODUCT, summed, EQUALS, sums())
    x = sheet.row(x + 3, 0, PHI_Q, PRODUCT, sums(), becomes("divide"), O)
    sheet.row(x + gap, 0, instead)


@picture("Performer: random features of queries and keys, then linear attention")
def performer(sheet: Sheet) -> None:
    """Performer. Queries and keys are multiplied with the same m random directions, drawn beforehand; an
    exponential makes of them as many positive features, C = m. Their products would estimate the exponentials of
    the scores, an N x L matrix that is never made: the rest is linear attention.

    ``phi(X) = exp(X Omega^T - |x|^2 / 2)``; ``S = phi(K)^T V``, ``O = phi(Q) S / phi(Q) z``.
    """
    omega = Box("$\\Omega$", "m", "D", "fixed")
    x = sheet.row(3, 13.5, Q, PRODUCT, omega.T, becomes("exp"), PHI_Q)
    sheet.row(x + 7, 13.5, K, PRODUCT, omega.T, becomes("exp"), PHI_K)
    _by_sums(sheet, PHI_K, OF_SUMS, Ghost(label="estimate\nof P: never\nmade"))


@picture("Both together: mixing before a sum that was short already")
def linformer_linear(sheet: Sheet) -> None:
    """Linformer and linear attention together. E and F mix keys and values, and the sums of linear attention are
    taken over the R mixtures instead of the L tokens. Linear attention had no N x L matrix left to avoid: the
    mixing above costs more than the sum that it shortens.

    ``K~ = E phi(K)``, ``V~ = F V``; ``S = K~^T V~``, ``O = phi(Q) S / phi(Q) z``.
    """
    mixed_k, mixed_v = Box("$\\tilde K$", "R", "C", "weights"), Box("$\\tilde V$", "R", "M", "values")
    x = sheet.row(3, 13.5, E, PRODUCT, PHI_K, EQUALS, mixed_k)
    sheet.row(x + 5, 13.5, F, PRODUCT, V, EQUALS, mixed_v)
    summed = [mixed_v, Box("1", "R", "1", "values")]
    _by_sums(sheet, mixed_k, summed, Ghost(label="no square\nwas left\nto avoid"), gap=2)


def near_pairs() -> Results:
    """The toy's, two keys wide."""
    return Results(sizes=dict(TOY), near=pattern(TOY["N"], window=2))  # (N, L), the pairs of the short term


@picture("Long-Short Transformer: near keys, and R mixtures of all", near_pairs)
def long_short(sheet: Sheet, near: Mask) -> None:
    """Long-Short Transformer. The keys choose how they are mixed into R: a softmax of each column of K W_p over all
    tokens. Mixtures and keys differ in length, so each kind has a layer norm of its own, the values too. A query sees
    the R mixtures and the keys in and next to its own segment, with one softmax over both.

    ``K- = P^T K``, ``K^ = norm'(K-)``, ``K~ = norm(K)``; ``O = softmax(Q [K^ ; near K~]^T) [V^ ; near V~]``.
    """
    p, w_p = Box("$P$", "L", "R", "weights"), Box("$W_p$", "D", "R", "fixed")
    mixed_k, long_k = Box("$\\bar K$", "R", "D", "keys"), Box("$\\hat K$", "R", "D", "keys")
    x = sheet.row(1, 14.6, K, PRODUCT, w_p, becomes("softmax of\neach column", 5.5), p)
    x = sheet.row(x + 3, 14.6, p.T, PRODUCT, K, EQUALS, mixed_k, becomes("layer\nnorm"), long_k)
    others = "$\\tilde K$: another norm, of $K$;\nlikewise $\\hat V$ and $\\tilde V$"
    sheet.text(x - 11.5, 11, others, ha="left", size=1.2)
    seen: list[Part] = [Box("", "N", "R", "weights"), Cells(paint([("window or block", near)]))]
    keys = [long_k.T, Box("$\\tilde K$", "L", "D", "keys").T]
    values = Stack((Box("$\\hat V$", "R", "M", "values"), Box("$\\tilde V$", "L", "M", "values")))
    sheet.row(2, 0, Q, PRODUCT, keys, becomes("one\nsoftmax"), seen, PRODUCT, values, EQUALS, O)
