"""Operations on a running cluster: definitions, members, copies, masters, its status."""
