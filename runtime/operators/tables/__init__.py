"""Operators over tables: streams of rows that replace and delete each other by key.

Only here are rows of a table kept, and only by operators that look them up or group them. Streams of facts belong to
the operators beside this folder.
"""
