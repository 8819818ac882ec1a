"""What all SQL targets share: tags, before-images, values.

It opens no connection and names no database.
"""
