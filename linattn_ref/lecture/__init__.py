"""What a lecture needs beside the chapters: ``site`` makes web pages that need no Python, ``slides`` a deck a chapter,
``live`` networks that run in the browser."""

__all__: list[str] = []
