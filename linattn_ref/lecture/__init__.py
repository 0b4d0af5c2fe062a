"""What a lecture needs besides the chapters: ``site`` makes web pages that need no Python, ``slides`` one deck per
chapter, ``live`` networks that run in the browser."""

__all__: list[str] = []
