"""Causal linear attention as a recurrent network.

``causal_cost``       the causal product in four forms: multiply-adds and memory
``rewind``            the digits that are lost where a state is computed backwards
``decoding``          the cost of one more token, from a state and from a key/value cache
``rfa_decay``         what a gate forgets, and a gate that learns when to
``write_fade_erase``  what a state can hold, by the rule that writes it
"""

from linattn_ref import lazy

__all__, __getattr__, __dir__ = lazy.folder(__name__, __path__)
