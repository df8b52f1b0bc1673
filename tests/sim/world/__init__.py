"""The simulated world: loop, network, disks, processes."""
