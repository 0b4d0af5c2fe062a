"""One module a figure: ``compute(...)`` gives the results, ``draw(results)`` the figure.

``style`` has the two looks, ``record`` saves a figure beside its numbers, ``gallery`` draws them all.
"""
