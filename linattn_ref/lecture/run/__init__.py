"""Cells that run in the browser: Python itself, by Pyodide, beside the pages of ``linattn-ref site --run``.

``kernel.py``   runs there: a chapter's names, what cells display, what stands in for packages that a browser lacks
``worker.js``   runs the interpreter, in a worker, so that the page stays alive and a cell can be stopped
``cells.js``    gives each cell of a chapter its buttons, and shows what comes back
``build.py``    writes all of it beside the pages

Nothing is loaded before a reader presses Run. From then on everything comes from the folder of the site: each file is a
script of base64, for that is what a page opened from a disk may load.
"""

__all__: list[str] = []
