"""`evenflow demo`: a hub of home-sensor events, real consumer processes, and a live table of who owns what.

`command` is the command; `session` runs the processes and looks at them; `accounts` proves what was handled; `scene`
is what there is to see, `screen` and `lines` show it. `consumer` and `generator` are the processes themselves.
"""
