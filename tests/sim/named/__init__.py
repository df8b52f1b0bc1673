"""Named scenarios of the design documents, and the program that `nyala chaos` runs."""
