"""The laws: what a tensor, a step, a page and a request occupy, as functions of plain numbers.

weights      matrices, tables, experts, scales, copies made after loading
activations  what one profiling step holds at its peak
buffers      what a sparse latent model allocates for itself
kv_cache     what a token, a page, a block and a request occupy
recurrent    what a recurrent layer's state occupies
runtime      sampling state, workspaces, captured sizes
"""
