"""The vocabulary that driver and workers share: messages, channels, mailboxes, clocks, and signs of life.

Vocabulary and ports only; the sockets are in runtime/processes. Drivers and workers decide elsewhere.
"""
