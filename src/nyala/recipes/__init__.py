"""Recipes: coordination of processes over a journal. The public names; see docs/use/recipes.md."""

from nyala.recipes.broadcast import BroadcastCopy, BroadcastList, ListMessage, Update
from nyala.recipes.counter import Counter
from nyala.recipes.guard import Guard
from nyala.recipes.leader import Leader
from nyala.recipes.lease import Lease, Lock
from nyala.recipes.operations import Operation
from nyala.recipes.pending import PendingOperation
from nyala.recipes.records import LeaderInfo
from nyala.recipes.service import Operations

__all__ = [
    "BroadcastCopy",
    "BroadcastList",
    "Counter",
    "Guard",
    "Leader",
    "LeaderInfo",
    "Lease",
    "ListMessage",
    "Lock",
    "Operation",
    "Operations",
    "PendingOperation",
    "Update",
]
