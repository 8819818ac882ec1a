"""`hf.Files`: files below a folder or a prefix of S3, as a source.

Modules here list files into a catalogue, and read them. Nothing here writes to the folder of the files.
"""
