"""Recipes: coordination of processes over a journal. The public names; see docs/use/recipes.md."""

from nyala.recipes.broadcast import BroadcastCopy, BroadcastList, ListMessage, Update
from nyala.recipes.counter import Counter
from nyala.recipes.guard import Guard
from nyala.recipes.leader import Leader
from nyala.recipes.lease import Lease, Lock
from nyala.recipes.operations.operation import Operation
from nyala.recipes.operations.pending import PendingOperation
from nyala.recipes.operations.service import Operations
from nyala.recipes.records import LeaderInfo

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
