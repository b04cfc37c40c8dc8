"""What llama.cpp computes on beside the processor's plain cores, and how a model's layers are placed there.

devices.py     what there is, with its free memory
placement.py   which layers and experts go where
rpc.py         devices of other processes
"""
