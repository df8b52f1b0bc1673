"""The simulated environment: loop, network, disks, processes."""
