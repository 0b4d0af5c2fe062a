"""Real data: ``fetch`` brings the pinned, checked packages, ``text`` reads documents and cuts sentences from them."""
