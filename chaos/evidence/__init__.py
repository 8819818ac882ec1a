"""The evidence of many runs: report, page, soak log, odds.

It reads journals and logs; the package judge makes the verdict on a single run.
"""
