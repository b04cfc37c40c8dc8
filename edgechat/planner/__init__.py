"""What will fit: from a model's header and this machine to a LoadPlan with its reasons."""
