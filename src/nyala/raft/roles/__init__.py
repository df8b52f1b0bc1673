"""Rules of each role: what a node does that leads, follows, stands for election, or is a witness."""
