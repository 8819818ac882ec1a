"""Many seeds: playing, replaying and shrinking them, reports and coverage.

No rule of the protocol is stated here; a failure is what the checks of sim report.
"""
