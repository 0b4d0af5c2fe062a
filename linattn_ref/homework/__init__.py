"""Homework that grades itself: a student's folder made from the pages, and a grader that says what is wrong.

    linattn-ref assignment softmax --out my_homework
    linattn-ref grade my_homework

A *sheet* is one text file, ``sheets/NN_name.toml``: which functions of which pages a student writes, what is checked,
for how many points, which hints there are, and which mistakes are known by name.

``sheet``       reads a sheet
``pages``       takes functions out of pages: the student's text, and the solution's
``handout``     writes the student's folder and the instructor's
``apart``       runs a submission in a process of its own, without this package
``grading``     compares, gives points, and names mistakes
``rehearsal``   whether a sheet does what it promises
``results``     the report: text, Gradescope's JSON, a page
``values`` ``checking`` ``child``    need NumPy alone: they go into the student's folder, or beside the submission
"""

from linattn_ref.homework.apart import Apart
from linattn_ref.homework.grading import grade
from linattn_ref.homework.handout import write
from linattn_ref.homework.rehearsal import rehearse
from linattn_ref.homework.results import Report
from linattn_ref.homework.sheet import names, read

__all__ = ["Apart", "Report", "grade", "names", "read", "rehearse", "write"]
