"""One module a figure: ``compute(...)`` gives the results, ``draw(results)`` the figure."""
