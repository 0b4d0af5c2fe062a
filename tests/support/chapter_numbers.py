"""What a chapter's cells show, and where two executions of a cell differ in it by more than rounding."""

import html
import re

from linattn_ref.lecture.run import kernel

NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?%?")
MEASURED = re.compile(
    r"peak_bytes|at the peak|perf_counter|process_time|finfo|EPS_32|(?s:error.*float32|float32.*error)"
)
ROUNDING = re.compile(r"-?\d(\.\d)?e[-+]\d+")
WORST = re.compile(r"^.*backward .*, numeric .*, off by .*$", re.MULTILINE)
PICTURE = "[a picture]"


def seen(output):
    """The text of what a cell sent to the page."""
    kind, content = output
    if kind == "slider":  # whose labels are not in the notebook
        return ""
    if content.startswith("<img "):
        return PICTURE
    return html.unescape(re.sub("<[^>]*>", " ", content)) if kind == "html" else content


def noted(output):
    """The text of an output of an executed notebook."""
    data = output.get("data", {})
    if "image/png" in data:
        return PICTURE
    if "text" in output:
        return "".join(output["text"])
    return seen(("html", kernel._markdown("".join(data.get("text/markdown", "")))))


def differences(cell, told, *, rtol=2e-3, atol=1e-5, counted=False, percent=False):
    """Where the texts ``told`` are not what the executed cell of a notebook holds: its pictures and numbers.

    Numbers are the same to ``rtol``, ``atol``, or one in the last decimal (with ``percent``, one percent). Those of one
    or two digits and an exponent, most of which are errors of rounding, are the same to a factor of 4. They are counted
    alone with ``counted``, or where a cell measures time or memory, or errors of float32; which entry of a gradient is
    off most is not compared.
    """
    told, was = "\n".join(told), "\n".join(map(noted, cell["outputs"]))
    pictures = [text.count(PICTURE) for text in (told, was)]
    numbers = [[each.replace(",", "") for each in NUMBER.findall(WORST.sub("", text))] for text in (told, was)]
    wrong = [] if pictures[0] == pictures[1] else [f"{pictures[0]} pictures, expected {pictures[1]}"]
    if len(numbers[0]) != len(numbers[1]):
        return [*wrong, f"{len(numbers[0])} numbers, expected {len(numbers[1])}"]
    if counted or MEASURED.search("".join(cell["source"])):
        return wrong
    for a, b in zip(*numbers, strict=True):
        x, y = (float(each.rstrip("%")) for each in (a, b))
        decimals = len(b.rstrip("%").partition(".")[2])
        has_last = (decimals or (percent and b.endswith("%"))) and "e" not in b
        last = 1.01 * 10.0**-decimals if has_last else 0
        near = ROUNDING.fullmatch(a) and ROUNDING.fullmatch(b) and abs(y) / 4 < abs(x) < abs(y) * 4
        if abs(x - y) > max(atol, rtol * abs(y), last) and not near:
            wrong.append(f"{a}, expected {b}")
    return wrong
