"""Slides: a deck of text, ``notebooks/slides/NN_name.md``, becomes one HTML file that needs no network.

``deck``      the text: slides, what kind each is, its minutes, its picture, its notes
``records``   numbers that a slide takes from a figure's record
``pictures``  figures drawn again from their records, large, whole or a panel alone; pictures of the chapters
``markup``    Markdown, formulas and excerpts of the package's source to HTML
``page``      slides, style, reveal.js and MathJax in one file
``build``     from a chapter's number to the file
"""

__all__: list[str] = []
