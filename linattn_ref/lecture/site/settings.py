"""Sphinx's settings, and what is done to docstrings on their way to the API pages."""

import re
from pathlib import Path
from typing import Any

from linattn_ref import __version__

__all__ = ["conf_py", "configuration", "setup"]

STATIC = Path(__file__).with_name("static")
TITLE = "linattn_ref"
EMPTY = re.compile(r"<th([^>]*)>\s*(?:<p>\s*</p>)?\s*</th>")
FOR_EVERYBODY = Path(__file__).with_name("everybody.js")  # in each page, where it runs without being fetched


def conf_py(address: str) -> str:
    """The text of Sphinx's ``conf.py``."""
    return f"from {__name__} import configuration\n\nglobals().update(configuration({address!r}))\n"


def configuration(address: str) -> dict[str, Any]:
    """All settings; ``address`` is the repository's, or ""."""
    return {
        "project": TITLE,
        "html_title": TITLE,
        "author": "The linattn_ref developers",
        "copyright": "the linattn_ref developers, MIT licence",
        "version": __version__,
        "release": __version__,
        "extensions": ["myst_nb", "sphinx.ext.autodoc", "numpydoc", "sphinx.ext.mathjax", "sphinx_design", __name__],
        "nb_execution_mode": "off",
        "nb_render_markdown_format": "myst",
        "myst_enable_extensions": ["dollarmath", "amsmath", "deflist", "colon_fence", "html_image"],
        "myst_heading_anchors": 3,
        "mathjax_path": "mathjax/tex-svg.js",
        "mathjax3_config": {
            "options": {
                "enableMenu": False,  # its entries would load further files
                "ignoreHtmlClass": "tex2jax_ignore|mathjax_ignore|document",
                "processHtmlClass": "tex2jax_process|mathjax_process|math|output_area",
            },
            "svg": {"fontCache": "global", "scale": 0.95},
        },
        "autodoc_default_options": {"members": True, "member-order": "bysource"},
        "autodoc_typehints": "none",
        "numpydoc_show_class_members": False,
        "html_theme": "furo",
        "html_static_path": [str(STATIC)],
        "html_css_files": ["site.css"],
        "html_favicon": str(STATIC / "icon.svg"),
        "html_copy_source": False,
        "html_show_search_summary": False,  # it would show formulas as TeX, and nothing where pages lie on a disk
        "html_show_sphinx": False,
        "html_theme_options": {
            "light_css_variables": {"color-brand-primary": "#2f5d8a", "color-brand-content": "#2f5d8a"},
            "dark_css_variables": {"color-brand-primary": "#8fb8e0", "color-brand-content": "#8fb8e0"},
            "top_of_page_buttons": [],
            **({"source_repository": address} if address else {}),
        },
        "pygments_style": "a11y-high-contrast-light",  # which come with furo
        "pygments_dark_style": "a11y-high-contrast-dark",
        "exclude_patterns": ["chapters/files"],  # for downloads
        "suppress_warnings": ["myst.header", "myst.xref_missing", "docutils", "autodoc", "ref.python"],
    }


def setup(app: Any) -> dict[str, Any]:
    """Sphinx calls this."""
    app.add_domain(_each_at_home(app.registry.domains["py"]), override=True)
    app.connect("html-page-context", _before_others, priority=100)  # before MathJax decides, and furo draws the tree
    app.connect("html-page-context", _for_everybody, priority=900)  # after furo's own
    app.add_js_file(None, body=FOR_EVERYBODY.read_text(encoding="utf-8").rstrip())
    app.connect("autodoc-process-docstring", _prepared, priority=100)  # before numpydoc
    app.connect("autodoc-process-signature", _without_paths)
    app.connect("autodoc-skip-member", _skipped)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _each_at_home(python_domain: Any) -> Any:
    """Where Sphinx looks names up: a class of several modules in the one that defines it, whichever was read last."""

    class EachAtHome(python_domain):
        def merge_domaindata(self, docnames: Any, otherdata: Any) -> None:
            before = dict(self.objects)
            super().merge_domaindata(docnames, otherdata)
            for name, entry in before.items():
                self.objects[name] = min(entry, self.objects[name], key=lambda x: (x.aliased, x.docname))

    return EachAtHome


def _before_others(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """The pages beside the code have formulas that Sphinx does not know of: they need MathJax too.

    In the sidebar, pages below another entry stay folded, and all modules: 200 entries on 200 pages are 6 MB.
    """
    if page == "search":  # which shows a line around what is found
        app.add_js_file("search.js")
    if page.startswith("code/"):
        context["has_maths_elements"] = True
        app.add_js_file("beside.js")
    if "toctree" in context:
        whole, folded = context["toctree"], {"maxdepth": 1} if page.startswith("api/") else {}
        context["toctree"] = lambda **options: whole(**{**options, **folded, "collapse": True})


def _for_everybody(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Headings of the sidebar say which level they have, and a cell that is empty is no heading of a column."""
    context["body"] = EMPTY.sub(r"<td\1></td>", context.get("body", ""))
    tree = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = tree.replace('role="heading"', 'role="heading" aria-level="2"')


def _prepared(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Of a module's docstring the first paragraph: the rest is typeset on the page beside its code. Of a class, fields'
    comments are no markup: the bars of ``|x|`` are bars."""
    if what == "module":
        end = next((at for at, line in enumerate(lines) if not line.strip()), len(lines))
        lines[:] = [*lines[:end], ""]
    if what == "class":
        lines[:] = [re.sub(r"(``.*?``)|\|", lambda match: match[1] or r"\|", line) for line in lines]


def _without_paths(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str, str | None] | None:
    """A default that is a module is called by its name, and not by where it lies on this machine."""
    return (re.sub(r"<module '([\w.]+)' from '[^']*'>", r"\1", signature), returns) if signature else None


def _skipped(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """The fields of a NamedTuple stand in its docstring already; methods of every tuple need not be said."""
    return True if type(obj).__name__ == "_tuplegetter" else None
