"""What is measured and drawn. A figure is a module: ``compute(...)`` gives the results, ``draw(results)`` the figure.

Figures, by what they are about; no folder imports from another:

``schematics``  the mechanisms, a drawing each: shapes of arrays, what is summed, what is never made
``rank``        is self-attention of low rank? ``spectrum`` (the main job), and the theorems that say why
``fewer_keys``  attention to fewer keys than there are: mixtures (Linformer), landmarks (Nyströmformer)
``features``    feature maps in place of the exponential, and random ones
``recurrence``  causal linear attention as a recurrent network: its cost, its state, its gate
``sparse``      which pairs a sparse pattern or a hash lets through
``cost``        operations, bytes and seconds of the mechanisms, beside one another
``learned``     what networks have learned, and how: figures of the runs of ``learning``

What all of them stand on:

``learning``    what is learned by this package's own gradients, a task per module
``benches``     comparisons with other packages, and with a bare loop: figures too
``measuring``   what they measure with: time, memory, operations, the heads of a pretrained network
``publishing``  how they appear: in which style, beside which numbers, in the gallery, in README, in a notebook
"""

from linattn_ref import lazy

__all__, __getattr__, __dir__ = lazy.folder(__name__, __path__)
