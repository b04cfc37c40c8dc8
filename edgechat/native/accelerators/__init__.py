"""Accelerators of llama.cpp, and the placement of a model's layers on them.

devices.py     the devices, with their free memory
placement.py   layers and experts on devices
rpc.py         devices of other processes
"""
