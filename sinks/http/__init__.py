"""`hf.Http`: rows as JSON in POST requests, at least once, with an idempotency key. Its tags are in a separate log.

Only client.py opens connections. Code that another sink could use too does not belong here.
"""
