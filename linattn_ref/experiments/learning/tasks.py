"""What ``linattn-ref train`` can learn: the tasks by their names.

The command line, README's tests and the tests of all tasks read this list, which loads no module of a task: ``--help``
comes at once. All else that is special to a task is in the module of its name:

``begin``   takes the options, each annotated with its description (`options.Option`), and returns what `learn.run`
            learns
``Shape``   has the options that are sizes
``QUICK``   has what is different with ``--quick``; ``QUICKLY`` describes that, if it is more than a test
"""

import importlib
from typing import Any, NamedTuple

__all__ = ["TASKS", "Task", "module_of"]


class Task(NamedTuple):
    """How the command describes itself."""

    about: str
    writes: str = "times.jsonl and the checkpoints"  # besides the record


TASKS = {
    "characters": Task("Train a small transformer to write, a character at a time, and let it."),
    "duplication": Task('Train a small transformer to copy a word ("Transformers are RNNs", section 4.1.1).'),
    "images": Task(
        'Train a small transformer to draw digits, a pixel at a time ("Transformers are RNNs", section 4.2).',
    ),
    "mlm": Task(
        "Train a small bidirectional transformer to predict which tokens were hidden (Linformer, Figure 3).",
        "tokenizer.json, times.jsonl and the checkpoints",
    ),
    "speech": Task(
        'Train a small network to recognise phonemes ("Transformers are RNNs", section 4.3).',
        "result.json (error rates on the test part), times.jsonl, the checkpoints. "
        'The speech is synthesised by eSpeak NG (the extra "speech"), unless recordings are given',
    ),
    "finetune": Task(
        "Train a pretrained BERT to tell praise from blame, with any mechanism in its layers (Linformer, Table 2).",
        "result.json (accuracy on the test part), times.jsonl and the checkpoints",
    ),
}


def module_of(task: str) -> Any:
    """The module with ``begin``, ``Shape`` and ``QUICK`` of a task."""
    return importlib.import_module(f"linattn_ref.experiments.learning.{task}")
