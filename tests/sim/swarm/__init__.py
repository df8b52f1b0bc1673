"""Random mixtures of faults: fixed seeds, recorded seeds (`tests/sim/seeds.txt`), fresh seeds."""
