"""The command line: the dispatcher, and the common parts of commands (arguments, text, errors, exit status).

Commands are in start, operate and log. A command parses, calls one room, and prints.
"""
