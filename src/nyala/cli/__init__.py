"""The command line: a tree of groups and verbs, each a thin face over what the rooms below do."""
