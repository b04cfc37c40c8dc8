"""Run it: one step loop over several backends, in a process of its own."""
