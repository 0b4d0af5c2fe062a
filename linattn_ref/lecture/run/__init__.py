"""Code that runs in the browser: Python itself, by Pyodide, beside the pages of ``linattn-ref site --run``.

``kernel.py``    runs there: a chapter's names, what cells display, what stands in for packages that a browser lacks
``check.py``     runs there too: checks the gradient of a mechanism's page as a reader changed it, with the calls of
                 ``examples.py``; ``suspects.py`` finds the lines that can be to blame
``worker.js``    runs the interpreter, in a worker, so that the page stays alive and what runs can be stopped
``kernel.js``    starts it, and shows what comes back
``cells.js``     gives each cell of a chapter its buttons
``check.js``     makes the code beside formulas one that can be changed and checked
``build.py``     writes all of it beside the pages

Nothing is loaded before a reader presses Run or Check. From then on everything comes from the folder of the site: each
file is a script of base64, for that is what a page opened from a disk may load.
"""

__all__: list[str] = []
