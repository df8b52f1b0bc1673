"""Tests of the simulator and of its checkers: planted mistakes are found, what is correct passes."""
