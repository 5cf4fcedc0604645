"""What the command line and the console both use: inspect, steer, dead letters."""
