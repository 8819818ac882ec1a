"""`holdfast log`: creates, appends to, reads, compacts and seals embedded logs.

Columns, input and output of rows on the terminal. Nothing here knows a job.
"""
