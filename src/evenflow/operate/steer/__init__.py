"""What operators do to a group from outside: pause, resume, retire, seek, delete. Through ports only, and recorded."""

from evenflow.operate.steer.group import delete, pause, resume, retire
from evenflow.operate.steer.operator import Operator
from evenflow.operate.steer.seeking import FromGroup, PartitionSeek, Shift, Target, plan_seek, seek

__all__ = [
    "FromGroup",
    "Operator",
    "PartitionSeek",
    "Shift",
    "Target",
    "delete",
    "pause",
    "plan_seek",
    "resume",
    "retire",
    "seek",
]
