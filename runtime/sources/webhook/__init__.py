"""`hf.Webhook`: the configuration of a port that receives requests, and the log that they are captured into.

Nothing here listens, or writes the log: see runtime/capture. No module here needs the HTTP library.
"""
