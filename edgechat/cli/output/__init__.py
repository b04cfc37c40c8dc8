"""What commands print: layouts, progress, amounts, findings with their remedies."""
