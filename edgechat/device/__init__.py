"""The hardware of this machine: CPU, memory, accelerators."""
