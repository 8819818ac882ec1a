"""How committed output reaches a target: staging, delivery, and the repair of what was delivered.

Pure; no target of its own.
"""
