"""What the mechanisms cost, compared with one another.

``attention_cost``     softmax attention, with and without the matrix: counted
``linformer_savings``  what Linformer saves of it: time and memory; ``layer_savings``, of a whole layer
``resources``          time and memory of all, against the length; ``resource_methods`` are its curves;
                       ``model_resources``, of a step of training
``comparison``         error against cost on a pretrained network; ``comparison_calls``, the rows of the chapter's table
``cuda_occupancy``     what the CUDA kernels take of a GPU: compiled, not run
"""

from linattn_ref import lazy

__all__, __getattr__, __dir__ = lazy.folder(__name__, __path__)
