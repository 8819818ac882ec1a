"""`hf.Files` as a sink: Parquet files below a folder, of which readers see only those of committed epochs.

Modules here write files, commit epochs, and take them back. Reading files as a source is in runtime/sources/files.
"""
