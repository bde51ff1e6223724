"""Shared by the packages beside the hook protocol: files, processes, batches in transfer, texts of errors."""
