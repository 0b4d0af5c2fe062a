"""Each theorem as functions: what it states beside what is measured."""
