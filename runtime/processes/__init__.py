"""Worker processes: the code that runs in one, and authenticated, encrypted streams between them and the driver.

Where workers run is decided above: as Spark tasks (runtime/spark) or as processes of this machine (`local.py` here).
Nothing here imports PySpark. Messages and channels as data are in runtime/wire, decisions in runtime/worker.
"""
