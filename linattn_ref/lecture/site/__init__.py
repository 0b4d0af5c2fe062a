"""The web pages: ``build`` makes them by Sphinx and MyST-NB."""

__all__: list[str] = []
