"""The real backend: the scheduler's batches, run by a Hugging Face model over a paged KV pool."""
