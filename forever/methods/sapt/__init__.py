"""SAPT: the method and its selector."""
