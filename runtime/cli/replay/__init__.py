"""Commands that replay a job from its file and its checkpoints: why, bisect, check. They change nothing."""
