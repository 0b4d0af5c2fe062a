"""A new figure, drawn as CONTRIBUTING.md says: its module, a line in the catalogue, the command."""

import importlib
import json
import re
import sys
from pathlib import Path

from quick import assert_comes_back

from linattn_ref import cli
from linattn_ref.experiments.publishing import catalogue, gallery

CONTRIBUTING = Path(__file__).parents[3] / "CONTRIBUTING.md"


def test_the_page_draws_a_figure(monkeypatch, tmp_path, capsys):
    page = CONTRIBUTING.read_text(encoding="utf-8").partition("# How to draw a new figure")[2]
    code = re.findall(r"```python\n(.*?)\n\n\nresults = ", page, re.DOTALL)[0]
    (tmp_path / "attended.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "linattn_ref.experiments.rank.attended", importlib.import_module("attended"))
    monkeypatch.setitem(catalogue.FIGURES, "attended", "rank")
    monkeypatch.setattr(gallery, "ALL", (*catalogue.ALL, "attended"))
    assert_comes_back("attended", gallery.compute("attended", quick=True))
    out = tmp_path / "figures"
    for words in (["--quick"], ["--redraw"]):
        assert cli.main(["figures", "--only", "attended", "--out", str(out), "--workers", "1", *words]) == 0
    record = json.loads((out / "attended.json").read_text(encoding="utf-8"))
    assert record["command"] == "linattn-ref figures --only attended --quick"
    assert list(record["results"]) == ["scales", "attended"]
    assert record["caption"].startswith("How many keys a query attends to")
    assert "![attended](attended.png)" in (out / "README.md").read_text(encoding="utf-8")
    assert {path.suffix for path in out.iterdir()} == {".svg", ".png", ".pdf", ".json", ".md"}
