"""Replays what a job did: code x checkpoint x range of input -> state and output, in one process without Spark.

Here: ranges of input, the job in memory that reads them, the proof that it did what production did, and the questions
that are answered by replaying. Not here: reading checkpoints without replaying (`inspect`), new jobs (`fork`).
"""
