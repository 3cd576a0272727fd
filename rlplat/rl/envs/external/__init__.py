"""Environments that run somewhere else and step by themselves: simulators connect and ask for actions.

See docs/external-simulators.md. `client.py` is what a simulator in Python needs: one file, numpy and websockets.
"""
