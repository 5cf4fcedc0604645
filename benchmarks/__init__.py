"""What evenflow promises in numbers: one module a benchmark, each with `run() -> Result`."""
