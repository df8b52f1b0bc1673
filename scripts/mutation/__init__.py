"""Parts of `./run mutants`: edits, copies of the tree, trials, verdicts."""
