"""What people do to a group from outside: pause, resume, retire, seek, delete. Through ports alone, and recorded."""

from evenflow.operate.steer.group import delete, pause, resume, retire
from evenflow.operate.steer.seeking import FromGroup, Seeking, Shift, Target, plan_seek, seek
from evenflow.operate.steer.who import Who

__all__ = ["FromGroup", "Seeking", "Shift", "Target", "Who", "delete", "pause", "plan_seek", "resume", "retire", "seek"]
