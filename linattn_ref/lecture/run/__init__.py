"""Code that runs in the browser: Python itself, by Pyodide, beside the pages of ``linattn-ref site --run --sentence``.

``kernel.py``    runs there: a chapter's names, what cells display, what stands in for packages that a browser lacks
``check.py``     runs there too: checks the gradient of a mechanism's page as a reader changed it, with the calls of
                 ``examples.py``; ``suspects.py`` finds the lines that can be to blame
``fetched.py``   runs there: what chapters fetch, or read by compiled packages
``sentence.py``  runs there: a pretrained network, and the singular values of its attention, on a reader's own text
``worker.js``    runs the interpreter, in a worker, so that the page stays alive and what runs can be stopped
``kernel.js``    starts it, and shows what comes back
``cells.js``     gives each cell of a chapter its buttons
``check.js``     makes the code beside formulas one that can be changed and checked
``sentence.js``  draws curves and matrices of one's own sentence, and takes a matrix apart by rank
``build.py``     writes all of it beside the pages

Nothing is loaded before a reader presses a button. From then on everything comes from the folder of the site: each
file is a script that holds its bytes as letters, for that is what a page opened from a disk may load.
"""

__all__: list[str] = []
