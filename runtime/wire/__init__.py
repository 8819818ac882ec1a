"""What driver and workers share: messages, channels, mailboxes, clocks, and signs of life.

Vocabulary and ports only; the sockets are in runtime/spark. No decision of a driver or a worker.
"""
