"""llama.cpp's accelerators, and the placement of a model's layers on them.

devices.py     the devices and their free memory
placement.py   layers and experts on devices
rpc.py         devices of other processes
"""
