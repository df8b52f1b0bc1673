"""Followed change feeds: rounds of reads, merged in order of time, with a hold that moves forward."""
