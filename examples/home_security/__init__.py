"""Home security: sensors of 100,000 homes, consumers that aggregate and raise alarms, a page for residents.

README.md says how to run it and why it is right. The straight path:

    generator -> hub -> aggregate -> blobs -> residents
                    \\-> alerts ----/
"""
