"""Kernels are compiled once per user: a process with a warm numba cache compiles none."""

import json
import subprocess
import sys

from nyala.tablet.kernels import key_index

SERVER = """
import json
from numba import njit
from numba.core import event

compiled = []

class Heard(event.Listener):
    def on_start(self, happened):
        compiled.append(str(happened.data))

    def on_end(self, happened):
        pass

event.register("numba:compile", Heard())
import nyala.cli.serve  # all that a server needs
from tests.properties import tablet_fuzz

for seed in range(1, 4):  # every form of write, read and work on files, over keys of three kinds
    assert tablet_fuzz.problem(seed, tablet_fuzz.draw(seed, 100)) is None
done = list(compiled)
njit(lambda: 1)()
print(json.dumps([done, len(compiled) - len(done)]))
"""


def test_process_with_warm_cache_compiles_nothing():
    assert key_index.warm() > 20
    ran = subprocess.run([sys.executable, "-c", SERVER], check=True, capture_output=True, text=True)
    compiled, events = json.loads(ran.stdout)
    assert events > 0, "the event listener detects compilations"
    assert compiled == []
