"""Folders in object storage: addresses, uploads and downloads, and the lease on a run."""
