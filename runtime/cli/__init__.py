"""The command line: the dispatcher, and what all commands share (arguments, text, errors, exit status).

Commands are in start, operate and log. A command parses, calls one room, and prints.
"""
