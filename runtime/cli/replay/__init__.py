"""Commands that replay a job from its file and its checkpoints: why, bisect, check, shadow. They change
nothing, but for promote, which makes a job ready for the code that was tried."""
