"""The rules that a world can leave out in part; each variant must be caught by the judge.

Letters are those of docs/internals/transactions.md. Some show rarely; their worlds are tuned.
"""

WEAK = {
    "low-commit": "C: the commit time is the coordinator's own clock, not above all prepares",
    "few-prepares": "C: a decision is made when all tablets but one have prepared",
    "low-resolve": "C: a resolve does not move the leader's clock above the commit time",
    "no-read-wait": "R: reads and closed times do not wait for a prepared transaction",
    "stale-closed": "R: reads wait, but a closing round does not",
    "no-write-wait": "W: ordinary writes are proposed between prepare and resolve",
    "wait-forgotten": "W: a new leader takes writes before it has applied its own NOOP",
    "slice-open": "W: writes are proposed after the first slice of a resolve",
    "alter-at-once": "W: a schema change is proposed between prepare and resolve",
    "any-order": "O: resolves are proposed as they come, not by commit time",
    "unprepare-any": "A: an unprepare acts whatever attempt is prepared",
    "silent-again": "A: a prepared tablet repeats its vote and keeps the older attempt",
    "reuse-attempt": "A: a coordinator has one attempt number for all of its tries",
    "early-catalog": "A: a new coordinator answers before it has applied its own NOOP",
    "early-resolve": "A: resolves are sent when the decision is proposed, not when it is committed",
    "expire-prepared": "A: a tablet drops a prepared stage whose time is over",
    "lease-ignores": "L: a look-up under a lease is answered beside a prepared transaction",
    "latest-early": "L: a look-up that waited is answered at the time that it came with",
    "early-ack": "K: acknowledged when decided, before all tablets have the resolve",
    "no-key-lock": "I: two commits of one key are planned side by side",
    "stream-any-epoch": "I: an epoch of a stream that is done already is committed again",
    "restart-blind": "I: a new query replaces whichever query the stream has",
    "all-parts": "S: a prepare takes every staged part, not those that the driver names",
    "partial-part": "S: a prepare does not count the batches of a part",
    "stage-again": "S: a late copy of a STAGE is taken after its transaction has ended",
    "schema-unchecked": "S: a prepare does not check the stage against the present schema",
    "early-forget": "F: a decision's row is removed before every tablet has resolved",
    "mark-ahead": "F: the mark of a prepare is the coordinator's clock",
    "deny-forgotten": "F: no row is taken for no commit, though rows of that age are removed",
    "deny-unconfirmed": "N: a coordinator denies without a round that confirms it, a refused key at once",
    "refusal-forgotten": "N: a tablet that refused a prepare keeps the stage",
    "key-denied": "N: a commit whose key is refused is denied with its stages kept",
    "abort-of-tablets": "N: an operator's abort drops the stages that are known, and is no row",
    "abort-beside": "N: an attempt goes on beside an abort whose row is proposed",
    "drop-unchecked": "D: a decision does not check that all participants exist still",
    "drop-unresolved": "D: a dropped participant has to resolve",
    "unprepare-dropped": "D: a dropped participant is sent an unprepare when the row is gone",
    "files-without-stages": "M: the files of a copy or restart lack the stages",
    "files-without-prepares": "M: the files of a copy or restart lack what is prepared",
}

UNSEEN = {
    "done-unresolved": "K: a key that is taken is acknowledged before its winner is resolved",
}
"""A part of a rule that no world has shown to be missing; it is by reasoning."""
TUNED: dict[str, dict[str, float]] = {
    "early-catalog": {"faults": 0.03, "quiet": 0.0},
    "early-ack": {"slow": 0.2, "ahead": 500, "quiet": 0.0},
    "latest-early": {"slow": 0.3, "ahead": 500, "quiet": 0.0},
    "done-unresolved": {"shared": 0.65, "slow": 0.2, "ahead": 500, "quiet": 0.0},
    "restart-blind": {"restarts": 0.4, "slow": 0.2, "quiet": 0.0, "streaming": 1.0},
    "deny-forgotten": {"row_ticks": 10, "slow": 0.2},
    "deny-unconfirmed": {"alone": 700, "faults": 0.02, "streaming": 1.0, "quiet": 0.0},
    "refusal-forgotten": {"definitions": 0.5, "drops": 0.01, "double": 0.5, "slow": 0.2},
    "key-denied": {"early": 0.5, "restarts": 0.4, "streaming": 1.0, "slow": 0.2, "double": 0.3},
    "abort-of-tablets": {"operators": 0.1, "slow": 0.2},
    "abort-beside": {"operators": 0.1, "slow": 0.2},
    "unprepare-dropped": {
        "definitions": 0.1, "drops": 0.5, "deletions": 0.002, "row_ticks": 5, "slow": 0.2,
    },
}  # fmt: skip
"""Attributes of the worlds in which a variant shows; see `World`."""
