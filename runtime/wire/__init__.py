"""What driver and workers share: messages, channels, mailboxes, clocks, and signs of life.

Vocabulary and ports only; the sockets are in runtime/spark. Drivers and workers decide elsewhere.
"""
