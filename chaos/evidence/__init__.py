"""What many runs prove: report, page, soak log, odds.

It reads journals and logs; the verdict of a single run is made in judge.
"""
