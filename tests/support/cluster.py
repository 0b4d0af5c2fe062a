"""A real Dask scheduler on the loopback address, and workers that can be killed."""

import subprocess
import sys
import time

QUIET = ("--no-dashboard", "--host", "127.0.0.1")


class Cluster:
    """A Dask scheduler, and workers that nobody starts again."""

    def __init__(self, folder, processes):
        self.folder, self.processes = folder, processes
        self.file = folder / "scheduler.json"
        self.scheduler = self.start("scheduler", "--port", "0", "--scheduler-file", self.file)
        self.address = self.said(self.scheduler, "Scheduler at: ").split()[0]

    def start(self, *words):
        log = (self.folder / f"{len(self.processes)}.log").open("w+")
        command = [sys.executable, "-m", "dask", *map(str, words), *QUIET]
        self.processes.append((process := subprocess.Popen(command, stdout=log, stderr=log), log))
        return process

    def said(self, process, sign):
        """What stands after ``sign`` in a process's log, once it is there."""
        log = next(log for other, log in self.processes if other is process)
        while not (after := (self.folder / log.name).read_text().partition(sign)[2]):
            assert process.poll() is None
            time.sleep(0.05)
        return after

    def start_worker(self):
        return self.start("worker", "--scheduler-file", self.file, "--nthreads", "2", "--no-nanny")

    def wait_for_worker(self, worker):
        self.said(worker, "Registered to:")
