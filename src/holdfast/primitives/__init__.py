"""What users hold, one file each."""
