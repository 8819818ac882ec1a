"""Commands that replay a job from its file and its checkpoints: why, check. They change nothing."""
