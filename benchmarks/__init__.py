"""Ratios in one run, on one machine: `./run bench NAME`. Figures are printed, never asserted."""
