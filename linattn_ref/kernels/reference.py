"""The name of the pages themselves, as a backend: what is passed as ``kernels=reference`` runs a page as it stands.

There is nothing else in here: a page is its own reference.
"""

__all__: list[str] = []
