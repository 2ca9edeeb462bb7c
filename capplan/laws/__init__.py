"""The laws: what a tensor, a step, a page and a request occupy, as functions of plain numbers.

weights      matrices, tables, experts, scales, copies made after loading
activations  what one profiling step holds at its peak
kv_cache     what a token, a page, a block and a request occupy
runtime      sampling state, workspaces, captured sizes
"""
