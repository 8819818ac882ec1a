"""Objects: conditional create on a local folder, in memory or in a bucket; hashes and digests of their contents.

The package `log` holds the embedded log. Nothing here depends on jobs.
"""
