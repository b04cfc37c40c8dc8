"""What this machine is: processor, memory, accelerators."""
