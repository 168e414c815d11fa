"""Attention over a paged KV cache: Triton kernels, C kernels, and plain-torch references.

    batch          PagedBatch: which sequences run, how long they are, where their pages lie
    reference      write_kv and paged_attention in plain torch, on any device
    kv_write       write_kv: new keys and values into their pages
    decode         paged_decode: one query token a sequence, split over the KV length
    shared_prefix  for paged_decode: pages that several sequences share, read once for all of them
    prefill        paged_prefill: any number of query tokens a sequence, causal on positions
    cpu_attention  cpu_decode and cpu_prefill: the same on a CPU, in C; compiled where they run
    launch         tile sizes by architecture, head_dim and dtype; compile_check checks them

Import the module that you need: `batch`, `reference` and `cpu_attention` take no Triton.
"""
