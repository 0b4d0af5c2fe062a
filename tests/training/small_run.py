"""A run of a second, as a program of its own that can be killed: ``python small_run.py FOLDER [--resume]``."""

import sys
import time
from pathlib import Path

import numpy as np

from linattn_ref.nn import feed_forward
from linattn_ref.training import loop, radam, schedule

GOAL = np.random.default_rng(1).standard_normal((4, 3))
START = feed_forward.draw(3, 5, np.random.default_rng(0))
FACTS = {"command": "small run", "seed": 7}


def batch(rng):
    return rng.standard_normal((4, 3))


def learn(params, x, share):
    y, saved = feed_forward.forward(x, params)
    return share * np.square(y - GOAL).sum(), feed_forward.backward(2 * share * (y - GOAL), saved).params


def evaluate(params):
    y, _ = feed_forward.forward(batch(np.random.default_rng(99)), params)
    return {"loss": float(np.square(y - GOAL).sum())}


TASK = loop.Task(learn, batch, evaluate)


def settings(**changed):
    rate = lambda t: schedule.warm_up(t, peak=0.02, warmup=5)  # noqa: E731
    return loop.Settings(40, rate, radam, accumulate=2, clip=5.0, every=4, seed=7)._replace(**changed)


def slowly(steps):
    for step in steps:
        time.sleep(0.03)
        yield step


if __name__ == "__main__":
    watch = loop.Watch(slowly)
    loop.run(TASK, START, settings(), Path(sys.argv[1]), facts=FACTS, resume="--resume" in sys.argv, watch=watch)
