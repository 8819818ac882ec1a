"""How committed output reaches a target: staging, delivery, and the repair of delivered rows.

Pure; no target of its own.
"""
