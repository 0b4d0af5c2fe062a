"""``python -m linattn_ref``: the same as the command ``linattn-ref``."""

from linattn_ref.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
