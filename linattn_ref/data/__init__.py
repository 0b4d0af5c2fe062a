"""Pinned, checked packages of real data."""
