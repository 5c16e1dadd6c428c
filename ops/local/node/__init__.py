"""Nodes that run pods as processes of this machine."""
