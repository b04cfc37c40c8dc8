"""llama.cpp's accelerators, and the placement of a model's layers on them.

devices.py     lists the devices and their free memory
placement.py   puts layers and experts on devices
rpc.py         uses devices in other processes
"""
