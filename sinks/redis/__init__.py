"""Redis as a target: one key per row, one script per delivery, and a hash that holds tags and owners.

place.py, book.py, script.py, rows.py and target.py decide and are pure; client.py and errors.py alone import redis.
"""
