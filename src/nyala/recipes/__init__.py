"""Recipes: coordination of processes over a journal. The public names; see docs/use/recipes.md."""

from nyala.recipes.guard import Guard
from nyala.recipes.leader import Leader
from nyala.recipes.records import LeaderInfo

__all__ = ["Guard", "Leader", "LeaderInfo"]
