"""What must be fast, each as a ratio to a reference measured in the same run."""
