"""The mutation score: small faults are put into the protocol one by one, and the tests must notice each of them.

`python -m tests.mutants` tries them all, each in processes of its own: the module's own tests first, then the other
unit tests that reach it, then simulated worlds. A mutant that survives all of these shows a test that is missing, or it
is listed in `equivalents` with the reason why it changes no behaviour.
"""
