"""What runs in the browser, by Python itself, Pyodide: cells of chapters, and a network that reads the reader's text.

``kernel.py``    runs there: a chapter's names, what cells display, what stands in for packages that a browser lacks
``sentence.py``  runs there: the network and the singular values of its attention on one text
``worker.js``    runs the interpreter, in a worker, so that the page stays alive and can be stopped
``kernel.js``    loads what the worker needs, and asks it
``cells.js``     gives each cell of a chapter its buttons, and shows what comes back
``sentence.js``  draws curves and matrices, and takes them apart by rank
``build.py``     writes all of it beside the pages of ``linattn-ref site --run`` and ``--sentence``

Nothing is loaded before a reader presses Run or Read. From then on everything comes from the folder of the site: each
file is a script that holds its bytes as letters, for that is what a page opened from a disk may load.
"""

__all__: list[str] = []
