"""Attention over a paged KV cache: Triton kernels, C kernels, and plain-torch references.

The C kernels, compiled where they run, also normalise and rotate.

    batch          PagedBatch: which sequences run, how long they are, where their pages lie
    reference      write_kv and paged_attention in plain torch, on any device
    kv_write       write_kv: new keys and values into their pages
    decode         paged_decode: one query token a sequence, split over the KV length
    shared_prefix  for paged_decode: pages that several sequences share, read once for all of them
    prefill        paged_prefill: any number of query tokens a sequence, causal on positions
    cpu_attention  cpu_decode and cpu_prefill: the same on a CPU, in C
    cpu_rms_norm   RMSNorm in C
    cpu_rotary     rotary position embedding in C
    cpu_library    compiles what is in C
    launch         tile sizes by architecture, head_dim and dtype; compile_check checks them

Import the module that you need: `batch`, `reference` and those in C take no Triton.
"""
