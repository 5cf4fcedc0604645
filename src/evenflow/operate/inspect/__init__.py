"""Looks at groups from outside: what their stores and sources say, as tables, findings and metrics. Read-only."""
