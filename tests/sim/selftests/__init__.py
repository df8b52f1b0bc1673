"""Tests of the simulator and of its checkers: planted mistakes are detected, correct runs pass."""
