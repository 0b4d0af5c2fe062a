"""What a lecture needs besides the chapters: ``site`` makes web pages that need no Python, ``slides`` one deck per
chapter, ``live`` networks that run in the browser; by ``run`` the cells of chapters run there too."""

__all__: list[str] = []
