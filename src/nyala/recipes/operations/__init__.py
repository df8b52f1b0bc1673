"""Operations of a leader: their log, their state, and those that are pending."""
