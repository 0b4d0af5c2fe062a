"""How experiments appear.

``kit``        what every figure's module is made of, in one line of imports
``style``      the two looks, for print and for a slide
``labels``     names on the lines themselves; lines of medians, and how far sentences and heads lie apart
``pairs``      patterns of query and key: a colour per reason
``record``     a figure next to its numbers, command, seed, versions and machine
``restore``    the numbers back from there
``catalogue``  the list of all figures; ``registry``, of all benches
``gallery``    draws them all, and the page that shows them
``tables``     README's, with its ``headlines`` and the routes of the ``course``; ``markdown`` writes them
``chapter``    what the notebooks share
"""

from linattn_ref import lazy

__all__, __getattr__, __dir__ = lazy.folder(__name__, __path__)
