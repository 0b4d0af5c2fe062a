"""Causal linear attention as a recurrent network.

``causal_cost``  the causal product in four forms: multiply-adds and memory
``rewind``       the digits that are lost where a state is computed backwards
``decoding``     one more token, from a state and from a key/value cache
``rfa_decay``    what a gate forgets, and a gate that learns when to
"""
