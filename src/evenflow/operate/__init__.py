"""What the command line and the console share: inspecting groups, steering them, dead letters."""
