"""Folders that lie in object storage: addresses, what is copied there and back, a mirror."""
